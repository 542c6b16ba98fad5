// Regions of interest (roi.py). x and dx lie in memory as C, H, W, N, as convolutions write them; y, dy and index as
// K, C, cells_h, cells_w. rois: (K, 5), the image's number, then x1, y1, x2, y2.
//
// Forward, a thread writes one y. Backward, it writes the dx of one place in CHANNELS channels, and goes through all
// regions of its image: sums are made in FP32 registers in the order of the regions, without atomics.

constexpr int CHANNELS = 8;  // roi.py has the same
constexpr float FARTHEST = 65536.0f;  // and this; what is beyond was noted as an error, and must do no harm here

struct Region {
    int image;
    bool good;
    float x1, y1, x2, y2;  // in places. __fmul_rn: rounded, as NumPy's product, before anything is subtracted

    __device__ Region(const float* roi, float scale, int images)
        : image(-1), x1(__fmul_rn(roi[1], scale)), y1(__fmul_rn(roi[2], scale)), x2(__fmul_rn(roi[3], scale)),
          y2(__fmul_rn(roi[4], scale)) {
        good = roi[0] >= 0 && roi[0] < images && near(x1) && near(y1) && near(x2) && near(y2);
        if (good) image = static_cast<int>(roi[0]);
    }
    __device__ static bool near(float v) { return fabsf(v) <= FARTHEST; }  // nan is not
};

// What all kernels take: x is (images, channels, h, w), a region has cells_h * cells_w cells.
struct Shape {
    int regions, images, channels, h, w, cells_h, cells_w;

    __device__ long long x_at(int c, int row, int column, int n) const {
        return ((static_cast<long long>(c) * h + row) * w + column) * images + n;
    }
    __device__ long long y_at(int k, int c, int p, int q) const {
        return ((static_cast<long long>(k) * channels + c) * cells_h + p) * cells_w + q;
    }

    // body(i, k, c, p, q) for every element of y.
    template <class Body>
    __device__ void each_cell(Body body) const {
        long long all = static_cast<long long>(regions) * channels * cells_h * cells_w;
        for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < all;
             i += static_cast<long long>(gridDim.x) * blockDim.x) {
            int q = i % cells_w, p = i / cells_w % cells_h;
            long long plane = i / cells_w / cells_h;
            body(i, static_cast<int>(plane / channels), static_cast<int>(plane % channels), p, q);
        }
    }

    // dx, of CHANNELS channels, at every place: add(sums, c, k, row, column) for the regions of its image.
    template <class Add>
    __device__ void each_place(T* dx, const float* rois, float scale, Add add) const {
        int places = h * w * images, c = blockIdx.y * CHANNELS;
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < places; i += gridDim.x * blockDim.x) {
            int n = i % images, column = i / images % w, row = i / images / w;
            float sums[CHANNELS] = {};
            for (int k = 0; k < regions; k++) {
                Region region(rois + 5LL * k, scale, images);
                if (region.good && region.image == n) add(sums, region, c, k, row, column);
            }
#pragma unroll
            for (int j = 0; j < CHANNELS; j++)
                if (c + j < channels) store(dx + x_at(c + j, row, column, n), sums[j]);
        }
    }
};

// ------------------------------------------------------------------------------------------------------------- align

// One side of a region, in cells with `samples` samples each, over `size` places of x.
struct Side {
    float start, length;
    int cells, samples, size;

    __device__ Side(float from, float to, float shift, int ratio, int cells, int size)
        : start(from - shift), length(to - shift - start), cells(cells), size(size) {
        if (shift == 0.0f) length = max(length, 1.0f);
        samples = ratio > 0 ? ratio : static_cast<int>(ceilf(length / cells));
    }

    __device__ float sample(int p, int i) const { return start + (p + (i + 0.5f) / samples) * (length / cells); }
    __device__ bool inside(float v) const { return v >= -1.0f && v <= size; }
    __device__ float within(float v) const { return min(max(v, 0.0f), size - 1.0f); }

    // The weight of a place in the mean of cell p.
    __device__ float weight(int p, int place) const {
        float sum = 0.0f;
        for (int i = 0; i < samples; i++) {
            float v = sample(p, i);
            if (inside(v)) sum += max(1.0f - fabsf(within(v) - place), 0.0f);
        }
        return sum / max(samples, 1);
    }

    // The cells of which samples may touch a place: first <= p <= last.
    __device__ int first(int place) const { return length > 0.0f ? cell_at(place - 1) : 0; }
    __device__ int last(int place) const { return length > 0.0f ? cell_at(place + 1) : cells - 1; }
    __device__ int cell_at(int place) const {
        return static_cast<int>(min(max((place - start) / (length / cells), 0.0f), cells - 1.0f));
    }
};

