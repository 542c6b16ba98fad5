// Softmax and log-softmax (softmax.py) along the middle axis of x (outer, n, inner), as `channels` in layout.py has it.
//
// V is the number of sums that a thread is part of: 1 where inner = 1 (the row to sum over is a run of memory; `lanes`
// threads share it), PACK where inner > 1 (neighbours in memory belong to different sums: a thread keeps PACK of them
// and walks along n, and the threads of a block that agree modulo `lanes` have the same ones).

#include "rows.cuh"

// ------------------------------------------------------------------------------------------------------- accumulators

// The largest x, and the sum of exp(x - max). While max is -infinity, where that would be nan, the sum is 0.
template <int V>
struct Exponentials {
    float max[V], sum[V];

    __device__ Exponentials() {
#pragma unroll
        for (int v = 0; v < V; v++) {
            max[v] = Max::none;
            sum[v] = 0.0f;
        }
    }

    __device__ static Exponentials combine(const Exponentials& a, const Exponentials& b) {
        Exponentials c;
#pragma unroll
        for (int v = 0; v < V; v++) {
            bool first = a.max[v] >= b.max[v];
            float larger = first ? a.max[v] : b.max[v], smaller = first ? b.max[v] : a.max[v];
            float factor = larger == smaller ? 1.0f : expf(smaller - larger);
            c.max[v] = Max::combine(a.max[v], b.max[v]);
            c.sum[v] = (first ? a.sum[v] : b.sum[v]) + (first ? b.sum[v] : a.sum[v]) * factor;
        }
        return c;
    }

    // Of a batch of lines; e becomes exp(x - max).
    __device__ static Exponentials of(const Line (&line)[BATCH], const Pack (&x)[BATCH], float (&e)[BATCH][PACK]) {
        Exponentials c;
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            each(line[u], [&](int k) { c.max[k % V] = Max::combine(c.max[k % V], widen(x[u].at[k])); });
        float shift[V];
#pragma unroll
        for (int v = 0; v < V; v++) shift[v] = c.max[v] == Max::none ? 0.0f : c.max[v];
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            each(line[u], [&](int k) {
                e[u][k] = expf(widen(x[u].at[k]) - shift[k % V]);
                c.sum[k % V] += e[u][k];
            });
        return c;
    }

    // As the definition has it: nan where all x are -infinity.
    __device__ void finish() {
#pragma unroll
        for (int v = 0; v < V; v++) sum[v] *= expf(max[v] - max[v]);
    }
};

template <int V>
struct Total {
    float sum[V] = {};

    __device__ static Total combine(const Total& a, const Total& b) {
        Total c;
#pragma unroll
        for (int v = 0; v < V; v++) c.sum[v] = a.sum[v] + b.sum[v];
        return c;
    }
};

// ----------------------------------------------------------------------------------------------------------- the work

struct Layout {
    long long outer;
    int n, inner, lanes;
};

// What one block does, seen from one thread.
template <int V>
struct Share {
    long long sum;  // the thread's first sum, of outer * inner
    int sums;       // how many it has: V, or fewer at the edge
    int lanes;
    Walk walk;

    __device__ Share(const Layout& x, bool wide) : lanes(x.lanes), walk(V == 1 ? row(x, wide) : columns(x, wide)) {
        int lane = threadIdx.x % lanes;
        if (V == 1) {
            sum = static_cast<long long>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes;
            sums = sum < x.outer;
        } else {
            sum = blockIdx.x / tiles(x) * x.inner + walk.first + lane * V;
            sums = min(walk.last - walk.first - lane * V, V);
        }
    }

    __device__ static Walk row(const Layout& x, bool wide) {
        long long row = static_cast<long long>(blockIdx.x) * (THREADS / x.lanes) + threadIdx.x / x.lanes;
        return Walk(row * x.n, 0, 0, row < x.outer, 1, threadIdx.x % x.lanes, x.lanes, 0, x.n, wide);
    }

    __device__ static long long tiles(const Layout& x) { return (x.inner + x.lanes * PACK - 1) / (x.lanes * PACK); }

    __device__ static Walk columns(const Layout& x, bool wide) {
        int first = static_cast<int>(blockIdx.x % tiles(x)) * x.lanes * PACK;
        return Walk(blockIdx.x / tiles(x) * x.n * x.inner, x.inner, threadIdx.x / x.lanes, x.n, THREADS / x.lanes,
                    threadIdx.x % x.lanes, x.lanes, first, min(first + x.lanes * PACK, x.inner),
                    wide && x.inner % PACK == 0);
    }

