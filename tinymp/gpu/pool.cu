// Pooling by maximum (pool.py). All images lie in memory as C, H, W, N: a thread takes PACK images at once (or one, where N is no
// multiple of PACK), and what it finds out about windows holds for all of them.
//
// Forward, a thread writes one place of y and looks at its window; backward, it writes one place of dx and looks at the
// windows that see it. Sums are made in FP32 registers in a fixed order, without atomics.

#include "elements.cuh"

// ----------------------------------------------------------------------------------------------------------- windows

// The windows along one side (height or width): window o sees the places o stride - before + k dilation, k < kernel, of
// which those outside [0, size) are padding.
struct Windows {
    int size, count, kernel, stride, before, dilation;

    __device__ int place(int o, int k) const { return o * stride - before + k * dilation; }
    __device__ bool inside(int p) const { return p >= 0 && p < size; }

    // The first k of window o that is not padding before the input.
    __device__ int first_inside(int o) const {
        int gap = before - o * stride;
        return gap > 0 ? (gap + dilation - 1) / dilation : 0;
    }

    // The windows whose reach includes place p: first_over(p) <= o <= last_over(p).
    __device__ int first_over(int p) const {
        int gap = p + before - (kernel - 1) * dilation;
        return gap > 0 ? (gap + stride - 1) / stride : 0;
    }
    __device__ int last_over(int p) const { return min((p + before) / stride, count - 1); }

    // The k with which window o, one of these, sees place p; -1 where p is between two steps of the dilation.
    __device__ int step_at(int o, int p) const {
        int offset = p + before - o * stride, k = offset / dilation;
        return k * dilation == offset ? k : -1;
    }

};

// --------------------------------------------------------------------------------------------- walking over elements

// The threads of the grid share an array (planes, rows, columns, images): body(Width<K>, plane, row, column, i) for the
// images i to i + K - 1. wide: all arrays begin at multiples of 16 bytes; K is then PACK if that divides images.
// blockIdx.y numbers rows, so that a thread divides once for each row to find its plane, not for each element.
template <class W, class Body>
__device__ inline void each_place_by(W width, int planes, int rows, int columns, int images, Body body) {
    int packs = images / width.length, places = columns * packs;
    for (int line = blockIdx.y; line < planes * rows; line += gridDim.y) {
        int plane = line / rows, row = line - plane * rows;
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < places; i += gridDim.x * blockDim.x) {
            int column = i / packs;
            body(width, plane, row, column, (i - column * packs) * width.length);
        }
    }
}

template <class Body>
__device__ inline void each_place(bool wide, int planes, int rows, int columns, int images, Body body) {
    if (wide && images % PACK == 0)
        each_place_by(Width<PACK>(), planes, rows, columns, images, body);
    else
        each_place_by(Width<1>(), planes, rows, columns, images, body);
}

// Where (plane, row, 0, i) lies in an array (planes, rows, columns, images).
__device__ inline long long line_at(int plane, int rows, int row, int columns, int images, int i) {
    return (static_cast<long long>(plane) * rows + row) * columns * images + i;
}

// ----------------------------------------------------------------------------------------------------------- kernels
// x, dx: (planes, h, w, images). y, dy, index: (planes, oh, ow, images). At most 64 registers (4 blocks at once): loops
// over a few places leave little to unroll, so it is other threads that hide memory's latency.

#define WINDOWS                                                                                                     \
    int planes, int images, int h, int oh, int kernel_h, int stride_h, int top, int dilation_h, int w, int ow,      \
        int kernel_w, int stride_w, int left, int dilation_w
#define ROWS {h, oh, kernel_h, stride_h, top, dilation_h}
#define COLUMNS {w, ow, kernel_w, stride_w, left, dilation_w}

// y = the largest x of each window, nan if one is; index = the first position in the kernel, counted row by row, where
// it is. Padding is -inf; a window of nothing but -inf points to its first place that is no padding.
extern "C" __global__ void __launch_bounds__(256, 4)
    max_pool2d_forward(const T* x, T* y, unsigned char* index, WINDOWS) {
    Windows rows = ROWS, columns = COLUMNS;
    bool wide = aligned16(x) && aligned16(y) && aligned16(index);
    each_place(wide, planes, rows.count, columns.count, images, [=](auto width, int plane, int oh, int ow, int i) {
        constexpr int K = width.length;
        Values<K> best;
        Few<unsigned char, K> found;
        int first = rows.first_inside(oh) * columns.kernel + columns.first_inside(ow);
#pragma unroll
        for (int k = 0; k < K; k++) best.at[k] = Max::none, found.at[k] = static_cast<unsigned char>(first);
        for (int r = 0; r < rows.kernel; r++) {
            int h = rows.place(oh, r);
            if (!rows.inside(h)) continue;
            const T* line = x + line_at(plane, rows.size, h, columns.size, images, i);
            for (int c = 0; c < columns.kernel; c++) {
                int w = columns.place(ow, c);
                if (!columns.inside(w)) continue;
                Values<K> seen = load(width, line + w * images);
#pragma unroll
                for (int k = 0; k < K; k++)
                    if (best.at[k] == best.at[k] && !(seen.at[k] <= best.at[k])) {  // larger, or the first nan
                        best.at[k] = seen.at[k];
                        found.at[k] = static_cast<unsigned char>(r * columns.kernel + c);
                    }
            }
        }
        long long to = line_at(plane, rows.count, oh, columns.count, images, i) + ow * images;
        save(y + to, best);
        *reinterpret_cast<Few<unsigned char, K>*>(index + to) = found;
    });
}

// dx = the sum of dy over the windows whose maximum is at that place.
extern "C" __global__ void __launch_bounds__(256, 4)
    max_pool2d_backward(const T* dy, const unsigned char* index, R* dx, WINDOWS) {
    Windows rows = ROWS, columns = COLUMNS;
    bool wide = aligned16(dy) && aligned16(dx) && aligned16(index);
    each_place(wide, planes, rows.size, columns.size, images, [=](auto width, int plane, int h, int w, int i) {
        constexpr int K = width.length;
        Values<K> sum = {};
        for (int oh = rows.last_over(h); oh >= rows.first_over(h); oh--) {
            int r = rows.step_at(oh, h);
            if (r < 0) continue;
            long long line = line_at(plane, rows.count, oh, columns.count, images, i);
            for (int ow = columns.last_over(w); ow >= columns.first_over(w); ow--) {
                int c = columns.step_at(ow, w);
                if (c < 0) continue;
                auto found = *reinterpret_cast<const Few<unsigned char, K>*>(index + line + ow * images);
                Values<K> gradient = load(width, dy + line + ow * images);
#pragma unroll
                for (int k = 0; k < K; k++)
                    if (found.at[k] == r * columns.kernel + c) sum.at[k] += gradient.at[k];
            }
        }
        save(dx + line_at(plane, rows.size, h, columns.size, images, i) + w * images, sum);
    });
}
