// Attention (attention.py) without the matrix of scores in memory (FlashAttention: Dao et al., 2022). A block has ROWS
// queries and walks over the keys, ROWS at a time, twice: first for the largest score of each row and the sum of its
// exponentials (Milakov and Gimelshein, 2018), then for the product of the weights and the values. Backward computes the
// scores again, twice: blocks of queries make dq, blocks of keys dk and dv. So every sum has one owner and one order,
// and a run repeats bit for bit.
//
// A warp has 16 rows of its block's result. Scores, exponentials and all sums are FP32 in registers. The weights,
// divided by their sum, and, in backward, the gradients of the scores pass through shared memory in FP16, as operands of
// the next product: that is their one rounding, as in the definition. One walk with a running softmax would be a product
// less, but would round the weights before they are divided: other ones become zero then.

#include "elements.cuh"

constexpr int HALVES = 8;  // halves in 16 bytes, which are read at once

// Which rows are this block's: tiles of `tile` rows, those of a head one after another.
struct Place {
    int b, h, first;
    __device__ Place(int heads, int rows, int tile) {
        int tiles = (rows + tile - 1) / tile, head = blockIdx.x / tiles;
        first = blockIdx.x % tiles * tile, h = head % heads, b = head / heads;
    }
};

// x[b, h, i] is a row of neighbours in memory.
template <class E>
struct Rows {
    E* data;
    long long batch, head, row;
    __device__ E* at(const Place& p, int i = 0) const { return data + p.b * batch + p.h * head + i * row; }
};

struct Problem {
    Rows<const half> q, k, v;  // (batch, heads, length, width), (.., keys, width), (.., keys, value_width)
    const bool* seen;       // null, or a mask, which broadcasts to (batch, heads, length, keys) by steps of 0
    const float* added;     // the same
    const bool* kept;       // null, or which weights dropout keeps, (batch, heads, length, keys)
    long long mask_batch, mask_head, mask_row, mask_column;
    int heads, length, keys, width, value_width, causal;
    float scale, growth;  // growth: what dropout multiplies the weights by that it keeps

    // What is written lies as (batch, rows, heads, columns), where joining the heads is free; and y's gradient does.
    template <class E>
    __device__ Rows<E> made(E* x, int rows, int columns) const {
        return {x, static_cast<long long>(rows) * heads * columns, columns, static_cast<long long>(heads) * columns};
    }

    // And what there is one of per query: that of query i is the result's element i * heads.
    template <class E>
    __device__ E* statistic(E* x, const Place& at) const {
        return made(x, length, 1).at(at);
    }

    // The score of query i and key j from their product; -infinity for what is not seen or not there.
    __device__ float score(const Place& at, int i, int j, float product) const {
        if (i >= length || j >= keys || (causal && j > i)) return Max::none;
        long long place = at.b * mask_batch + at.h * mask_head + i * mask_row + j * mask_column;
        if (seen != nullptr && !seen[place]) return Max::none;
        return product * scale + (added != nullptr ? added[place] : 0.0f);
    }

    // x, of the weight of key j for query i, after dropout.
    __device__ float dropped(const Place& at, int i, int j, float x) const {
        if (kept == nullptr || i >= length || j >= keys) return x;
        return kept[((static_cast<long long>(at.b) * heads + at.h) * length + i) * keys + j] ? x * growth : 0.0f;
    }
};

#define PROBLEM                                                                                                     \
    const half *q, const half *k, const half *v, const bool *seen, const float *added, const bool *kept,            \
        long long q_batch, long long q_head, long long q_row, long long k_batch, long long k_head, long long k_row, \
        long long v_batch, long long v_head, long long v_row, long long mask_batch, long long mask_head,            \
        long long mask_row, long long mask_column, int heads, int length, int keys, int width, int value_width,     \
        int causal, float scale, float growth
#define THE_PROBLEM                                                                                                 \
    Problem {                                                                                                       \
        {q, q_batch, q_head, q_row}, {k, k_batch, k_head, k_row}, {v, v_batch, v_head, v_row}, seen, added, kept,   \
            mask_batch, mask_head, mask_row, mask_column, heads, length, keys, width, value_width, causal, scale,   \
            growth                                                                                                  \
    }

