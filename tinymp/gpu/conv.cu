// Convolution (conv.py): the three products on Tensor Cores.
//
// All images lie in memory as C, H, W, N, so that the N values of one pixel are neighbours. Positions are numbered in
// that order too: p = (oh * OW + ow) * N + n. A column, k = (c, i, j), is a channel and a tap of the kernel:
//
//     columns[k, p] = x[c, oh * stride + i * dilation - pad, ow * stride + j * dilation - pad, n], 0 in the padding
//
// `correlate` and `weight_gradient` are matrix products that never write the columns: each block gathers the part of
// them that it needs straight into shared memory ("implicit GEMM"). Accumulators are FP32; each result is rounded once.
// Where a layer has too few tiles for a GPU, several blocks share the sum of one: each writes its part in FP32, and
// `sum_parts` adds them, and rounds.

#include "elements.cuh"

struct Problem {
    int transposed;                              // 0: y from x; 1: dx from dy, which is then what is read
    int groups, channels, height, width, batch;  // what is read: (groups * channels, height, width, batch)
    int rows, out_height, out_width;             // what is written: (groups * rows, out_height, out_width, batch)
    int kernel_h, kernel_w, stride_h, stride_w, top, left, dilation_h, dilation_w;
};

#define PROBLEM                                                                                                     \
    int transposed, int groups, int channels, int height, int width, int batch, int rows, int out_height,           \
        int out_width, int kernel_h, int kernel_w, int stride_h, int stride_w, int top, int left, int dilation_h,   \
        int dilation_w
#define THE_PROBLEM                                                                                                 \
    Problem {                                                                                                       \
        transposed, groups, channels, height, width, batch, rows, out_height, out_width, kernel_h, kernel_w,        \
            stride_h, stride_w, top, left, dilation_h, dilation_w                                                   \
    }

// One axis of a correlation: tap t of position i reads at i * stride + offset + t * dilation.
struct Axis {
    int positions, taps, stride, offset, dilation;
    int first_out, out_step;  // position i is written to first_out + i * out_step
    int first_tap, tap_step;  // tap t is tap first_tap + t * tap_step of the kernel
};

// The input gradient is a correlation too, one for each residue of the position modulo the stride (a "phase"):
//
//     dx[h] = sum of w[t] dy[(h + pad - t * dilation) / stride] over the taps t where the division is exact.
//
// With h = phase + i * stride it is exact for the same taps at every i: each tap_step-th from first_tap on. They read
// dy at i + offset, then a (negative) dilation further, ...: no product is wasted on a position that no window hits.
__device__ inline Axis make_axis(int transposed, int phase, int out, int kernel, int stride, int pad, int dilation) {
    if (!transposed) return {out, kernel, stride, -pad, dilation, 0, 1, 0, 1};
    int step = 1, tap = 0;
    while (step * dilation % stride != 0) step++;
    while (tap < step && (phase + pad - tap * dilation) % stride != 0) tap++;
    int taps = tap < step && tap < kernel ? (kernel - 1 - tap) / step + 1 : 0;
    int positions = (out - phase + stride - 1) / stride, offset = (phase + pad - tap * dilation) / stride;
    return {positions, taps, 1, offset, -(step * dilation / stride), phase, stride, tap, step};
}

__device__ inline Axis vertical(const Problem& g, int phase) {
    return make_axis(g.transposed, phase / g.stride_w, g.out_height, g.kernel_h, g.stride_h, g.top, g.dilation_h);
}

__device__ inline Axis horizontal(const Problem& g, int phase) {
    return make_axis(g.transposed, phase % g.stride_w, g.out_width, g.kernel_w, g.stride_w, g.left, g.dilation_w);
}

// The digits of a number, (first * radix2 + second) * radix3 + third, counted up in constant steps without a division.
struct Walk {
    int first, second, third, radix2, radix3, step1, step2, step3;
    __device__ Walk(int start, int step, int radix2, int radix3)
        : first(start / radix3 / radix2), second(start / radix3 % radix2), third(start % radix3), radix2(radix2),
          radix3(radix3), step1(step / radix3 / radix2), step2(step / radix3 % radix2), step3(step % radix3) {}
    __device__ void next() {
        third += step3;
        int carry = third >= radix3;
        third -= carry ? radix3 : 0;
        second += step2 + carry;
        carry = second >= radix2;
        second -= carry ? radix2 : 0;
        first += step1 + carry;
    }
};

