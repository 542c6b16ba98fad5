// Batch norm and layer norm (norm.py).
//
// Statistics are made of batches of a few values in registers: their mean, then the sum of squared distances from it;
// batches, blocks of them, threads and their blocks are combined (Chan, Golub & LeVeque, 1983), in a fixed order. Nothing
// cancels.

#include "elements.cuh"
#include "rows.cuh"
#include "channels.cuh"

// ------------------------------------------------------------------------------------------------------- accumulators

// n values per channel, their sum, and the sum of their squared distances from their mean.
template <int V>
struct Moments {
    float n = 0.0f, sum[V] = {}, m2[V] = {};

    __device__ static Moments combine(const Moments& a, const Moments& b) {
        if (a.n == 0.0f) return b;
        if (b.n == 0.0f) return a;
        Moments c;
        c.n = a.n + b.n;
        float per_a = 1.0f / a.n, per_b = 1.0f / b.n, weight = a.n * b.n / c.n;
#pragma unroll
        for (int v = 0; v < V; v++) {
            float apart = a.sum[v] * per_a - b.sum[v] * per_b;
            c.sum[v] = a.sum[v] + b.sum[v];
            c.m2[v] = a.m2[v] + b.m2[v] + apart * apart * weight;
        }
        return c;
    }

    __device__ static Moments of(const Line (&line)[BATCH], const Pack (&x)[BATCH]) {
        Moments c;
        int n = 0;
        for (int u = 0; u < BATCH; u++) {
            n += V == 1 ? max(line[u].hi - line[u].lo, 0) : line[u].hi > line[u].lo;
            each(line[u], [&](int k) { c.sum[k % V] += widen(x[u].at[k]); });
        }
        c.n = static_cast<float>(n);  // rounds: never, a count, exact up to 2^24
        float per_n = 1.0f / c.n, mean[V];
        for (int v = 0; v < V; v++) mean[v] = c.sum[v] * per_n;
        for (int u = 0; u < BATCH; u++)
            each(line[u], [&](int k) {
                float distance = widen(x[u].at[k]) - mean[k % V];
                c.m2[k % V] += distance * distance;
            });
        return c;
    }
};

// Sums of dy and of dy times another value, per channel.
template <int V>
struct Sums {
    float dy[V] = {}, along[V] = {};

    __device__ static Sums combine(const Sums& a, const Sums& b) { return plus(a, b); }

    __device__ void add(int k, float g, float other) {
        dy[k % V] += g;
        along[k % V] += g * other;
    }
};

// ---------------------------------------------------------------------------------------------------------- the parts

// A large sum is split over `parts` blocks. Each leaves its A in `work`, for its unit (a channel, or PACK of them).
// Member i of A is work[i][part][unit].
__device__ inline long long place(int i, int part, int parts, int unit, int units) {
    return (static_cast<long long>(i) * parts + part) * units + unit;
}

template <class A>
__device__ inline void put_part(const A& a, float* work, int part, int parts, int unit, int units) {
#pragma unroll
    for (int i = 0; i < FLOATS<A>; i++) work[place(i, part, parts, unit, units)] = member(a, i);
}

// The next kernel combines them in every block that needs them; the threads that agree modulo `lanes` share a unit.
template <class A>
__device__ inline A of_parts(const float* work, int parts, int unit, int units, int lanes, float* scratch) {
    A a;
    if (unit < units)
        for (int part = threadIdx.x / lanes; part < parts; part += THREADS / lanes)
            a = A::combine(a, made_of<A>([&](int i) { return work[place(i, part, parts, unit, units)]; }));
    return combine_rows(a, lanes, scratch);  // rounds: the statistics of a channel or row over lanes and rows, FP32
}

// --------------------------------------------------------------------------------------------------------- batch norm

template <int V>
__device__ inline Moments<V> moments(const T* x, Walk walk) {
    InBlocks<Moments<V>, LEVELS<V>> all;  // rounds: means and squared distances in blocks, FP32
    each_batch(walk, {x}, [&](const Line (&lines)[BATCH], const Pack (&xs)[1][BATCH]) {
        all.add(Moments<V>::of(lines, xs[0]));
    });
    return all.total();
}

