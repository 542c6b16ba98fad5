// Softmax and log-softmax (softmax.py) along rows: runs of memory, x (rows, length). `lanes` neighbours among the
// threads share one.

#include "rows.cuh"

// ------------------------------------------------------------------------------------------------------- accumulators

// The largest x, and the sum of exp(x - max). While max is -infinity, where that would be nan, the sum is 0.
struct Exponentials {
    float max = Max::none, sum = 0.0f;

    __device__ static Exponentials combine(const Exponentials& a, const Exponentials& b) {
        Exponentials c;
        bool first = a.max >= b.max;
        float larger = first ? a.max : b.max, smaller = first ? b.max : a.max;
        float factor = larger == smaller ? 1.0f : expf(smaller - larger);
        c.max = Max::combine(a.max, b.max);
        c.sum = (first ? a.sum : b.sum) + (first ? b.sum : a.sum) * factor;
        return c;
    }

    // Of a batch of lines; e becomes exp(x - max).
    __device__ static Exponentials of(const Line (&line)[BATCH], const Pack (&x)[BATCH], float (&e)[BATCH][PACK]) {
        Exponentials c;
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            each(line[u], [&](int k) { c.max = Max::combine(c.max, widen(x[u].at[k])); });
        float shift = c.max == Max::none ? 0.0f : c.max;
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            each(line[u], [&](int k) { c.sum += e[u][k] = expf(widen(x[u].at[k]) - shift); });
        return c;
    }

    // As the definition has it: nan where all x are -infinity.
    __device__ void finish() { sum *= expf(max - max); }
};

struct Total {
    float sum = 0.0f;
    __device__ static Total combine(const Total& a, const Total& b) { return {a.sum + b.sum}; }
};

// ----------------------------------------------------------------------------------------------------------- the work

// One thread's part of a row.
struct Share {
    long long row;
    int lanes;
    bool there;
    Walk walk;

    __device__ Share(long long rows, int length, int lanes, bool wide)
        : row(static_cast<long long>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes), lanes(lanes),
          there(row < rows),
          walk(row * length, 0, 0, there, 1, threadIdx.x % lanes, lanes, 0, length, wide) {}

    __device__ bool writes() const { return there && threadIdx.x % lanes == 0; }
};

// Exponentials of the thread's walk. Where that is one batch, it is `complete` in e and `held`: nothing need be read or
// computed again.
__device__ inline Exponentials exponentials(const T* x, Walk walk, float (&e)[BATCH][PACK], Line (&held)[BATCH],
                                            bool& complete) {
    InBlocks<Exponentials> all;  // rounds: exponentials in blocks, FP32
    int batches = 0;
    each_batch(walk, {x}, [&](const Line (&lines)[BATCH], const Pack (&xs)[1][BATCH]) {
#pragma unroll
        for (int u = 0; u < BATCH; u++) held[u] = lines[u];
        all.add(Exponentials::of(lines, xs[0], e));
        batches++;
    });
    complete = batches <= 1;
    return all.total();
}

// y = exp(x - max) / sum exp(x - max).
extern "C" __global__ void __launch_bounds__(THREADS) softmax_forward(
    const T* x, T* y, long long rows, int length, int lanes) {
    __shared__ float scratch[FLOATS<Exponentials> * THREADS];
    Share share(rows, length, lanes, aligned16(x) && aligned16(y));
    float e[BATCH][PACK];
    Line held[BATCH] = {};
    bool complete;
    Exponentials mine = exponentials(x, share.walk, e, held, complete);
    Exponentials all = combine_lanes(mine, lanes, scratch);  // rounds: the sum of a row over lanes, FP32
    all.finish();
    if (complete) {
        float factor = expf(mine.max - all.max) / all.sum;
#pragma unroll
        for (int u = 0; u < BATCH; u++) write(y, held[u], share.walk.wide, [&](int k) { return e[u][k] * factor; });
        return;
    }
    float factor = 1.0f / all.sum;
    each_line(share.walk, {x}, [&](const Line& line, const Pack& xs) {
        write(y, line, share.walk.wide, [&](int k) { return expf(widen(xs.at[k]) - all.max) * factor; });
    });
}

// dx = y dy - y sum y dy.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_backward(
    const T* y, const T* dy, T* dx, long long rows, int length, int lanes) {
    __shared__ float scratch[FLOATS<Total> * THREADS];
    Share share(rows, length, lanes, aligned16(y) && aligned16(dy) && aligned16(dx));
    auto add = [&](Total& few, const Line& line, const Pack& ys, const Pack& dys) {
        each(line, [&](int k) { few.sum += widen(ys.at[k]) * widen(dys.at[k]); });
    };
    Total total = combine_lanes(add_lines<Total>(share.walk, {y, dy}, add), lanes, scratch);  // rounds: FP32 sums
    each_line(share.walk, {y, dy}, [&](const Line& line, const Pack& ys, const Pack& dys) {
        write(dx, line, share.walk.wide, [&](int k) {
            float p = widen(ys.at[k]);
            return p * widen(dys.at[k]) - p * total.sum;
        });
    });
}

// y = x - m - ln s with m = max x, s = sum exp(x - m), which are written as well.
extern "C" __global__ void __launch_bounds__(THREADS) log_softmax_forward(
    const T* x, T* y, float* m, float* s, long long rows, int length, int lanes) {
    __shared__ float scratch[FLOATS<Exponentials> * THREADS];
    Share share(rows, length, lanes, aligned16(x) && aligned16(y));
    float e[BATCH][PACK];
    Line held[BATCH];
    bool complete;
    // rounds: the sum of a row over lanes, FP32
    Exponentials all = combine_lanes(exponentials(x, share.walk, e, held, complete), lanes, scratch);
    all.finish();
    float log_sum = logf(all.sum);
    if (share.writes()) {
        m[share.row] = all.max;
        s[share.row] = all.sum;
    }
    each_line(share.walk, {x}, [&](const Line& line, const Pack& xs) {
        write(y, line, share.walk.wide, [&](int k) { return widen(xs.at[k]) - all.max - log_sum; });
    });
}

// dx = dy - exp(x - m) / s sum dy.
extern "C" __global__ void __launch_bounds__(THREADS) log_softmax_backward(
    const T* x, const T* dy, const float* m, const float* s, T* dx, long long rows, int length, int lanes) {
    __shared__ float scratch[FLOATS<Total> * THREADS];
    Share share(rows, length, lanes, aligned16(x) && aligned16(dy) && aligned16(dx));
    auto add = [&](Total& few, const Line& line, const Pack& dys) {
        each(line, [&](int k) { few.sum += widen(dys.at[k]); });
    };
    Total total = combine_lanes(add_lines<Total>(share.walk, {dy}, add), lanes, scratch);  // rounds: FP32 sums
    float shift = share.there ? m[share.row] : 0.0f, factor = share.there ? total.sum / s[share.row] : 0.0f;
    each_line(share.walk, {x, dy}, [&](const Line& line, const Pack& xs, const Pack& dys) {
        write(dx, line, share.walk.wide,
              [&](int k) { return widen(dys.at[k]) - expf(widen(xs.at[k]) - shift) * factor; });
    });
}