// ----------------------------------------------------------------------------------------- products on Tensor Cores

constexpr int DEPTH = 32;  // of the product, per stage: how much of the sum is in shared memory at once
constexpr int STAGES = 3;  // one is multiplied while the copies into the others are under way

// A block computes M x N of the result; its warps split that WARPS_M x WARPS_N.
template <int M_, int N_, int WARPS_M, int WARPS_N_>
struct Tile {
    static constexpr int M = M_, N = N_, WARPS_N = WARPS_N_, THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int WARP_M = M / WARPS_M, WARP_N = N / WARPS_N;  // of one warp
    static constexpr int STAGE = (M + N) * DEPTH;                     // halves in shared memory: both operands
    typedef float Accumulators[WARP_M / 16][WARP_N / 8][4];
};

// Where (row, column) of an operand with rows of ROW halves lies in shared memory. Pieces of 8 halves trade places
// within their row, so that ldmatrix, which reads 8 rows at one column, finds them in 8 different groups of banks.
template <int ROW>
__device__ inline int place(int row, int column) {
    int key = ROW == 32 ? row / 2 % 4 : row % 8;
    return row * ROW + ((column / 8 ^ key) * 8 + column % 8);
}

// d += a b over DEPTH, for this warp's part. a: [M][DEPTH]; b: [DEPTH][N], or, where DEEP, [N][DEPTH].
template <class Tile, bool DEEP>
__device__ inline void multiply(typename Tile::Accumulators& d, const half* a, const half* b) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = warp / Tile::WARPS_N * Tile::WARP_M, column = warp % Tile::WARPS_N * Tile::WARP_N;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        unsigned fragment_a[Tile::WARP_M / 16][4], fragment_b[Tile::WARP_N / 16][4];
#pragma unroll
        for (int i = 0; i < Tile::WARP_M / 16; i++)
            ldmatrix_x4(fragment_a[i], a + place<DEPTH>(row + 16 * i + lane % 16, k + lane / 16 * 8));
#pragma unroll
        for (int j = 0; j < Tile::WARP_N / 16; j++) {
            if constexpr (DEEP)
                ldmatrix_x4(fragment_b[j],
                            b + place<DEPTH>(column + 16 * j + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8));
            else
                ldmatrix_x4_trans(fragment_b[j], b + place<Tile::N>(k + lane % 16, column + 16 * j + lane / 16 * 8));
        }
#pragma unroll
        for (int i = 0; i < Tile::WARP_M / 16; i++)
#pragma unroll
            for (int j = 0; j < Tile::WARP_N / 8; j++)
                // rounds: products of FP16 in FP32 accumulators
                mma_16816(d[i][j], fragment_a[i], fragment_b[j / 2][j % 2 * 2], fragment_b[j / 2][j % 2 * 2 + 1]);
    }
}

// d = the product over `steps` times DEPTH. load(a, b) starts the copies of the next step into a stage.
template <class Tile, bool DEEP, class Load>
__device__ inline void product(typename Tile::Accumulators& d, half* shared, int steps, Load load) {
#pragma unroll
    for (int i = 0; i < Tile::WARP_M / 16; i++)
#pragma unroll
        for (int j = 0; j < Tile::WARP_N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) d[i][j][e] = 0.0f;
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) load(shared + s * Tile::STAGE, shared + s * Tile::STAGE + Tile::M * DEPTH);
        cp_async_commit();
    }
    int full = 0, empty = STAGES - 1;
    for (int s = 0; s < steps; s++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // all copies of this step are there, and all have read the stage that is loaded next
        half* next = shared + empty * Tile::STAGE;
        if (s + STAGES - 1 < steps) load(next, next + Tile::M * DEPTH);
        cp_async_commit();  // also an empty group, so that the count of groups stays right
        const half* now = shared + full * Tile::STAGE;
        multiply<Tile, DEEP>(d, now, now + Tile::M * DEPTH);
        empty = full;
        full = full + 1 == STAGES ? 0 : full + 1;
    }
    __syncthreads();  // shared memory is free again
}

// Whether a thread of a tile with fewer rows than its threads copy at once has row r to copy.
template <class Tile, int ROWS>
__device__ inline bool has_row(int r) {
    return Tile::M % ROWS == 0 || r < Tile::M;
}

