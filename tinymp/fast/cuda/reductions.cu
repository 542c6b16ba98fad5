// Sums, maxima and minima over any axes of a dense array, in FP32 and in a fixed order (reductions.py).
//
// In memory, axes that are kept (K) and reduced (R) alternate; the kernels know two such orders, with lengths that may
// be 1. `rows`: K0 R0 K1 R1, neighbours in memory belong to the same sum. `columns`: R0 K0 R1 K1, neighbours belong to
// different sums. An output is numbered o = k0 * K1 + k1, and the elements of its sum r = r0 * R1 + r1.
//
// y[o * splits + s] is the result over part s of the elements, divided by `divisor`; blockIdx.y is s. A thread combines
// CHAIN elements at a time, and then their results: no chain of additions is long.

enum { SUM, MAX, MIN };

// A walk over r = start, start + step, ... that keeps r0 = r / R1 and r1 = r % R1 without dividing again.
struct Walk {
    long long r0, r1, step0, step1, R1;

    __device__ Walk(long long start, long long step, long long R1)
        : r0(start / R1), r1(start % R1), step0(step / R1), step1(step % R1), R1(R1) {}
    __device__ void next() {
        r0 += step0;
        r1 += step1;
        if (r1 >= R1) r1 -= R1, r0++;
    }
};

template <class How>
__device__ inline float combine_pack(const Pack& x) {  // pairwise
    float at[PACK];
#pragma unroll
    for (int i = 0; i < PACK; i++) at[i] = widen(x.at[i]);
#pragma unroll
    for (int n = PACK / 2; n > 0; n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++) at[i] = How::combine(at[i], at[i + n]);
    return at[0];
}

// `lanes` neighbouring threads work on one output: a power of two up to 32, or the whole block of 256. WIDTH elements at
// a time: PACK, where R1 and the address of x are multiples of it, or 1. Sizes count such groups of elements.
template <class How, int WIDTH>
__device__ inline void rows(const T* x, float* y, long long outputs, long long R0, long long K1, long long R1,
                            int lanes, float divisor, float* scratch) {
    int lane = threadIdx.x % lanes;
    long long o = static_cast<long long>(blockIdx.x) * (blockDim.x / lanes) + threadIdx.x / lanes;
    float total = How::none;
    if (o < outputs) {
        R1 /= WIDTH;
        long long n = R0 * R1, part = (n + gridDim.y - 1) / gridDim.y, end = min(n, (blockIdx.y + 1) * part);
        long long k0 = o / K1, k1 = o % K1, start = blockIdx.y * part + lane;
        Walk walk(start, lanes, R1);
        for (long long r = start; r < end;) {
            float block = How::none;
            long long stop = min(end, r + CHAIN * lanes);
#pragma unroll 4
            for (; r < stop; r += lanes) {
                const T* from = x + (((k0 * R0 + walk.r0) * K1 + k1) * R1 + walk.r1) * WIDTH;
                if constexpr (WIDTH > 1)
                    block = How::combine(block, combine_pack<How>(Pack(from)));
                else
                    block = How::combine(block, widen(*from));
                walk.next();
            }
            total = How::combine(total, block);
        }
    }
    total = reduce_lanes<How>(total, lanes, scratch);  // threads without an output take part  // rounds: FP32 sums
    if (lane == 0 && o < outputs) y[o * gridDim.y + blockIdx.y] = total / divisor;
}

// 4 blocks at once leave 64 registers to a thread; left to itself, the assembler spills for sm_120 to start a fifth.
extern "C" __global__ void __launch_bounds__(256, 4)
    reduce_rows(const T* x, float* y, int how, long long outputs, long long R0, long long K1, long long R1, int lanes,
                int width, float divisor) {
    __shared__ float scratch[32];
    if (how == SUM && width > 1)
        rows<Sum, PACK>(x, y, outputs, R0, K1, R1, lanes, divisor, scratch);
    else if (how == SUM)
        rows<Sum, 1>(x, y, outputs, R0, K1, R1, lanes, divisor, scratch);
    else if (how == MAX && width > 1)
        rows<Max, PACK>(x, y, outputs, R0, K1, R1, lanes, divisor, scratch);
    else if (how == MAX)
        rows<Max, 1>(x, y, outputs, R0, K1, R1, lanes, divisor, scratch);
    else if (width > 1)
        rows<Min, PACK>(x, y, outputs, R0, K1, R1, lanes, divisor, scratch);
    else
        rows<Min, 1>(x, y, outputs, R0, K1, R1, lanes, divisor, scratch);
}

