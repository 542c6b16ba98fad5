// Softmax and log-softmax along rows x (rows, n) in memory, one block for each.
//
// A kernel reads the storage dtype T, exactly, computes and sums in FP32, and writes each result once, as R.

constexpr int WARP = 32, MOST = 1024;  // threads of a block, at most

struct Total {
    float sum = 0.0f;
    __device__ static Total combine(Total a, Total b) { return {a.sum + b.sum}; }
};

// x of all threads of a block together. scratch: a float for each warp.
template <class How>
__device__ inline float over_block(float x, float* scratch) {
    x = warp_reduce<How>(x);  // rounds: a sum over the threads of a warp, FP32
    __syncthreads();  // an earlier result has been read
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    x = How::none;
    for (int i = threadIdx.x % WARP; i < blockDim.x / WARP; i += WARP) x = How::combine(x, scratch[i]);
    return warp_reduce<How>(x);  // rounds: a sum over the warps of a block, FP32
}

// The sum of term(i) for i < n. No thread adds more than 64 terms, or sums of terms, one after the other.
template <class Term>
__device__ inline float sum_over(long long n, float* scratch, Term term) {
    InBlocks<Total, 3> mine;  // rounds: `reduce` over what a thread sees, FP32
    for (long long i = threadIdx.x; i < n; i += blockDim.x) mine.add({term(i)});
    return over_block<Sum>(mine.total().sum, scratch);  // rounds: `reduce` over a row or channel: FP32 sums
}

__device__ inline float max_over(const T* x, int n, float* scratch) {
    float most = Max::none;
    for (int i = threadIdx.x; i < n; i += blockDim.x) most = Max::combine(most, widen(x[i]));
    return over_block<Max>(most, scratch);
}

#define FOR_ROW for (int i = threadIdx.x; i < n; i += blockDim.x)

__device__ inline long long row_start(int n) { return static_cast<long long>(blockIdx.x) * n; }

// y = exp(x - max x) / sum exp(x - max x)
extern "C" __global__ void __launch_bounds__(MOST) softmax_rows(const T* x, R* y, int n) {
    __shared__ float scratch[WARP];
    x += row_start(n), y += row_start(n);
    float most = max_over(x, n, scratch);
    float total = sum_over(n, scratch, [&](long long i) { return expf(widen(x[i]) - most); });
    FOR_ROW store(y + i, expf(widen(x[i]) - most) / total);  // rounds: `store`: y, once
}

// dx = y (dy - sum y dy)
extern "C" __global__ void __launch_bounds__(MOST) softmax_rows_backward(const T* y, const T* dy, R* dx, int n) {
    __shared__ float scratch[WARP];
    y += row_start(n), dy += row_start(n), dx += row_start(n);
    float total = sum_over(n, scratch, [&](long long i) { return widen(y[i]) * widen(dy[i]); });
    FOR_ROW store(dx + i, widen(y[i]) * (widen(dy[i]) - total));  // rounds: `store`: dx, once
}

// y = x - max x - ln sum exp(x - max x); the largest of a row and its sum are kept
extern "C" __global__ void __launch_bounds__(MOST) log_softmax_rows(
    const T* x, R* y, float* most, float* sums, int n) {
    __shared__ float scratch[WARP];
    x += row_start(n), y += row_start(n);
    float m = max_over(x, n, scratch);
    float s = sum_over(n, scratch, [&](long long i) { return expf(widen(x[i]) - m); }), log_s = logf(s);
    if (threadIdx.x == 0) most[blockIdx.x] = m, sums[blockIdx.x] = s;
    FOR_ROW store(y + i, widen(x[i]) - m - log_s);  // rounds: `store`: y, once
}

// dx = dy - softmax(x) sum dy
extern "C" __global__ void __launch_bounds__(MOST) log_softmax_rows_backward(
    const T* x, const T* dy, const float* most, const float* sums, R* dx, int n) {
    __shared__ float scratch[WARP];
    x += row_start(n), dy += row_start(n), dx += row_start(n);
    float total = sum_over(n, scratch, [&](long long i) { return widen(dy[i]); });
    float m = most[blockIdx.x], share = total / sums[blockIdx.x];
    FOR_ROW store(dx + i, widen(dy[i]) - expf(widen(x[i]) - m) * share);  // rounds: `store`: dx, once
}