// Call use(row, column, d, d') for each pair of neighbours in a row of the result that this thread holds.
template <class Tile, class Use>
__device__ inline void each_pair(const typename Tile::Accumulators& d, Use use) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = warp / Tile::WARPS_N * Tile::WARP_M + lane / 4;
    int column = warp % Tile::WARPS_N * Tile::WARP_N + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < Tile::WARP_M / 16; i++)
#pragma unroll
        for (int below = 0; below < 2; below++)
#pragma unroll
            for (int j = 0; j < Tile::WARP_N / 8; j++)
                use(row + 16 * i + 8 * below, column + 8 * j, d[i][j][2 * below], d[i][j][2 * below + 1]);
}

// Start the copy of WIDTH halves into shared memory, or of zeros.
template <int WIDTH>
__device__ inline void copy(half* to, const half* from, bool valid) {
    if constexpr (WIDTH > 1)
        cp_async<2 * WIDTH>(to, from, valid);
    else
        *to = valid ? *from : half();
}

// y[o, p] = b[o] + sum over k = (c, i, j) of w[o, k] columns[k, p], per group and, transposed, per phase (blockIdx.z).
// w: (phases, groups, rows, ld), the columns of w beyond k filled up with zeros to ld, a multiple of 8 (`arrange`).
// Transposed, x is dy, y is dx (or the y of a transposed convolution) and o its channels.
//
// parts: null, or FP32 arrays like y, one for each `length` terms (a multiple of DEPTH; blockIdx.y), for `sum_parts`.
// That is for one phase only: the positions of several lie apart in y.
//
// Outside of x, zeros are gathered, as the definition pads with them. Where the definition of the input gradient has no
// product at all, one with such a zero is added: it makes a difference where a weight is infinite or nan, nowhere else.
template <class Tile, int WIDTH>
__device__ inline void correlate(half* shared, const half* x, const half* w, const half* bias, R* y, float* parts,
                                 int length, int ld, const Problem& g) {
    int group = blockIdx.z % g.groups, phase = blockIdx.z / g.groups;
    Axis down = vertical(g, phase), right = horizontal(g, phase);
    int positions = down.positions * right.positions * g.batch, row_tiles = (g.rows + Tile::M - 1) / Tile::M;
    // blocks that run at the same time share their columns: those are more memory than the weights
    int row0 = blockIdx.x % row_tiles * Tile::M, p0 = blockIdx.x / row_tiles * Tile::N;
    if (p0 >= positions) return;  // another phase has more
    x += group * g.channels * g.height * g.width * g.batch;
    w += static_cast<long long>(blockIdx.z) * g.rows * ld;

    // A thread copies (and in the end writes) always the same positions of the tile.
    constexpr int ACROSS = Tile::N / WIDTH;
    int column = threadIdx.x % ACROSS * WIDTH, p = p0 + column;
    int n = p % g.batch, ow = p / g.batch % right.positions, oh = p / g.batch / right.positions;
    int top = p < positions ? oh * down.stride + down.offset : -(1 << 30);  // so that all taps are outside
    int left = ow * right.stride + right.offset;

    int first = blockIdx.y * length, terms = min(g.channels * down.taps * right.taps - first, length);
    int depth = first + threadIdx.x % 4 * 8;  // in w
    Walk k(first + threadIdx.x / ACROSS, Tile::THREADS / ACROSS, max(down.taps, 1), max(right.taps, 1));
    auto load = [&](half* a, half* b) {
#pragma unroll
        for (int i = 0; i < Tile::M; i += Tile::THREADS / 4) {
            int r = threadIdx.x / 4 + i;
            if (!has_row<Tile, Tile::THREADS / 4>(r)) continue;
            bool inside = row0 + r < g.rows && depth < ld;
            cp_async<16>(a + place<DEPTH>(r, threadIdx.x % 4 * 8), inside ? w + ((row0 + r) * ld + depth) : w, inside);
        }
        depth += DEPTH;
#pragma unroll
        for (int i = 0; i < DEPTH; i += Tile::THREADS / ACROSS) {
            int ih = top + k.second * down.dilation, iw = left + k.third * right.dilation;
            bool seen = k.first < g.channels && static_cast<unsigned>(ih) < static_cast<unsigned>(g.height) &&
                        static_cast<unsigned>(iw) < static_cast<unsigned>(g.width);
            const half* from = seen ? x + (((k.first * g.height + ih) * g.width + iw) * g.batch + n) : x;
            copy<WIDTH>(b + place<Tile::N>(threadIdx.x / ACROSS + i, column), from, seen);
            k.next();
        }
    };
    typename Tile::Accumulators d;
    product<Tile, false>(d, shared, (terms + DEPTH - 1) / DEPTH, load);

    int plane = g.out_height * g.out_width * g.batch, row = group * g.rows + row0;
    if (parts != nullptr) {
        parts += (static_cast<long long>(blockIdx.y) * g.groups * g.rows + row) * plane + p0;
        each_pair<Tile>(d, [&](int r, int c, float one, float other) {
            if (row0 + r >= g.rows) return;
            if (p0 + c < positions) parts[r * plane + c] = one;
            if (p0 + c + 1 < positions) parts[r * plane + c + 1] = other;
        });
        return;
    }

    // Add the bias, round, and pass through shared memory, so that rows are written in runs. 8 halves more per row put
    // the 8 rows that a warp writes at once into different banks. What an observer sees unrounded goes straight to y.
    constexpr int ROW = Tile::N + 8;
    y += row * plane;
    auto at = [&](int oh, int ow, int n) {
        return ((down.first_out + oh * down.out_step) * g.out_width + right.first_out + ow * right.out_step) * g.batch + n;
    };
    each_pair<Tile>(d, [&](int r, int c, float one, float other) {
        float b = bias != nullptr && row0 + r < g.rows ? widen(bias[row + r]) : 0.0f;
        if constexpr (sizeof(R) > sizeof(T)) {
            for (int q = p0 + c; q < min(p0 + c + 2, positions) && row0 + r < g.rows; q++) {
                int i = q / g.batch, to = at(i / right.positions, i % right.positions, q % g.batch);
                store(y + r * plane + to, (q == p0 + c ? one : other) + b);  // rounds: never, R is float
            }
        } else {
            Few<half, 2> pair;
            store(&pair.at[0], one + b);  // rounds: the result, once the bias is added
            store(&pair.at[1], other + b);  // rounds: the result, once the bias is added
            *reinterpret_cast<Few<half, 2>*>(shared + r * ROW + c) = pair;
        }
    });
    if constexpr (sizeof(R) > sizeof(T)) return;
    __syncthreads();
    if (p >= positions) return;
    y += at(oh, ow, n);
    for (int r = threadIdx.x / ACROSS; r < Tile::M && row0 + r < g.rows; r += Tile::THREADS / ACROSS)
        *reinterpret_cast<Few<half, WIDTH>*>(y + r * plane) =
            *reinterpret_cast<const Few<half, WIDTH>*>(shared + r * ROW + column);
}