// The thread's two rows in the tile, 8 apart, and its first column; see mma_16816.
__device__ inline int own_row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
__device__ inline int own_column() { return threadIdx.x % 4 * 2; }

// use(u, column, d) for each value that this thread holds; u: in the first of its rows (0) or the second (1).
template <int N, class Use>
__device__ inline void each(float (&d)[N][4], Use use) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) use(e / 2, 8 * j + own_column() + e % 2, d[j][e]);
}

// use(u, column, d, other) for two such arrays.
template <int N, class Use>
__device__ inline void each(float (&d)[N][4], const float (&other)[N][4], Use use) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) use(e / 2, 8 * j + own_column() + e % 2, d[j][e], other[j][e]);
}

// ------------------------------------------------------------------------------------------------------------- tiles

// For head sizes up to HEAD (attention.py has the same numbers): 8 KB per tile at most. HALVES more per row put the rows
// of a column into different banks.
template <int HEAD>
constexpr int ROWS = (8192 / HEAD < 128 ? 8192 / HEAD : 128) / static_cast<int>(sizeof(half));
template <int HEAD>
constexpr int TILE = ROWS<HEAD>*(HEAD + HALVES);

// to[r][c] = x[r][c] for r < rows and c < columns, else 0. Rows of x lie `step` apart.
template <int HEAD>
__device__ inline void fetch(half* to, const half* x, long long step, int rows, int columns) {
    int width = aligned16(x) && step % HALVES == 0 && columns % HALVES == 0 ? HALVES : 1, across = HEAD / width;
    for (int i = threadIdx.x; i < ROWS<HEAD> * across; i += blockDim.x) {
        int r = i / across, c = i % across * width;
        bool there = r < rows && c < columns;
        if (width == HALVES)
            (there ? PackOf<half>(x + r * step + c) : PackOf<half>()).store_to(to + r * (HEAD + HALVES) + c);
        else
            to[r * (HEAD + HALVES) + c] = there ? x[r * step + c] : half();
    }
}

// x[r][c] = d, for r < rows and c < columns.
template <int N>
__device__ inline void write(R* x, long long step, int rows, int columns, float (&d)[N][4],
                             const float (&factor)[2]) {
    each(d, [&](int u, int c, float value) {
        int r = own_row() + 8 * u;
        if (r < rows && c < columns) store(x + (r * step + c), value * factor[u]);  // rounds: a result or a gradient
    });
}

// The warp's 16 rows of an operand, value(u, column, d) rounded once, for the warp's own use.
template <int N, class Value>
__device__ inline void pass(half* to, float (&d)[N][4], Value value) {
    __syncwarp();  // it may still be read from the last time
    // rounds: probabilities and their gradients, as operands of the next product
    each(d, [&](int u, int c, float x) { store(to + ((own_row() + 8 * u) * (8 * N + HALVES) + c), value(u, c, x)); });
    __syncwarp();
}

// d += a b over DEPTH, for the 16 rows of this warp. a: [][DEPTH]; b: [DEPTH][8 N], or, where TURNED, [8 N][DEPTH]. On
// Tensor Cores:
template <int DEPTH, bool TURNED, int N>
__device__ inline void multiply(float (&d)[N][4], const half* a, const half* b) {
    constexpr int A = DEPTH + 8, B = (TURNED ? DEPTH : 8 * N) + 8;
    int lane = threadIdx.x % 32;
    a += threadIdx.x / 32 * 16 * A;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        unsigned of_a[4], of_b[4];
        ldmatrix_x4(of_a, a + lane % 16 * A + k + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            if constexpr (TURNED)
                ldmatrix_x4(of_b, b + (8 * j + lane / 16 * 8 + lane % 8) * B + k + lane / 8 % 2 * 8);
            else
                ldmatrix_x4_trans(of_b, b + (k + lane % 16) * B + 8 * j + lane / 16 * 8);
            mma_16816(d[j], of_a, of_b[0], of_b[1]);  // rounds: products of FP16 in FP32 accumulators
            mma_16816(d[j + 1], of_a, of_b[2], of_b[3]);  // rounds: products of FP16 in FP32 accumulators
        }
    }
}