    template <class A>
    __device__ A combine(const A& a, float* scratch) const {
        return V == 1 ? combine_lanes(a, lanes, scratch) : combine_rows(a, lanes, scratch);
    }

    // Whether this thread writes what belongs to its sums.
    __device__ bool writes() const { return V == 1 ? threadIdx.x % lanes == 0 : threadIdx.x < lanes; }

    __device__ void get(float (&to)[V], const float* from) const {
#pragma unroll
        for (int v = 0; v < V; v++) to[v] = v < sums ? from[sum + v] : 1.0f;
    }
};

// Exponentials of the thread's walk. Where that is one batch, it is `complete` in e and `held`: nothing need be read or
// computed again.
template <int V>
__device__ inline Exponentials<V> exponentials(const T* x, Walk walk, float (&e)[BATCH][PACK], Line (&held)[BATCH],
                                               bool& complete) {
    InBlocks<Exponentials<V>> all;
    int batches = 0;
    each_batch(walk, {x}, [&](const Line (&lines)[BATCH], const Pack (&xs)[1][BATCH]) {
#pragma unroll
        for (int u = 0; u < BATCH; u++) held[u] = lines[u];
        all.add(Exponentials<V>::of(lines, xs[0], e));
        batches++;
    });
    complete = batches <= 1;
    return all.total();
}

template <int V>
__device__ inline void softmax_forward_of(const T* x, T* y, const Layout& layout, float* scratch) {
    Share<V> share(layout, aligned16(x) && aligned16(y));
    float e[BATCH][PACK], factor[V];
    Line held[BATCH] = {};
    bool complete;
    Exponentials<V> mine = exponentials<V>(x, share.walk, e, held, complete);
    Exponentials<V> all = share.combine(mine, scratch);
    all.finish();
    if (complete) {
#pragma unroll
        for (int v = 0; v < V; v++) factor[v] = expf(mine.max[v] - all.max[v]) / all.sum[v];
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            write(y, held[u], share.walk.wide, [&](int k) { return e[u][k] * factor[k % V]; });
        return;
    }
#pragma unroll
    for (int v = 0; v < V; v++) factor[v] = 1.0f / all.sum[v];
    each_line(share.walk, {x}, [&](const Line& line, const Pack& xs) {
        write(y, line, share.walk.wide,
              [&](int k) { return expf(widen(xs.at[k]) - all.max[k % V]) * factor[k % V]; });
    });
}

template <int V>
__device__ inline void log_softmax_forward_of(const T* x, T* y, float* m, float* s, const Layout& layout,
                                              float* scratch) {
    Share<V> share(layout, aligned16(x) && aligned16(y));
    float e[BATCH][PACK], log_sum[V];
    Line held[BATCH];
    bool complete;
    Exponentials<V> all = share.combine(exponentials<V>(x, share.walk, e, held, complete), scratch);
    all.finish();
#pragma unroll
    for (int v = 0; v < V; v++) {
        log_sum[v] = logf(all.sum[v]);
        if (share.writes() && v < share.sums) {
            m[share.sum + v] = all.max[v];
            s[share.sum + v] = all.sum[v];
        }
    }
    each_line(share.walk, {x}, [&](const Line& line, const Pack& xs) {
        write(y, line, share.walk.wide, [&](int k) { return widen(xs.at[k]) - all.max[k % V] - log_sum[k % V]; });
    });
}

template <int V>
__device__ inline void softmax_backward_of(const T* y, const T* dy, T* dx, const Layout& layout, float* scratch) {
    Share<V> share(layout, aligned16(y) && aligned16(dy) && aligned16(dx));
    auto add = [&](Total<V>& few, const Line& line, const Pack& ys, const Pack& dys) {
        each(line, [&](int k) { few.sum[k % V] += widen(ys.at[k]) * widen(dys.at[k]); });
    };
    Total<V> total = share.combine(add_lines<Total<V>>(share.walk, {y, dy}, add), scratch);
    each_line(share.walk, {y, dy}, [&](const Line& line, const Pack& ys, const Pack& dys) {
        write(dx, line, share.walk.wide, [&](int k) {
            float p = widen(ys.at[k]);
            return p * widen(dys.at[k]) - p * total.sum[k % V];
        });
    });
}