// The weights as `correlate` reads them: to[phase, group, row, k] for k = (c, i, j) over the taps of the phase, zeros
// up to ld. w: (groups * rows, channels, kernel) or, transposed, (groups * channels, rows, kernel).
extern "C" __global__ void __launch_bounds__(256) arrange(const T* w, T* to, int ld, PROBLEM) {
    Problem g = THE_PROBLEM;
    int group = blockIdx.z % g.groups, phase = blockIdx.z / g.groups;
    Axis down = vertical(g, phase), right = horizontal(g, phase);
    to += static_cast<long long>(blockIdx.z) * g.rows * ld;
    for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < g.rows * ld; e += gridDim.x * blockDim.x) {
        int row = e / ld, k = e % ld;
        T value = T();
        if (k < g.channels * down.taps * right.taps) {
            int j = right.first_tap + k % right.taps * right.tap_step;
            int i = down.first_tap + k / right.taps % down.taps * down.tap_step;
            int c = k / right.taps / down.taps;
            int pair = g.transposed ? (group * g.channels + c) * g.rows + row : (group * g.rows + row) * g.channels + c;
            value = w[(pair * g.kernel_h + i) * g.kernel_w + j];
        }
        to[e] = value;
    }
}

// dw[o, k] = sum of dy[o, p] columns[k, p], per group (blockIdx.z). dy: (groups * rows, P); x: what was convolved.
// The sum over p is long and the result small, so mostly only a split of the sum gives work to the whole GPU: then
// parts (splits, groups, rows, K), in FP32, each take the sum of `length` positions (a multiple of DEPTH; blockIdx.y).
template <class Tile, int WIDTH>
__device__ inline void weight_gradient(half* shared, const half* x, const half* dy, R* dw, float* parts, int length,
                                       const Problem& g) {
    int group = blockIdx.z;
    int positions = g.out_height * g.out_width * g.batch, columns = g.channels * g.kernel_h * g.kernel_w;
    int row_tiles = (g.rows + Tile::M - 1) / Tile::M;
    int row0 = blockIdx.x % row_tiles * Tile::M, column0 = blockIdx.x / row_tiles * Tile::N;
    int first = blockIdx.y * length, last = min(first + length, positions);
    x += group * g.channels * g.height * g.width * g.batch;
    dy += (group * g.rows + row0) * positions;

    // Where each of the tile's columns k begins to read: channel and tap
    struct Start {
        int channel, top, left, unused;
    };
    Start* starts = reinterpret_cast<Start*>(shared + STAGES * Tile::STAGE);
    for (int r = threadIdx.x; r < Tile::N; r += Tile::THREADS) {
        int k = column0 + r, j = k % g.kernel_w, i = k / g.kernel_w % g.kernel_h, c = k / g.kernel_w / g.kernel_h;
        starts[r] = {c * g.height, k < columns ? i * g.dilation_h - g.top : -(1 << 30), j * g.dilation_w - g.left, 0};
    }
    __syncthreads();

    // A thread copies always the same depth of a stage, hence the same positions for all rows and columns.
    constexpr int ACROSS = DEPTH / WIDTH;
    int depth = threadIdx.x % ACROSS * WIDTH, p = first + depth;
    Walk at(p, DEPTH, g.out_width, g.batch);
    auto load = [&](half* a, half* b) {
        bool inside = p < last;
#pragma unroll
        for (int i = 0; i < Tile::M; i += Tile::THREADS / ACROSS) {
            int r = threadIdx.x / ACROSS + i;
            if (!has_row<Tile, Tile::THREADS / ACROSS>(r)) continue;
            bool valid = inside && row0 + r < g.rows;
            copy<WIDTH>(a + place<DEPTH>(r, depth), valid ? dy + (r * positions + p) : dy, valid);
        }
        int top = inside ? at.first * g.stride_h : -(1 << 30), left = at.second * g.stride_w;
#pragma unroll
        for (int i = 0; i < Tile::N; i += Tile::THREADS / ACROSS) {
            int r = threadIdx.x / ACROSS + i;
            Start start = starts[r];
            int ih = top + start.top, iw = left + start.left;
            bool seen = static_cast<unsigned>(ih) < static_cast<unsigned>(g.height) &&
                        static_cast<unsigned>(iw) < static_cast<unsigned>(g.width);
            const half* from = seen ? x + (((start.channel + ih) * g.width + iw) * g.batch + at.third) : x;
            copy<WIDTH>(b + place<DEPTH>(r, depth), from, seen);
        }
        p += DEPTH;
        at.next();
    };
    typename Tile::Accumulators d;
    product<Tile, true>(d, shared, (last - first + DEPTH - 1) / DEPTH, load);

    long long start = (static_cast<long long>(blockIdx.y) * g.groups + group) * g.rows * columns;
    auto write = [&](int r, int c, float value) {
        if (row0 + r >= g.rows || column0 + c >= columns) return;
        long long to = start + (row0 + r) * columns + column0 + c;
        if (parts != nullptr)
            parts[to] = value;
        else
            store(dw + to, value);  // rounds: the weight gradient, where one block sums all of it
    };
    each_pair<Tile>(d, [&](int r, int c, float one, float other) {
        write(r, c, one);
        write(r, c + 1, other);
    });
}