// ----------------------------------------------------------------------------------------------------------- forward

// y = softmax(s) v, and z = ln sum exp s for each row: +infinity, and y = 0, where nothing is seen.
template <int HEAD>
__device__ inline void forward_of(half* shared, R* y, float* z, const Problem& p) {
    constexpr int ROWS = ::ROWS<HEAD>;
    half *q = shared, *k = q + TILE<HEAD>, *v = k + TILE<HEAD>, *weights = v + TILE<HEAD>;
    Place at(p.heads, p.length, ROWS);
    int rows = p.length - at.first, last = p.causal ? min(p.keys, at.first + ROWS) : p.keys;
    fetch<HEAD>(q, p.q.at(at, at.first), p.q.row, rows, p.width);
    float top[2] = {Max::none, Max::none}, total[2] = {}, shift[2] = {}, sums[HEAD / 8][4] = {};
    auto scores = [&](float (&s)[ROWS / 8][4], int j) {
        multiply<HEAD, true>(s, q, k);
        each(s, [&](int u, int c, float& x) { x = p.score(at, at.first + own_row() + 8 * u, j + c, x); });
    };
    for (int j = 0; j < last; j += ROWS) {
        __syncthreads();  // all have read the keys before these
        fetch<HEAD>(k, p.k.at(at, j), p.k.row, p.keys - j, p.width);
        __syncthreads();
        float s[ROWS / 8][4] = {}, highest[2] = {top[0], top[1]}, more[2] = {};
        scores(s, j);
        each(s, [&](int u, int, float& x) { highest[u] = Max::combine(highest[u], x); });
#pragma unroll
        for (int u = 0; u < 2; u++) {
            highest[u] = warp_reduce<Max>(highest[u], 4);
            shift[u] = highest[u] == Max::none ? 0.0f : highest[u];
        }
        each(s, [&](int u, int, float& x) { more[u] += expf(x - shift[u]); });
#pragma unroll
        for (int u = 0; u < 2; u++) {
            // rounds: the sum of a row's exponentials, FP32
            total[u] = total[u] * expf(top[u] - shift[u]) + warp_reduce<Sum>(more[u], 4);
            top[u] = highest[u];
        }
    }
#pragma unroll
    for (int u = 0; u < 2; u++) {
        int r = own_row() + 8 * u;
        if (r < rows && own_column() == 0)
            p.statistic(z, at)[(at.first + r) * p.heads] = total[u] == 0.0f ? -Max::none : top[u] + logf(total[u]);
        if (total[u] == 0.0f) total[u] = -Max::none;  // nothing is seen: the weights are 0
    }
    for (int j = 0; j < last; j += ROWS) {
        __syncthreads();
        fetch<HEAD>(k, p.k.at(at, j), p.k.row, p.keys - j, p.width);
        fetch<HEAD>(v, p.v.at(at, j), p.v.row, p.keys - j, p.value_width);
        __syncthreads();
        float s[ROWS / 8][4] = {};
        scores(s, j);
        pass(weights, s, [&](int u, int c, float x) {
            return p.dropped(at, at.first + own_row() + 8 * u, j + c, expf(x - shift[u]) / total[u]);
        });
        multiply<ROWS, false>(sums, weights, v);
    }
    Rows<R> to = p.made(y, p.length, p.value_width);
    write(to.at(at, at.first), to.row, rows, p.value_width, sums, {1.0f, 1.0f});
}

// ---------------------------------------------------------------------------------------------------------- backward

