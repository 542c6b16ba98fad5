// Cross entropy (loss.py) along rows: runs of memory, x (rows, length), with the softmax in it. `lanes` neighbours among
// the threads share a row. t, kept, w, top, scale, target and the losses have one value per row. weight: (length,), or
// null for ones.

#include "elements.cuh"
#include "rows.cuh"
#include "exponentials.cuh"

// What `WeightedCrossEntropy.forward` (ops/more/loss.py) says of a row, which is saved for backward. An ignored row counts 0; a class that does not exist
// raises the flag `bad`, makes its row nan, and is never used as an index.
struct Label {
    bool kept;
    long long t;
    float w;

    __device__ Label(long long target, long long ignore_index, int classes, const float* weight, int* bad) {
        kept = target != ignore_index;
        bool exists = target >= 0 && target < classes;
        if (kept && !exists && bad) *bad = 1;
        t = kept && exists ? target : 0;
        w = !kept ? 0.0f : !exists ? __uint_as_float(0x7fffffffu) : weight ? weight[t] : 1.0f;
    }
};

// l = -(1 - s) w_t z_t - s/C sum_c w_c z_c + q ln sum_c e^z_c with z = x - top, q = (1 - s) w_t + s/C sum_c w_c.
//
// hard = 1 - s, share = s/C, smoothing = s; weights: sum_c w_c, where there are weights and s > 0. Saves t, kept, w,
// top and scale = q / total. sum_c w_c z_c comes from sum_c w_c (x_c - x_t): it stays as exact for logits of 65504 as z is.
// (Where x_t is infinite, 0 stands for it: the sum then is what it would be with z.)
extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy_forward(const T* x, const long long* target, const float* weight, long long ignore_index, int* bad,
                          long long* t, bool* kept, float* w, float* losses, float* top, float* scale,
                          const float* weights, float hard, float share, float smoothing, long long rows, int length,
                          int lanes) {
    __shared__ float scratch[FLOATS<Exponentials> * THREADS];
    RowShare mine(rows, length, lanes, aligned16(x));  // a thread without a row goes along, for the reductions
    Label label(mine.there ? target[mine.row] : ignore_index, ignore_index, length, weight, bad);
    float x_t = mine.there ? widen(x[mine.row * length + label.t]) : 0.0f, origin = isfinite(x_t) ? x_t : 0.0f;
    float e[BATCH][PACK];
    Line held[BATCH];
    bool complete;
    // rounds: the sum of a row over lanes, FP32
    Exponentials all = combine_lanes(exponentials(x, mine.walk, e, held, complete), lanes, scratch);
    all.finish();
    float q = hard * label.w, loss = -q * (x_t - all.max);
    if (share != 0.0f) {
        auto add = [&](Total<1>& few, const Line& line, const Pack& xs) {
            each(line, [&](int k) { few.sum[0] += (weight ? weight[line.column + k] : 1.0f) * (widen(xs.at[k]) - origin); });
        };
        // rounds: FP32 sums
        float spread = combine_lanes(add_lines<Total<1>>(mine.walk, {x}, add), lanes, scratch).sum[0];
        // rounds: never, a count, exact up to 2^24
        loss -= share * (spread + (weight ? *weights : static_cast<float>(length)) * (origin - all.max));
        q += weight ? share * *weights : smoothing;
    }
    if (!mine.writes()) return;
    t[mine.row] = label.t;
    kept[mine.row] = label.kept;
    w[mine.row] = label.w;
    top[mine.row] = all.max;
    scale[mine.row] = q / all.sum;
    losses[mine.row] = label.kept ? loss + q * logf(all.sum) : 0.0f;
}

// dx_c = dl (q softmax(x)_c - s/C w_c - (1 - s) w_t [c = t]) = dl (e^(x_c - top) scale - ...). dy: one value, or one per
// row; divisor: of a mean, else null; w: null for ones.
extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy_backward(const T* x, const long long* t, const bool* kept, const float* dy, int per_row,
                           const float* divisor, R* dx, const float* w, const float* top, const float* scale,
                           const float* weight, float hard, float share, long long rows, int length, int lanes) {
    RowShare mine(rows, length, lanes, aligned16(x) && aligned16(dx));
    if (!mine.there) return;
    long long r = mine.row;
    bool counts = kept[r];  // else the row may hold NaN, and 0 times that is NaN
    float dl = counts ? dy[per_row ? r : 0] / (divisor ? *divisor : 1.0f) : 0.0f;
    float above = top[r], factor = dl * scale[r], hit = dl * (hard * (w ? w[r] : 1.0f)), spread = dl * share;
    each_line(mine.walk, {x}, [&](const Line& line, const Pack& xs) {
        write(dx, line, mine.walk.wide, [&](int k) {
            float d = expf(widen(xs.at[k]) - above) * factor;
            if (share != 0.0f && line.has(k)) d -= weight ? spread * weight[line.column + k] : spread;
            if (line.column + k == t[r]) d -= hit;
            return counts ? d : 0.0f;
        });
    });
}