// One entry per shape of the tile and per number of images that lie together at an address divisible by their size
// (WIDTH). conv.py has the same table, and says what each is for.
typedef Tile<128, 128, 2, 2> Tile128x128;
typedef Tile<64, 128, 2, 2> Tile64x128;
typedef Tile<32, 128, 1, 4> Tile32x128;
typedef Tile<16, 128, 1, 4> Tile16x128;
typedef Tile<64, 64, 2, 2> Tile64x64;

#define FOR_Y const half* x, const half* w, const half* bias, R* y, float* parts, int length, int ld, PROBLEM
#define RUN_Y(TILE, WIDTH)                                                                                          \
    DYNAMIC_SHARED(shared);                                                                                         \
    if constexpr (sizeof(T) == 2)                                                                                   \
    correlate<TILE, WIDTH>(reinterpret_cast<half*>(shared), x, w, bias, y, parts, length, ld, THE_PROBLEM)

extern "C" __global__ void __launch_bounds__(128) correlate_128x128(FOR_Y) { RUN_Y(Tile128x128, 8); }
extern "C" __global__ void __launch_bounds__(128) correlate_64x128(FOR_Y) { RUN_Y(Tile64x128, 8); }
extern "C" __global__ void __launch_bounds__(128) correlate_32x128(FOR_Y) { RUN_Y(Tile32x128, 8); }
extern "C" __global__ void __launch_bounds__(128) correlate_16x128(FOR_Y) { RUN_Y(Tile16x128, 8); }
extern "C" __global__ void __launch_bounds__(128) correlate_64x64(FOR_Y) { RUN_Y(Tile64x64, 8); }