// dq = scale ds k with ds = p (dp - delta), p = exp(s - z) / total, dp = dy v^T, in two walks over the keys. The first
// makes, for each row, total, the sum of exp(s - z), which is 1 but for the rounding of z, and delta, the sum of p dp.
// (y dy is that sum, too, but y was rounded: where a weight is nearly 1, dp - delta would be little else than that.)
template <int HEAD>
__device__ inline void queries_of(half* shared, const half* dy, const float* z, float* total, float* delta, R* dq,
                                  const Problem& p) {
    constexpr int ROWS = ::ROWS<HEAD>;
    half *q = shared, *k = q + TILE<HEAD>, *v = k + TILE<HEAD>, *d = v + TILE<HEAD>, *ds = d + TILE<HEAD>;
    Place at(p.heads, p.length, ROWS);
    int rows = p.length - at.first, last = p.causal ? min(p.keys, at.first + ROWS) : p.keys;
    Rows<const half> of_d = p.made(dy, p.length, p.value_width);
    fetch<HEAD>(q, p.q.at(at, at.first), p.q.row, rows, p.width);
    fetch<HEAD>(d, of_d.at(at, at.first), of_d.row, rows, p.value_width);
    float log_sum[2], sum[2] = {}, inner[2] = {}, sums[HEAD / 8][4] = {};
#pragma unroll
    for (int u = 0; u < 2; u++) {
        int r = own_row() + 8 * u;
        log_sum[u] = r < rows ? p.statistic(z, at)[(at.first + r) * p.heads] : -Max::none;
    }
    // s becomes exp(s - z), and dp the gradient of the weights, for the keys from j on
    auto both = [&](float (&s)[ROWS / 8][4], float (&dp)[ROWS / 8][4], int j) {
        __syncthreads();  // nobody reads the earlier ones any more
        fetch<HEAD>(k, p.k.at(at, j), p.k.row, p.keys - j, p.width);
        fetch<HEAD>(v, p.v.at(at, j), p.v.row, p.keys - j, p.value_width);
        __syncthreads();
        multiply<HEAD, true>(s, q, k);
        multiply<HEAD, true>(dp, d, v);
        each(dp, [&](int u, int c, float& g) { g = p.dropped(at, at.first + own_row() + 8 * u, j + c, g); });
        each(s, [&](int u, int c, float& x) {
            x = expf(p.score(at, at.first + own_row() + 8 * u, j + c, x) - log_sum[u]);
        });
    };
    for (int j = 0; j < last; j += ROWS) {
        float s[ROWS / 8][4] = {}, dp[ROWS / 8][4] = {}, more[2] = {}, products[2] = {};
        both(s, dp, j);
        each(s, dp, [&](int u, int, float& x, float g) { more[u] += x, products[u] += x * g; });
        // rounds: the sums of a row, FP32
        for (int u = 0; u < 2; u++) sum[u] += more[u], inner[u] += products[u];
    }
#pragma unroll
    for (int u = 0; u < 2; u++) {
        sum[u] = warp_reduce<Sum>(sum[u], 4);  // rounds: the sum of a row's weights, FP32
        if (sum[u] == 0.0f) sum[u] = 1.0f;  // nothing is seen
        inner[u] = warp_reduce<Sum>(inner[u], 4) / sum[u];  // rounds: the inner product of p and dp, FP32
        int r = own_row() + 8 * u, i = (at.first + r) * p.heads;
        if (r < rows && own_column() == 0) p.statistic(total, at)[i] = sum[u], p.statistic(delta, at)[i] = inner[u];
    }
    for (int j = 0; j < last; j += ROWS) {
        float s[ROWS / 8][4] = {}, dp[ROWS / 8][4] = {};
        both(s, dp, j);
        each(s, dp, [&](int u, int, float& x, float g) { x = x / sum[u] * (g - inner[u]); });
        pass(ds, s, [](int, int, float x) { return x; });
        multiply<ROWS, false>(sums, ds, k);
    }
    Rows<R> to = p.made(dq, p.length, p.width);
    write(to.at(at, at.first), to.row, rows, p.width, sums, {p.scale, p.scale});
}