// Sums of dy and dy (x - mean).
template <int V>
__device__ inline Sums<V> sums(const T* x, const T* dy, Walk walk, const float (&mean)[V]) {
    auto add = [&](Sums<V>& few, const Line& line, const Pack& xs, const Pack& dys) {
        each(line, [&](int k) { few.add(k, widen(dys.at[k]), widen(xs.at[k]) - mean[k % V]); });
    };
    return add_lines<Sums<V>, LEVELS<V>>(walk, {x, dy}, add);
}

template <int V>
__device__ inline void batch_norm_moments_of(const T* x, float* work, const Layout& layout, float* scratch) {
    Share<V> share(layout, aligned16(x));
    Moments<V> all = combine_rows(moments<V>(x, share.walk), share.lanes, scratch);  // rounds: FP32 sums
    if (threadIdx.x < share.lanes && share.unit < share.units)
        put_part(all, work, share.part, share.parts, share.unit, share.units);
}

// The running statistics: running <- (1 - m) running + m batch, with m = *momentum_at or, where that is null, momentum.
// The arrays may be null.
struct Running {
    float *mean, *var;
    long long* count;
    const float* momentum_at;
    float momentum;

    template <int V>
    __device__ void follow(const Share<V>& share, int v, float batch_mean, float unbiased_var) const {
        float m = momentum_at ? *momentum_at : momentum;
        int c = share.channel + v;
        if (mean && c < share.channels) mean[c] = (1.0f - m) * mean[c] + m * batch_mean;
        if (var && c < share.channels) var[c] = (1.0f - m) * var[c] + m * unbiased_var;
    }
};

template <int V>
__device__ inline void batch_norm_forward_of(const T* x, const float* w, const float* b, R* y, const float* work,
                                             float* mean, float* var, float* rstd, const Running& running, float eps,
                                             const Layout& layout, float* scratch) {
    Share<V> share(layout, aligned16(x) && aligned16(y));
    Moments<V> all = work ? of_parts<Moments<V>>(work, share.parts, share.unit, share.units, share.lanes, scratch)
                          : combine_rows(moments<V>(x, share.walk), share.lanes, scratch);  // rounds: FP32 sums
    float center[V], scale[V], weight[V], shift[V];
    share.get(weight, w, 1.0f);
    share.get(shift, b, 0.0f);
#pragma unroll
    for (int v = 0; v < V; v++) {
        float variance = all.m2[v] / all.n;
        float r = 1.0f / sqrtf(variance + eps);
        center[v] = all.sum[v] / all.n;
        scale[v] = r * weight[v];
        if (share.writes()) {
            share.put(mean, 0, v, center[v]);
            share.put(var, 0, v, variance);
            share.put(rstd, 0, v, r);
            running.follow(share, v, center[v], all.m2[v] / (all.n - 1.0f));
        }
    }
    if (running.count && blockIdx.x == 0 && threadIdx.x == 0) ++*running.count;
    each_line(share.walk, {x}, [&](const Line& line, const Pack& xs) {
        write(y, line, share.walk.wide,
              [&](int k) { return (widen(xs.at[k]) - center[k % V]) * scale[k % V] + shift[k % V]; });
    });
}

template <int V>
__device__ inline void batch_norm_sums_of(const T* x, const T* dy, const float* mean, float* work, const Layout& layout,
                                          float* scratch) {
    Share<V> share(layout, aligned16(x) && aligned16(dy));
    float center[V];
    share.get(center, mean, 0.0f);
    Sums<V> all = combine_rows(sums<V>(x, dy, share.walk, center), share.lanes, scratch);  // rounds: FP32 sums
    if (threadIdx.x < share.lanes && share.unit < share.units)
        put_part(all, work, share.part, share.parts, share.unit, share.units);
}

