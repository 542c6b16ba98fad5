// The base's kernels: what sums along rows or channels, and what moves pixels, in one launch each. ops/base.py says which
// op uses which. All else on a GPU is CuPy's, by the ops' definitions, and cuBLAS's (gpu.py).
//
// Every kernel reads the storage dtype T, exactly, computes and sums in FP32, and writes each result once, as R.

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

// ------------------------------------------------------------------- rows: x (rows, n) in memory, one block for each

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

// y = (x - mean) rstd w + b. Two passes: the variance is the mean of (x - mean)^2, in which nothing cancels
extern "C" __global__ void __launch_bounds__(MOST) layer_norm_rows(
    const T* x, const float* w, const float* b, R* y, float* mean, float* rstd, int n, float eps) {
    __shared__ float scratch[WARP];
    x += row_start(n), y += row_start(n);
    float m = sum_over(n, scratch, [&](long long i) { return widen(x[i]); }) / n;
    float squares = sum_over(n, scratch, [&](long long i) { return (widen(x[i]) - m) * (widen(x[i]) - m); });
    float r = 1.0f / sqrtf(squares / n + eps);
    if (threadIdx.x == 0) mean[blockIdx.x] = m, rstd[blockIdx.x] = r;
    FOR_ROW store(y + i, (widen(x[i]) - m) * r * (w ? w[i] : 1.0f) + (b ? b[i] : 0.0f));  // rounds: `store`: y, once
}

// dx = rstd (g - mean g - xhat mean(g xhat)), with g = dy w and xhat = (x - mean) rstd
extern "C" __global__ void __launch_bounds__(MOST) layer_norm_rows_backward(
    const T* x, const T* dy, const float* w, const float* mean, const float* rstd, R* dx, int n) {
    __shared__ float scratch[WARP];
    x += row_start(n), dy += row_start(n), dx += row_start(n);
    float m = mean[blockIdx.x], r = rstd[blockIdx.x];
    auto g = [&](long long i) { return widen(dy[i]) * (w ? w[i] : 1.0f); };
    auto xhat = [&](long long i) { return (widen(x[i]) - m) * r; };
    float mean_g = sum_over(n, scratch, g) / n;
    float mean_gx = sum_over(n, scratch, [&](long long i) { return g(i) * xhat(i); }) / n;
    FOR_ROW store(dx + i, (g(i) - mean_g - xhat(i) * mean_gx) * r);  // rounds: `store`: dx, once
}

// --------------------------------------- channels: x (outer, channels, inner) in memory, one block for each channel

struct Channel {  // its n elements in memory
    long long inner, step, start, n;
    __device__ Channel(long long outer, int channels, long long inner)
        : inner(inner), step(channels * inner), start(blockIdx.x * inner), n(outer * inner) {}
    __device__ long long operator[](long long i) const {
        return start + (n == inner ? i : i / inner * step + i % inner);
    }
};

#define FOR_CHANNEL for (long long i = threadIdx.x; i < at.n; i += blockDim.x)

// y = (x - mean) rstd w + b, with the mean and the (biased) variance of the channel, in two passes. `share` of the mean
// and of the unbiased variance goes into the running ones, where they are given
extern "C" __global__ void __launch_bounds__(MOST) batch_norm_channels(
    const T* x, const float* w, const float* b, R* y, float* mean, float* var, float* rstd, float* running_mean,
    float* running_var, long long* count, float share, long long outer, int channels, long long inner, float eps) {
    __shared__ float scratch[WARP];
    Channel at(outer, channels, inner);
    int c = blockIdx.x;
    float m = sum_over(at.n, scratch, [&](long long i) { return widen(x[at[i]]); }) / at.n;
    auto centered = [&](long long i) { return widen(x[at[i]]) - m; };
    float v = sum_over(at.n, scratch, [&](long long i) { return centered(i) * centered(i); }) / at.n;
    float r = 1.0f / sqrtf(v + eps);
    if (threadIdx.x == 0) {
        mean[c] = m, var[c] = v, rstd[c] = r;
        float unbiased = v * (at.n / (at.n - 1.0f));
        if (running_mean) running_mean[c] = (1.0f - share) * running_mean[c] + share * m;
        if (count && c == 0) ++*count;
        if (running_var) running_var[c] = (1.0f - share) * running_var[c] + share * unbiased;
    }
    float scale = w ? r * w[c] : r, shift = b ? b[c] : 0.0f;
    FOR_CHANNEL store(y + at[i], centered(i) * scale + shift);  // rounds: `store`: y, once
}

