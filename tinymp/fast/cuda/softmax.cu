// Softmax and log-softmax (softmax.py) along rows: runs of memory, x (rows, length). `lanes` neighbours among the
// threads share one.

#include "rows.cuh"
#include "exponentials.cuh"

// y = exp(x - max) / sum exp(x - max).
extern "C" __global__ void __launch_bounds__(THREADS) softmax_forward(
    const T* x, T* y, long long rows, int length, int lanes) {
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

// dx = y dy - y sum y dy.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_backward(
    const T* y, const T* dy, T* dx, long long rows, int length, int lanes) {
    __shared__ float scratch[FLOATS<OneSum> * THREADS];
    RowShare share(rows, length, lanes, aligned16(y) && aligned16(dy) && aligned16(dx));
    auto add = [&](OneSum& few, const Line& line, const Pack& ys, const Pack& dys) {
        each(line, [&](int k) { few.sum += widen(ys.at[k]) * widen(dys.at[k]); });
    };
    OneSum total = combine_lanes(add_lines<OneSum>(share.walk, {y, dy}, add), lanes, scratch);  // rounds: FP32 sums
    each_line(share.walk, {y, dy}, [&](const Line& line, const Pack& ys, const Pack& dys) {
        write(dx, line, share.walk.wide, [&](int k) {
            float p = widen(ys.at[k]);
            return p * widen(dys.at[k]) - p * total.sum;
        });
    });
}