template <int V>
__device__ inline void batch_norm_backward_of(const T* x, const T* dy, const float* w, const float* mean,
                                              const float* rstd, R* dx, float* dw, float* db, const float* work,
                                              const Layout& layout, float* scratch) {
    Share<V> share(layout, aligned16(x) && aligned16(dy) && aligned16(dx));
    float center[V], r[V], scale[V], along[V], constant[V];
    share.get(center, mean, 0.0f);
    share.get(r, rstd, 1.0f);
    share.get(scale, w, 1.0f);
    Sums<V> all = work ? of_parts<Sums<V>>(work, share.parts, share.unit, share.units, share.lanes, scratch)
                       : combine_rows(sums<V>(x, dy, share.walk, center), share.lanes, scratch);  // rounds: FP32 sums
    float n = static_cast<float>(static_cast<long long>(layout.outer) * layout.inner);  // rounds: a count above 2^24
#pragma unroll
    for (int v = 0; v < V; v++) {
        scale[v] *= r[v];
        float dweight = all.along[v] * r[v];
        along[v] = scale[v] * r[v] * dweight / n;
        constant[v] = scale[v] * all.dy[v] / n;
        if (share.writes()) {
            share.put(dw, 0, v, dweight);
            share.put(db, 0, v, all.dy[v]);
        }
    }
    if (!dx) return;
    each_line(share.walk, {x, dy}, [&](const Line& line, const Pack& xs, const Pack& dys) {
        write(dx, line, share.walk.wide, [&](int k) {
            int v = k % V;
            return widen(dys.at[k]) * scale[v] - (widen(xs.at[k]) - center[v]) * along[v] - constant[v];
        });
    });
}

// Each kernel is there twice: for runs of one channel, and, `_columns`, where neighbours are different channels. Sums of
// long channels are made by a kernel before, one part of a channel per block, into work; where that is null, a block has
// its channel to itself, and makes the sums in a first walk: the second one then finds x in the caches.
#define RUN(FUNCTION, A, V, ...)                                                                                    \
    __shared__ float scratch[FLOATS<A<V>> * THREADS];                                                               \
    Layout layout{outer, channels, inner, lanes, rows_per_part, columns_per_part, parts};                           \
    FUNCTION<V>(__VA_ARGS__, layout, scratch)

// The statistics of a batch: Moments into work.
#define FOR_MOMENTS const T *x, float *work, LAYOUT
#define RUN_MOMENTS(V) RUN(batch_norm_moments_of, Moments, V, x, work)
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_moments(FOR_MOMENTS) { RUN_MOMENTS(1); }
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_moments_columns(FOR_MOMENTS) { RUN_MOMENTS(PACK); }

// y = (x - mean) rstd w + b with the mean and variance of each channel (C,), which it also writes (var may be null) and
// puts into the running statistics.
#define FOR_Y                                                                                                       \
    const T *x, const float *w, const float *b, R *y, const float *work, float *mean, float *var, float *rstd,      \
        float *running_mean, float *running_var, long long *count, const float *momentum_at, float momentum,        \
        float eps, LAYOUT
#define RUN_Y(V)                                                                                                    \
    Running running{running_mean, running_var, count, momentum_at, momentum};                                       \
    RUN(batch_norm_forward_of, Moments, V, x, w, b, y, work, mean, var, rstd, running, eps)
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_forward(FOR_Y) { RUN_Y(1); }
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_forward_columns(FOR_Y) { RUN_Y(PACK); }

// Sums of dy and dy (x - mean) into work.
#define FOR_SUMS const T *x, const T *dy, const float *mean, float *work, LAYOUT
#define RUN_SUMS(V) RUN(batch_norm_sums_of, Sums, V, x, dy, mean, work)
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_sums(FOR_SUMS) { RUN_SUMS(1); }
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_sums_columns(FOR_SUMS) { RUN_SUMS(PACK); }

// db = sum dy, dw = sum dy xhat, dx = w rstd (dy - db / n - xhat dw / n). dx, dw, db may be null.
#define FOR_DX                                                                                                      \
    const T *x, const T *dy, const float *w, const float *mean, const float *rstd, R *dx, float *dw, float *db,     \
        const float *work, LAYOUT
#define RUN_DX(V) RUN(batch_norm_backward_of, Sums, V, x, dy, w, mean, rstd, dx, dw, db, work)
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_backward(FOR_DX) { RUN_DX(1); }
extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_backward_columns(FOR_DX) { RUN_DX(PACK); }

// --------------------------------------------------------------------------------------------------------- layer norm
//
// x: (rows, length). `lanes` threads share a row; its second walk finds the row in the caches.

// The values of v (length,) that belong to a line of x.
__device__ inline Values<PACK> along_row(const float* v, const Line& line, float otherwise) {
    if (v && line.whole() && aligned16(v + line.column)) return load(Width<PACK>(), v + line.column);
    Values<PACK> values;
#pragma unroll
    for (int k = 0; k < PACK; k++)
        values.at[k] = v && line.lo <= k && k < line.hi ? v[line.column + k] : otherwise;
    return values;
}