// db = sum dy, dw = sum dy xhat, dx = w rstd (dy - db / n - xhat dw / n)
extern "C" __global__ void __launch_bounds__(MOST) batch_norm_channels_backward(
    const T* x, const T* dy, const float* w, const float* mean, const float* rstd, R* dx, float* dw, float* db,
    long long outer, int channels, long long inner) {
    __shared__ float scratch[WARP];
    Channel at(outer, channels, inner);
    int c = blockIdx.x;
    float m = mean[c], r = rstd[c], scale = w ? r * w[c] : r;
    auto centered = [&](long long i) { return widen(x[at[i]]) - m; };
    float g = sum_over(at.n, scratch, [&](long long i) { return widen(dy[at[i]]); });
    float gx = sum_over(at.n, scratch, [&](long long i) { return widen(dy[at[i]]) * centered(i); }) * r;
    if (threadIdx.x == 0) dw[c] = gx, db[c] = g;
    float slope = scale * r * gx / -at.n, shift = scale * g / at.n;
    // rounds: `store`: dx, once
    FOR_CHANNEL store(dx + at[i], widen(dy[at[i]]) * scale + (centered(i) * slope - shift));
}

// ------------------------------------------------------------------------- windows of images x (C, H, W, N) in memory

#define GEOMETRY                                                                                                      \
    int C, int H, int W, int N, int OH, int OW, int kh, int kw, int sh, int sw, int top, int left, int dh, int dw

// columns (C, kh, kw, OH, OW, N): what each window sees, and 0 where it sees padding. A copy: nothing is rounded
template <class Index>
__device__ inline void images_to_columns_by(const T* x, T* columns, long long total, GEOMETRY) {
    for (long long e = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; e < total;
         e += static_cast<long long>(gridDim.x) * blockDim.x) {
        Index rest = static_cast<Index>(e) / N;
        int n = static_cast<Index>(e) % N, ow = rest % OW, oh = (rest /= OW) % OH, j = (rest /= OH) % kw;
        int i = (rest /= kw) % kh;
        long long c = rest / kh;
        int h = oh * sh - top + i * dh, w = ow * sw - left + j * dw;
        bool inside = h >= 0 && h < H && w >= 0 && w < W;
        columns[e] = inside ? x[((c * H + h) * W + w) * N + n] : T{};
    }
}

// Divisions of 64 bits take several times as long as those of 32: they are for more elements alone.
#define BY_SIZE(name, from, to) \
    if (total >> 32) name##_by<unsigned long long>(from, to, total, C, H, W, N, OH, OW, kh, kw, sh, sw, top, left, dh, dw); \
    else name##_by<unsigned>(from, to, total, C, H, W, N, OH, OW, kh, kw, sh, sw, top, left, dh, dw)

extern "C" __global__ void __launch_bounds__(MOST) images_to_columns(const T* x, T* columns, long long total, GEOMETRY) {
    BY_SIZE(images_to_columns, x, columns);
}

