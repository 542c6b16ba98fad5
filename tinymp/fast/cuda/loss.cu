// Losses over classes (loss.py): cross entropy, with the softmax in it, and the negative log likelihood.
//
// x is (outer, C, inner); see `channels` in layout.py. Row r = o inner + i holds x_c at x[(o C + c) inner + i].
// t, kept, w, top, scale, target and the losses have one value per row, in this order. weight: (C,), or null for ones.

constexpr float LOWEST = -3.402823466e38f;  // the smallest finite FP32 value

__device__ inline long long start_of(long long r, int classes, long long inner) {
    return r / inner * classes * inner + r % inner;
}

// What `Labelled.read` says of a row, which it saves for backward. An ignored row counts 0; a class that does not exist
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

    __device__ void save(long long r, long long* t_of, bool* kept_of, float* w_of) const {
        t_of[r] = t;
        kept_of[r] = kept;
        w_of[r] = w;
    }
};

// Sums of what this thread saw: the losses of kept rows, and their weights. For reduction="none", `losses` is an array
// with one value per row; else `partial` gets both sums of each block, for `total_loss`.
struct Totals {
    float loss = 0.0f, weight = 0.0f;

    __device__ void add(long long r, const Label& label, float row_loss, float* losses) {
        float kept = label.kept ? row_loss : 0.0f;
        if (losses) losses[r] = kept;
        loss += kept;
        weight += label.w;
    }

    __device__ void store_block(float* partial, float* scratch) const {
        // rounds: the losses and weights of a block, summed in FP32
        float loss_of_block = block_reduce<Sum>(loss, scratch), weight_of_block = block_reduce<Sum>(weight, scratch);
        if (threadIdx.x == 0) {
            partial[2 * blockIdx.x] = loss_of_block;
            partial[2 * blockIdx.x + 1] = weight_of_block;
        }
    }
};

// One block: loss = the sum of all losses, over the sum of the weights where that is asked for with `divisor`.
extern "C" __global__ void total_loss(const float* partial, float* loss, float* divisor, int n) {
    __shared__ float scratch[32];
    float losses = 0.0f, weights = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        losses += partial[2 * i];
        weights += partial[2 * i + 1];
    }
    losses = block_reduce<Sum>(losses, scratch);  // rounds: the total loss, summed in FP32
    weights = block_reduce<Sum>(weights, scratch);  // rounds: the total weight, summed in FP32
    if (threadIdx.x == 0) {
        *loss = divisor ? losses / weights : losses;
        if (divisor) *divisor = weights;
    }
}

// dL/dl of row r. dy: one value, or one per row; divisor: of a mean, else null.
__device__ inline float gradient_of_loss(const float* dy, int per_row, const float* divisor, const bool* kept,
                                         long long r) {
    float dl = dy[per_row ? r : 0];
    if (divisor) dl /= *divisor;
    return kept[r] ? dl : 0.0f;
}

// --------------------------------------------------------------------------------------------------- walking over rows

// PACK logits of a row from class c on; beyond its ends, -inf.
__device__ inline Pack read(const T* row, int c, int classes, long long inner) {
    if (inner == 1 && c >= 0 && c + PACK <= classes && aligned16(row + c)) return Pack(row + c);
    Pack pack;
#pragma unroll
    for (int j = 0; j < PACK; j++)
        if (c + j >= 0 && c + j < classes)
            pack.at[j] = row[(c + j) * inner];
        else
            store(&pack.at[j], Max::none);  // rounds: never, -infinity is stored exactly
    return pack;
}