template <int V>
__device__ inline void log_softmax_backward_of(const T* x, const T* dy, const float* m, const float* s, T* dx,
                                               const Layout& layout, float* scratch) {
    Share<V> share(layout, aligned16(x) && aligned16(dy) && aligned16(dx));
    auto add = [&](Total<V>& few, const Line& line, const Pack& dys) {
        each(line, [&](int k) { few.sum[k % V] += widen(dys.at[k]); });
    };
    Total<V> total = share.combine(add_lines<Total<V>>(share.walk, {dy}, add), scratch);
    float shift[V], factor[V];
    share.get(shift, m);
    share.get(factor, s);
#pragma unroll
    for (int v = 0; v < V; v++) factor[v] = total.sum[v] / factor[v];
    each_line(share.walk, {x, dy}, [&](const Line& line, const Pack& xs, const Pack& dys) {
        write(dx, line, share.walk.wide, [&](int k) {
            return widen(dys.at[k]) - expf(widen(xs.at[k]) - shift[k % V]) * factor[k % V];
        });
    });
}

// y = exp(x - max) / sum exp(x - max).
extern "C" __global__ void __launch_bounds__(THREADS) softmax_forward(
    const T* x, T* y, long long outer, int n, int inner, int lanes) {
    __shared__ float scratch[FLOATS<Exponentials<1>> * THREADS];
    Layout layout{outer, n, inner, lanes};
    softmax_forward_of<1>(x, y, layout, scratch);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) softmax_forward_columns(
    const T* x, T* y, long long outer, int n, int inner, int lanes) {
    __shared__ float scratch[FLOATS<Exponentials<PACK>> * THREADS];
    Layout layout{outer, n, inner, lanes};
    softmax_forward_of<PACK>(x, y, layout, scratch);
}

// dx = y dy - y sum y dy.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_backward(
    const T* y, const T* dy, T* dx, long long outer, int n, int inner, int lanes) {
    __shared__ float scratch[FLOATS<Total<1>> * THREADS];
    Layout layout{outer, n, inner, lanes};
    softmax_backward_of<1>(y, dy, dx, layout, scratch);
}

extern "C" __global__ void __launch_bounds__(THREADS) softmax_backward_columns(
    const T* y, const T* dy, T* dx, long long outer, int n, int inner, int lanes) {
    __shared__ float scratch[FLOATS<Total<PACK>> * THREADS];
    Layout layout{outer, n, inner, lanes};
    softmax_backward_of<PACK>(y, dy, dx, layout, scratch);
}

// y = x - m - ln s with m = max x, s = sum exp(x - m), which are written too.
extern "C" __global__ void __launch_bounds__(THREADS) log_softmax_forward(
    const T* x, T* y, float* m, float* s, long long outer, int n, int inner, int lanes) {
    __shared__ float scratch[FLOATS<Exponentials<1>> * THREADS];
    Layout layout{outer, n, inner, lanes};
    log_softmax_forward_of<1>(x, y, m, s, layout, scratch);
}

extern "C" __global__ void __launch_bounds__(THREADS) log_softmax_forward_columns(
    const T* x, T* y, float* m, float* s, long long outer, int n, int inner, int lanes) {
    __shared__ float scratch[FLOATS<Exponentials<PACK>> * THREADS];
    Layout layout{outer, n, inner, lanes};
    log_softmax_forward_of<PACK>(x, y, m, s, layout, scratch);
}

// dx = dy - exp(x - m) / s sum dy.
extern "C" __global__ void __launch_bounds__(THREADS) log_softmax_backward(
    const T* x, const T* dy, const float* m, const float* s, T* dx, long long outer, int n, int inner, int lanes) {
    __shared__ float scratch[FLOATS<Total<1>> * THREADS];
    Layout layout{outer, n, inner, lanes};
    log_softmax_backward_of<1>(x, dy, m, s, dx, layout, scratch);
}

extern "C" __global__ void __launch_bounds__(THREADS) log_softmax_backward_columns(
    const T* x, const T* dy, const float* m, const float* s, T* dx, long long outer, int n, int inner, int lanes) {
    __shared__ float scratch[FLOATS<Total<PACK>> * THREADS];
    Layout layout{outer, n, inner, lanes};
    log_softmax_backward_of<PACK>(x, dy, m, s, dx, layout, scratch);
}
