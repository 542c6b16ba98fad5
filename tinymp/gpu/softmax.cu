// Softmax and log-softmax (softmax.py) along rows: runs of memory, x (rows, length). `lanes` neighbours among the
// threads share one.

#include "elements.cuh"
#include "rows.cuh"
#include "exponentials.cuh"

// y = exp(x - max) / sum exp(x - max).
extern "C" __global__ void __launch_bounds__(THREADS) softmax_forward(
    const T* x, R* y, long long rows, int length, int lanes) {
    __shared__ float scratch[FLOATS<Exponentials> * THREADS];
    RowShare share(rows, length, lanes, aligned16(x) && aligned16(y));
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

// dx = y (dy - sum y dy).
extern "C" __global__ void __launch_bounds__(THREADS) softmax_backward(
    const T* y, const T* dy, R* dx, long long rows, int length, int lanes) {
    __shared__ float scratch[FLOATS<Total<1>> * THREADS];
    RowShare share(rows, length, lanes, aligned16(y) && aligned16(dy) && aligned16(dx));
    auto add = [&](Total<1>& few, const Line& line, const Pack& ys, const Pack& dys) {
        each(line, [&](int k) { few.sum[0] += widen(ys.at[k]) * widen(dys.at[k]); });
    };
    // rounds: FP32 sums
    float sum = combine_lanes(add_lines<Total<1>>(share.walk, {y, dy}, add), lanes, scratch).sum[0];
    each_line(share.walk, {y, dy}, [&](const Line& line, const Pack& ys, const Pack& dys) {
        write(dx, line, share.walk.wide, [&](int k) { return widen(ys.at[k]) * (widen(dys.at[k]) - sum); });
    });
}

// y = x - m - ln s with m = max x, s = sum exp(x - m), which are written as well.
extern "C" __global__ void __launch_bounds__(THREADS) log_softmax_forward(
    const T* x, R* y, float* m, float* s, long long rows, int length, int lanes) {
    __shared__ float scratch[FLOATS<Exponentials> * THREADS];
    RowShare share(rows, length, lanes, aligned16(x) && aligned16(y));
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
    const T* x, const T* dy, const float* m, const float* s, R* dx, long long rows, int length, int lanes) {
    __shared__ float scratch[FLOATS<Total<1>> * THREADS];
    RowShare share(rows, length, lanes, aligned16(x) && aligned16(dy) && aligned16(dx));
    float sum = combine_lanes(total<1>(dy, share.walk), lanes, scratch).sum[0];  // rounds: FP32 sums
    float shift = share.there ? m[share.row] : 0.0f, factor = share.there ? sum / s[share.row] : 0.0f;
    each_line(share.walk, {x, dy}, [&](const Line& line, const Pack& xs, const Pack& dys) {
        write(dx, line, share.walk.wide,
              [&](int k) { return widen(dys.at[k]) - expf(widen(xs.at[k]) - shift) * factor; });
    });
}