// f(c, pack) for each pack of PACK classes that is this lane's, from class c on: `lanes` neighbouring threads share a
// row. Where it lies in one piece (inner = 1), packs begin at multiples of 16 bytes, so that the first may have c < 0.
// Several packs are read before the first is used, which hides memory's latency.
template <class F>
__device__ inline void for_each_pack(const T* row, int classes, long long inner, int lane, int lanes, F f) {
    constexpr int BATCH = 2;
    int before = inner == 1 ? (reinterpret_cast<unsigned long long>(row) & 15) / sizeof(T) : 0, step = lanes * PACK;
    for (int first = lane * PACK - before; first < classes; first += BATCH * step) {
        Pack packs[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (first + b * step < classes) packs[b] = read(row, first + b * step, classes, inner);
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (first + b * step < classes) f(first + b * step, packs[b]);
    }
}

// ------------------------------------------------------------------------------------------------------- cross entropy

// Of the classes that a thread has seen: top = max x_c and total = sum exp(x_c - top), in one pass. When a larger x_c
// comes, the total so far is scaled down to it. top starts at a finite value, so that rows may begin with -inf; nan does
// not show in it, but in the total.
struct Softmax {
    float top = LOWEST, total = 0.0f;

    __device__ void add(const Pack& x) {
        float above = top;
#pragma unroll
        for (int j = 0; j < PACK; j++) above = fmaxf(above, widen(x.at[j]));
        if (above > top) {
            total *= expf(top - above);
            top = above;
        }
        float few = 0.0f;
#pragma unroll
        for (int j = 0; j < PACK; j++) few += expf(widen(x.at[j]) - top);
        total += few;
    }
};

// l = -(1 - s) w_t z_t - s/C sum_c w_c z_c + q ln sum_c e^z_c with z = x - top, q = (1 - s) w_t + s/C sum_c w_c.
//
// hard = 1 - s, share = s/C, smoothing = s; weights: sum_c w_c, where there are weights and s > 0. Saves t, kept, w,
// top and scale = q / total. sum_c w_c z_c comes from sum_c w_c (x_c - x_t), which needs no top: it stays as exact for
// logits of 65504 as z is. (Where x_t is infinite, 0 stands for it: the sum then is what it would be with z.)
extern "C" __global__ void __launch_bounds__(256)
    cross_entropy_forward(const T* x, const long long* target, const float* weight, long long ignore_index, int* bad,
                          long long* t, bool* kept, float* w, float* losses, float* partial, long long rows,
                          int classes, long long inner, float* top, float* scale, const float* weights, float hard,
                          float share, float smoothing, int lanes) {
    __shared__ float scratch[32];
    int lane = threadIdx.x % lanes, rows_per_block = blockDim.x / lanes;
    Totals totals;
    for (long long first = static_cast<long long>(blockIdx.x) * rows_per_block; first < rows;
         first += static_cast<long long>(gridDim.x) * rows_per_block) {
        long long r = first + threadIdx.x / lanes;
        bool ours = r < rows;  // a thread without a row goes along, for the reductions
        const T* row = x + start_of(ours ? r : 0, classes, inner);
        Label label(ours ? target[r] : ignore_index, ignore_index, classes, weight, bad);
        float x_t = widen(row[label.t * inner]), origin = isfinite(x_t) ? x_t : 0.0f, spread = 0.0f;
        Softmax softmax;
        if (ours)
            for_each_pack(row, classes, inner, lane, lanes, [&](int c, const Pack& pack) {
                softmax.add(pack);
                if (share != 0.0f) {
                    float few = 0.0f;
#pragma unroll
                    for (int j = 0; j < PACK; j++)
                        if (c + j >= 0 && c + j < classes)
                            few += (weight ? weight[c + j] : 1.0f) * (widen(pack.at[j]) - origin);
                    spread += few;
                }
            });
        float row_top = reduce_lanes<Max>(softmax.top, lanes, scratch);
        // rounds: the sum of a row's exponentials, FP32
        float total = reduce_lanes<Sum>(softmax.total * expf(softmax.top - row_top), lanes, scratch);
        float hit = hard * label.w, q = hit, loss = -hit * (x_t - row_top);
        if (share != 0.0f) {
            spread = reduce_lanes<Sum>(spread, lanes, scratch);  // rounds: the sum of a row's logits, FP32
            // rounds: never, a count, exact up to 2^24
            loss -= share * (spread + (weight ? *weights : static_cast<float>(classes)) * (origin - row_top));
            q += weight ? share * *weights : smoothing;
        }
        if (ours && lane == 0) {
            label.save(r, t, kept, w);
            top[r] = row_top;
            scale[r] = q / total;
            totals.add(r, label, loss + q * logf(total), losses);
        }
    }
    if (partial) totals.store_block(partial, scratch);
}

// dx_c = dl (q softmax(x)_c - s/C w_c - (1 - s) w_t [c = t]) = dl (e^(x_c - top) scale - ...).
extern "C" __global__ void __launch_bounds__(256)
    cross_entropy_backward(const long long* t, const bool* kept, const float* dy, int per_row, const float* divisor,
                           T* dx, long long rows, int classes, long long inner, const float* w, const float* top,
                           const float* scale, const T* x, const float* weight, float hard, float share, int lanes) {
    int lane = threadIdx.x % lanes, rows_per_block = blockDim.x / lanes;
    for (long long r = static_cast<long long>(blockIdx.x) * rows_per_block + threadIdx.x / lanes; r < rows;
         r += static_cast<long long>(gridDim.x) * rows_per_block) {
        float dl = gradient_of_loss(dy, per_row, divisor, kept, r), above = top[r], factor = dl * scale[r];
        float hit = dl * (hard * w[r]), spread = dl * share;
        long long label = t[r];
        bool counts = kept[r];  // else the row may hold NaN, and 0 times that is NaN
        T* to = dx + start_of(r, classes, inner);
        for_each_pack(x + start_of(r, classes, inner), classes, inner, lane, lanes, [&](int c, Pack pack) {
#pragma unroll
            for (int j = 0; j < PACK; j++) {
                float d = expf(widen(pack.at[j]) - above) * factor;
                if (share != 0.0f && c + j >= 0 && c + j < classes) d -= weight ? spread * weight[c + j] : spread;
                if (c + j == label) d -= hit;
                store(&pack.at[j], counts ? d : 0.0f);  // rounds: the gradient of the logits
            }
            if (inner == 1 && c >= 0 && c + PACK <= classes && aligned16(to + c))
                pack.store_to(to + c);
            else
#pragma unroll
                for (int j = 0; j < PACK; j++)
                    if (c + j >= 0 && c + j < classes) to[(c + j) * inner] = pack.at[j];
        });
    }
}

// --------------------------------------------------------------------------------------------- negative log likelihood

// l = -w_t x_t. A thread takes a row.
extern "C" __global__ void nll_forward(const T* x, const long long* target, const float* weight, long long ignore_index,
                                       int* bad, long long* t, bool* kept, float* w, float* losses, float* partial,
                                       long long rows, int classes, long long inner) {
    __shared__ float scratch[32];
    Totals totals;
    for (long long r = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; r < rows;
         r += static_cast<long long>(gridDim.x) * blockDim.x) {
        Label label(target[r], ignore_index, classes, weight, bad);
        label.save(r, t, kept, w);
        totals.add(r, label, -label.w * widen(x[start_of(r, classes, inner) + label.t * inner]), losses);
    }
    if (partial) totals.store_block(partial, scratch);
}

// dx_t = -w_t dl; the rest of dx is 0 already.
extern "C" __global__ void nll_backward(const long long* t, const bool* kept, const float* dy, int per_row,
                                        const float* divisor, T* dx, long long rows, int classes, long long inner,
                                        const float* w) {
    for (long long r = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; r < rows;
         r += static_cast<long long>(gridDim.x) * blockDim.x) {
        float dl = gradient_of_loss(dy, per_row, divisor, kept, r);
        store(dx + start_of(r, classes, inner) + t[r] * inner, -w[r] * dl);  // rounds: the gradient of nll_loss
    }
}