extern "C" __global__ void __launch_bounds__(256) roi_align_forward(
    const T* x, const float* rois, T* y, int regions, int images, int channels, int h, int w, int cells_h, int cells_w,
    float scale, int ratio, float shift) {
    Shape shape{regions, images, channels, h, w, cells_h, cells_w};
    shape.each_cell([=](long long at, int k, int c, int p, int q) {
        Region region(rois + 5LL * k, scale, images);
        Side rows(region.y1, region.y2, shift, ratio, cells_h, h);
        Side columns(region.x1, region.x2, shift, ratio, cells_w, w);
        float sum = 0.0f;
        for (int i = 0; region.good && i < rows.samples; i++) {
            float v = rows.sample(p, i);
            if (!rows.inside(v)) continue;
            v = rows.within(v);
            int top = static_cast<int>(v), bottom = min(top + 1, h - 1);
            float down = v - top;
            for (int j = 0; j < columns.samples; j++) {
                float u = columns.sample(q, j);
                if (!columns.inside(u)) continue;
                u = columns.within(u);
                int left = static_cast<int>(u), right = min(left + 1, w - 1);
                float across = u - left;
                auto line = [=](int row) {
                    return (1.0f - across) * widen(x[shape.x_at(c, row, left, region.image)]) +
                           across * widen(x[shape.x_at(c, row, right, region.image)]);
                };
                sum += (1.0f - down) * line(top) + down * line(bottom);
            }
        }
        store(y + at, sum / max(static_cast<float>(rows.samples) * columns.samples, 1.0f));
    });
}

extern "C" __global__ void __launch_bounds__(256) roi_align_backward(
    const T* dy, const float* rois, T* dx, int regions, int images, int channels, int h, int w, int cells_h,
    int cells_w, float scale, int ratio, float shift) {
    Shape shape{regions, images, channels, h, w, cells_h, cells_w};
    shape.each_place(dx, rois, scale, [=](float* sums, const Region& region, int c, int k, int row, int column) {
        Side rows(region.y1, region.y2, shift, ratio, cells_h, h);
        Side columns(region.x1, region.x2, shift, ratio, cells_w, w);
        for (int p = rows.first(row); p <= rows.last(row); p++) {
            float down = rows.weight(p, row);
            if (down == 0.0f) continue;
            for (int q = columns.first(column); q <= columns.last(column); q++) {
                float share = down * columns.weight(q, column);
                if (share == 0.0f) continue;
#pragma unroll
                for (int j = 0; j < CHANNELS; j++)
                    if (c + j < channels) sums[j] += share * widen(dy[shape.y_at(k, c + j, p, q)]);
            }
        }
    });
}

// -------------------------------------------------------------------------------------------------------------- pool

// One side of a region that begins at place `start` and has `length` places, those outside [0, size) included.
struct Cells {
    int start, length, cells, size;

    __device__ Cells(float from, float to, int cells, int size)
        : start(static_cast<int>(roundf(from))), length(static_cast<int>(roundf(to)) - start + 1), cells(cells),
          size(size) {}

    __device__ int begin(int p) const { return limited(start + static_cast<long long>(p) * length / cells); }
    __device__ int end(int p) const { return limited(start + ((p + 1LL) * length + cells - 1) / cells); }
    __device__ int limited(long long place) const { return static_cast<int>(min(max(place, 0LL), size * 1LL)); }

    // The cells that have a place: first <= p <= last.
    __device__ bool has(int place) const { return place >= start && place < start + length; }
    __device__ int first(int place) const { return static_cast<int>((place - start) * 1LL * cells / length); }
    __device__ int last(int place) const {
        return static_cast<int>(((place - start + 1LL) * cells + length - 1) / length) - 1;
    }
};

// y = the largest x of each cell, nan if one is; index = the first place where it is, row * w + column, -1 without one.
extern "C" __global__ void __launch_bounds__(256) roi_pool_forward(
    const T* x, const float* rois, T* y, int* index, int regions, int images, int channels, int h, int w, int cells_h,
    int cells_w, float scale) {
    Shape shape{regions, images, channels, h, w, cells_h, cells_w};
    shape.each_cell([=](long long at, int k, int c, int p, int q) {
        Region region(rois + 5LL * k, scale, images);
        float best = 0.0f;
        int found = -1;
        if (region.good) {
            Cells rows(region.y1, region.y2, cells_h, h), columns(region.x1, region.x2, cells_w, w);
            for (int row = rows.begin(p); row < rows.end(p); row++)
                for (int column = columns.begin(q); column < columns.end(q); column++) {
                    float seen = widen(x[shape.x_at(c, row, column, region.image)]);
                    if (found < 0 || (best == best && !(seen <= best))) {  // larger, or the first nan
                        best = seen;
                        found = row * w + column;
                    }
                }
        }
        store(y + at, best);
        index[at] = found;
    });
}

// dx = the sum of dy over the cells whose maximum is at that place.
extern "C" __global__ void __launch_bounds__(256) roi_pool_backward(
    const T* dy, const int* index, const float* rois, T* dx, int regions, int images, int channels, int h, int w,
    int cells_h, int cells_w, float scale) {
    Shape shape{regions, images, channels, h, w, cells_h, cells_w};
    shape.each_place(dx, rois, scale, [=](float* sums, const Region& region, int c, int k, int row, int column) {
        Cells rows(region.y1, region.y2, cells_h, h), columns(region.x1, region.x2, cells_w, w);
        if (!rows.has(row) || !columns.has(column)) return;
        for (int p = rows.first(row); p <= rows.last(row); p++)
            for (int q = columns.first(column); q <= columns.last(column); q++)
#pragma unroll
                for (int j = 0; j < CHANNELS; j++) {
                    long long at = shape.y_at(k, c + j, p, q);
                    if (c + j < channels && index[at] == row * w + column) sums[j] += widen(dy[at]);
                }
    });
}