extern "C" __global__ void __launch_bounds__(128) correlate_128x128_by_4(FOR_Y) { RUN_Y(Tile128x128, 4); }
extern "C" __global__ void __launch_bounds__(128) correlate_16x128_by_4(FOR_Y) { RUN_Y(Tile16x128, 4); }
extern "C" __global__ void __launch_bounds__(128) correlate_64x64_by_4(FOR_Y) { RUN_Y(Tile64x64, 4); }
extern "C" __global__ void __launch_bounds__(128) correlate_16x128_by_1(FOR_Y) { RUN_Y(Tile16x128, 1); }
extern "C" __global__ void __launch_bounds__(128) correlate_64x64_by_1(FOR_Y) { RUN_Y(Tile64x64, 1); }

#define FOR_DW const half* x, const half* dy, R* dw, float* parts, int length, PROBLEM
#define RUN_DW(TILE, WIDTH)                                                                                         \
    DYNAMIC_SHARED(shared);                                                                                         \
    if constexpr (sizeof(T) == 2)                                                                                   \
    weight_gradient<TILE, WIDTH>(reinterpret_cast<half*>(shared), x, dy, dw, parts, length, THE_PROBLEM)

extern "C" __global__ void __launch_bounds__(128) weight_gradient_128x128(FOR_DW) { RUN_DW(Tile128x128, 8); }
extern "C" __global__ void __launch_bounds__(128) weight_gradient_64x128(FOR_DW) { RUN_DW(Tile64x128, 8); }
extern "C" __global__ void __launch_bounds__(128) weight_gradient_32x128(FOR_DW) { RUN_DW(Tile32x128, 8); }
extern "C" __global__ void __launch_bounds__(128) weight_gradient_16x128(FOR_DW) { RUN_DW(Tile16x128, 8); }
extern "C" __global__ void __launch_bounds__(128) weight_gradient_64x64(FOR_DW) { RUN_DW(Tile64x64, 8); }

extern "C" __global__ void __launch_bounds__(128) weight_gradient_128x128_by_4(FOR_DW) { RUN_DW(Tile128x128, 4); }
extern "C" __global__ void __launch_bounds__(128) weight_gradient_16x128_by_4(FOR_DW) { RUN_DW(Tile16x128, 4); }
extern "C" __global__ void __launch_bounds__(128) weight_gradient_64x64_by_4(FOR_DW) { RUN_DW(Tile64x64, 4); }
extern "C" __global__ void __launch_bounds__(128) weight_gradient_16x128_by_1(FOR_DW) { RUN_DW(Tile16x128, 1); }
extern "C" __global__ void __launch_bounds__(128) weight_gradient_64x64_by_1(FOR_DW) { RUN_DW(Tile64x64, 1); }

// ------------------------------------------------------------------------------------------------- parts of a sum

// to[e] = bias[e / run] + the sum of `splits` arrays of `count` elements, rounded once. A block has 32 elements: each
// of its warps adds up every so many-th part, and the first adds what they have, always in the same order.
extern "C" __global__ void __launch_bounds__(256)
    sum_parts(const float* parts, const T* bias, R* to, int splits, int count, int run) {
    __shared__ float sums[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, e = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (e < count)
        for (int s = warp; s < splits; s += warps) sum += parts[static_cast<long long>(s) * count + e];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || e >= count) return;
    for (int w = 1; w < warps; w++) sum += sums[w][lane];
    store(to + e, bias != nullptr ? sum + widen(bias[e / run]) : sum);  // rounds: the sum of all splits and the bias
}