// y = (x - mean) rstd w + b with the mean and rstd of each row, which it also writes.
extern "C" __global__ void __launch_bounds__(THREADS) layer_norm_forward(
    const T* x, const float* w, const float* b, R* y, float* mean, float* rstd, float eps, long long rows, int length,
    int lanes) {
    __shared__ float scratch[FLOATS<Moments<1>> * THREADS];
    RowShare share(rows, length, lanes, aligned16(x) && aligned16(y));
    Moments<1> all = combine_lanes(moments<1>(x, share.walk), lanes, scratch);  // rounds: FP32 sums
    float center = all.sum[0] / all.n, r = 1.0f / sqrtf(all.m2[0] / all.n + eps);
    if (share.writes()) {
        mean[share.row] = center;
        rstd[share.row] = r;
    }
    each_line(share.walk, {x}, [&](const Line& line, const Pack& xs) {
        Values<PACK> weight = along_row(w, line, 1.0f), bias = along_row(b, line, 0.0f);
        write(y, line, share.walk.wide,
              [&](int k) { return (widen(xs.at[k]) - center) * r * weight.at[k] + bias.at[k]; });
    });
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = w dy and the means over the row.
extern "C" __global__ void __launch_bounds__(THREADS) layer_norm_backward(
    const T* x, const T* dy, const float* w, const float* mean, const float* rstd, R* dx, long long rows, int length,
    int lanes) {
    __shared__ float scratch[FLOATS<Sums<1>> * THREADS];
    RowShare share(rows, length, lanes, aligned16(x) && aligned16(dy) && aligned16(dx));
    bool ours = share.there;
    float center = ours ? mean[share.row] : 0.0f, r = ours ? rstd[share.row] : 0.0f;
    auto add = [&](Sums<1>& few, const Line& line, const Pack& xs, const Pack& dys) {
        Values<PACK> weight = along_row(w, line, 1.0f);
        each(line, [&](int k) { few.add(k, widen(dys.at[k]) * weight.at[k], (widen(xs.at[k]) - center) * r); });
    };
    Sums<1> all = combine_lanes(add_lines<Sums<1>>(share.walk, {x, dy}, add), lanes, scratch);  // rounds: FP32 sums
    float constant = all.dy[0] / length, along = all.along[0] / length;
    each_line(share.walk, {x, dy}, [&](const Line& line, const Pack& xs, const Pack& dys) {
        Values<PACK> weight = along_row(w, line, 1.0f);
        write(dx, line, share.walk.wide, [&](int k) {
            float xhat = (widen(xs.at[k]) - center) * r;
            return (widen(dys.at[k]) * weight.at[k] - constant - xhat * along) * r;
        });
    });
}

// Sums of dy xhat and of dy over each part of the rows, into work (parts, 2, channels), which sums.cu adds up. x is
// (outer, channels, 1): here the channels are the columns.
extern "C" __global__ void __launch_bounds__(THREADS) layer_norm_sums_columns(
    const T* x, const T* dy, const float* mean, const float* rstd, float* work, LAYOUT) {
    __shared__ float scratch[FLOATS<Sums<PACK>> * THREADS];
    Layout layout{outer, channels, inner, lanes, rows_per_part, columns_per_part, parts};
    Share<PACK> share(layout, aligned16(x) && aligned16(dy));
    auto add = [&](Sums<PACK>& few, const Line& line, const Pack& xs, const Pack& dys) {
        bool ours = line.lo < line.hi;
        float center = ours ? mean[line.row] : 0.0f, r = ours ? rstd[line.row] : 0.0f;
        each(line, [&](int k) { few.add(k, widen(dys.at[k]), (widen(xs.at[k]) - center) * r); });
    };
    // rounds: sums over the rows of a part, FP32
    Sums<PACK> all = combine_rows(add_lines<Sums<PACK>, LEVELS<PACK>>(share.walk, {x, dy}, add), lanes, scratch);
    if (threadIdx.x < lanes)
        for (int v = 0; v < PACK; v++) {
            share.put(work, 2 * share.part, v, all.along[v]);
            share.put(work, 2 * share.part + 1, v, all.dy[v]);
        }
}