// dk = scale ds^T q and dv = p^T dy: as above with the keys as rows, after it.
template <int HEAD>
__device__ inline void keys_of(half* shared, const half* dy, const float* z, const float* total, const float* delta,
                               R* dk, R* dv, const Problem& p) {
    constexpr int ROWS = ::ROWS<HEAD>;
    half *q = shared, *k = q + TILE<HEAD>, *v = k + TILE<HEAD>, *d = v + TILE<HEAD>, *turned = d + TILE<HEAD>;
    Place at(p.heads, p.keys, ROWS);
    int rows = p.keys - at.first;
    Rows<const half> of_d = p.made(dy, p.length, p.value_width);
    fetch<HEAD>(k, p.k.at(at, at.first), p.k.row, rows, p.width);
    fetch<HEAD>(v, p.v.at(at, at.first), p.v.row, rows, p.value_width);
    z = p.statistic(z, at), total = p.statistic(total, at), delta = p.statistic(delta, at);
    float sums_k[HEAD / 8][4] = {}, sums_v[HEAD / 8][4] = {};
    for (int i = p.causal ? at.first : 0; i < p.length; i += ROWS) {
        __syncthreads();
        fetch<HEAD>(q, p.q.at(at, i), p.q.row, p.length - i, p.width);
        fetch<HEAD>(d, of_d.at(at, i), of_d.row, p.length - i, p.value_width);
        __syncthreads();
        float s[ROWS / 8][4] = {}, dp[ROWS / 8][4] = {};
        multiply<HEAD, true>(s, k, q);
        multiply<HEAD, true>(dp, v, d);
        each(s, [&](int u, int c, float& x) {
            bool there = i + c < p.length;
            float log_sum = there ? z[(i + c) * p.heads] : -Max::none, sum = there ? total[(i + c) * p.heads] : 1.0f;
            x = expf(p.score(at, i + c, at.first + own_row() + 8 * u, x) - log_sum) / sum;
        });
        pass(turned, s, [&](int u, int c, float x) { return p.dropped(at, i + c, at.first + own_row() + 8 * u, x); });
        multiply<ROWS, false>(sums_v, turned, d);
        each(s, dp, [&](int u, int c, float& x, float g) {
            float inner = i + c < p.length ? delta[(i + c) * p.heads] : 0.0f;
            x *= p.dropped(at, i + c, at.first + own_row() + 8 * u, g) - inner;
        });
        pass(turned, s, [](int, int, float x) { return x; });
        multiply<ROWS, false>(sums_k, turned, q);
    }
    Rows<R> to_k = p.made(dk, p.keys, p.width), to_v = p.made(dv, p.keys, p.value_width);
    write(to_k.at(at, at.first), to_k.row, rows, p.width, sums_k, {p.scale, p.scale});
    write(to_v.at(at, at.first), to_v.row, rows, p.value_width, sums_v, {1.0f, 1.0f});
}

// ----------------------------------------------------------------------------------------------------------- kernels

#define FOR_Y PROBLEM, R *y, float *z
#define FOR_DQ PROBLEM, const half *dy, const float *z, float *total, float *delta, R *dq
#define FOR_DK PROBLEM, const half *dy, const float *z, const float *total, const float *delta, R *dk, R *dv
#define RUN(FUNCTION, ...)                                                                                          \
    DYNAMIC_SHARED(shared);                                                                                         \
    FUNCTION(reinterpret_cast<half*>(shared), __VA_ARGS__, THE_PROBLEM)
#define RUN_Y(HEAD) RUN(forward_of<HEAD>, y, z)
#define RUN_DQ(HEAD) RUN(queries_of<HEAD>, dy, z, total, delta, dq)
#define RUN_DK(HEAD) RUN(keys_of<HEAD>, dy, z, total, delta, dk, dv)

extern "C" __global__ void __launch_bounds__(128) attention_32(FOR_Y) { RUN_Y(32); }
extern "C" __global__ void __launch_bounds__(128) attention_64(FOR_Y) { RUN_Y(64); }
extern "C" __global__ void __launch_bounds__(128) attention_128(FOR_Y) { RUN_Y(128); }

extern "C" __global__ void __launch_bounds__(128) attention_queries_32(FOR_DQ) { RUN_DQ(32); }
extern "C" __global__ void __launch_bounds__(128) attention_queries_64(FOR_DQ) { RUN_DQ(64); }
extern "C" __global__ void __launch_bounds__(128) attention_queries_128(FOR_DQ) { RUN_DQ(128); }

extern "C" __global__ void __launch_bounds__(128) attention_keys_32(FOR_DK) { RUN_DK(32); }
extern "C" __global__ void __launch_bounds__(128) attention_keys_64(FOR_DK) { RUN_DK(64); }
extern "C" __global__ void __launch_bounds__(128) attention_keys_128(FOR_DK) { RUN_DK(128); }