// A block is a grid of threads, `across` of them side by side, each with WIDTH neighbouring outputs, and 256 / across
// below one another, which share their elements and are combined at the end. PACK needs K1 and the address of x to be
// multiples of it.
template <class How, int WIDTH>
__device__ inline void columns(const T* x, float* y, long long outputs, long long K0, long long R0, long long R1,
                               long long K1, int across, float divisor, float* scratch) {
    int down = blockDim.x / across, row = threadIdx.x / across;
    long long o = (static_cast<long long>(blockIdx.x) * across + threadIdx.x % across) * WIDTH;
    float total[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) total[i] = How::none;
    if (o < outputs) {
        long long n = R0 * R1, part = (n + gridDim.y - 1) / gridDim.y, end = min(n, (blockIdx.y + 1) * part);
        long long k0 = o / K1, k1 = o % K1, start = blockIdx.y * part + row;
        Walk walk(start, down, R1);
        for (long long r = start; r < end;) {
            float block[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; i++) block[i] = How::none;
            long long stop = min(end, r + CHAIN * down);
#pragma unroll 4
            for (; r < stop; r += down) {
                const T* from = x + ((walk.r0 * K0 + k0) * R1 + walk.r1) * K1 + k1;
                if constexpr (WIDTH > 1) {
                    Pack pack(from);
#pragma unroll
                    for (int i = 0; i < WIDTH; i++) block[i] = How::combine(block[i], widen(pack.at[i]));
                } else {
                    block[0] = How::combine(block[0], widen(*from));
                }
                walk.next();
            }
#pragma unroll
            for (int i = 0; i < WIDTH; i++) total[i] = How::combine(total[i], block[i]);
        }
    }
    for (int half_of = down / 2; half_of > 0; half_of /= 2) {  // the upper half is combined into the lower
#pragma unroll
        for (int i = 0; i < WIDTH; i++) scratch[i * blockDim.x + threadIdx.x] = total[i];
        __syncthreads();
        if (row < half_of)
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                total[i] = How::combine(total[i], scratch[i * blockDim.x + threadIdx.x + half_of * across]);
        __syncthreads();
    }
    if (row == 0 && o < outputs)
#pragma unroll
        for (int i = 0; i < WIDTH; i++) y[(o + i) * gridDim.y + blockIdx.y] = total[i] / divisor;
}

extern "C" __global__ void __launch_bounds__(256) reduce_columns(const T* x, float* y, int how, long long outputs,
                                                                 long long K0, long long R0, long long R1,
                                                                 long long K1, int across, int width, float divisor) {
    __shared__ float scratch[256 * PACK];
    if (how == SUM && width > 1)
        columns<Sum, PACK>(x, y, outputs, K0, R0, R1, K1, across, divisor, scratch);
    else if (how == SUM)
        columns<Sum, 1>(x, y, outputs, K0, R0, R1, K1, across, divisor, scratch);
    else if (how == MAX && width > 1)
        columns<Max, PACK>(x, y, outputs, K0, R0, R1, K1, across, divisor, scratch);
    else if (how == MAX)
        columns<Max, 1>(x, y, outputs, K0, R0, R1, K1, across, divisor, scratch);
    else if (width > 1)
        columns<Min, PACK>(x, y, outputs, K0, R0, R1, K1, across, divisor, scratch);
    else
        columns<Min, 1>(x, y, outputs, K0, R0, R1, K1, across, divisor, scratch);
}