// x (C, H, W, N): each pixel is the sum, in FP32, of the places of columns that saw it, tap after tap
template <class Index>
__device__ inline void columns_to_images_by(const float* columns, float* x, long long total, GEOMETRY) {
    for (long long e = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; e < total;
         e += static_cast<long long>(gridDim.x) * blockDim.x) {
        Index rest = static_cast<Index>(e) / N;
        int n = static_cast<Index>(e) % N, w = rest % W, h = (rest /= W) % H;
        long long c = rest / H;
        float sum = 0.0f;
        for (int i = 0; i < kh; i++)
            for (int j = 0; j < kw; j++) {
                int down = h + top - i * dh, right = w + left - j * dw, oh = down / sh, ow = right / sw;
                if (down < 0 || right < 0 || down % sh || right % sw || oh >= OH || ow >= OW) continue;
                // rounds: the sum of the places where a pixel was read, FP32
                sum += columns[((((c * kh + i) * kw + j) * OH + oh) * OW + ow) * N + n];
            }
        x[e] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(MOST) columns_to_images(
    const float* columns, float* x, long long total, GEOMETRY) {
    BY_SIZE(columns_to_images, columns, x);
}

// ------------------------------- one step of an LSTM: `units` numbers, H of each row; a row of gates has i, f, g, o

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// z: the products with x;  m: those with the h before;  c: the state before
extern "C" __global__ void lstm_unit(const T* z, const float* m, const T* c, R* gates, R* cell, R* h, int units, int H) {
    int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= units) return;
    long long at = e / H * 4ll * H + e % H;
    auto sum = [&](int gate) { return widen(z[at + gate * H]) + m[at + gate * H]; };
    float i = sigmoid(sum(0)), f = sigmoid(sum(1)), g = tanhf(sum(2)), o = sigmoid(sum(3));
    float state = f * widen(c[e]) + i * g;
    // rounds: `store`: the gates, the state and the output, once each
    store(gates + at, i), store(gates + at + H, f), store(gates + at + 2 * H, g), store(gates + at + 3 * H, o);
    store(cell + e, state), store(h + e, o * tanhf(state));  // rounds: `store`
}

// dh: the gradient of h, without dy where that is given;  dc: that of the state, then that of the state before
extern "C" __global__ void lstm_unit_backward(
    const T* gates, const T* cell, const T* before, const float* dh, const float* dy, float* dc, R* dz, int n, int H) {
    int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= n) return;
    long long at = e / H * 4ll * H + e % H;
    auto gate = [&](int k) { return widen(gates[at + k * H]); };
    float i = gate(0), f = gate(1), g = gate(2), o = gate(3), t = tanhf(widen(cell[e]));
    float d = dy ? dh[e] + dy[e] : dh[e], s = dc[e] + d * (o * (1.0f - t * t));
    store(dz + at, s * g * (i - i * i)), store(dz + at + H, s * widen(before[e]) * (f - f * f));  // rounds: `store`
    store(dz + at + 2 * H, s * i * (1.0f - g * g)), store(dz + at + 3 * H, d * t * (o - o * o));  // rounds: `store`
    dc[e] = s * f;
}

// ----------------------- many arrays in one launch: block b has row b of a table: where from, where to, how many elements

template <class From, class To>
__device__ inline void copy(const unsigned long long* addresses) {
    const unsigned long long* row = addresses + 3ull * blockIdx.x;
    const From* from = reinterpret_cast<const From*>(row[0]);
    To* to = reinterpret_cast<To*>(row[1]);
    for (int i = threadIdx.x; i < row[2]; i += blockDim.x) store(to + i, widen(from[i]));  // rounds: `store`, to FP16
}

extern "C" __global__ void gather(const unsigned long long* addresses) { copy<T, float>(addresses); }
extern "C" __global__ void scatter(const unsigned long long* addresses) { copy<float, T>(addresses); }

// *to = 1 if there is an infinity or a NaN
extern "C" __global__ void find_nonfinite(const unsigned long long* addresses) {
    const unsigned long long* row = addresses + 3ull * blockIdx.x;
    const T* from = reinterpret_cast<const T*>(row[0]);
    bool finite = true;
    for (int i = threadIdx.x; i < row[2]; i += blockDim.x) finite = finite && isfinite(widen(from[i]));
    if (!finite) *reinterpret_cast<int*>(row[1]) = 1;
}
