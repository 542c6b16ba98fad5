// The optimizer's work on all parameters in one launch (optimizer.py). Block b works on chunk b: CHUNK neighbouring
// elements of one tensor (fewer at its end), whose address in each list it reads from a table. Updates compute in FP32
// throughout (UPDATE, MPT section 3.1); T is the storage of the gradients, and the working copies are FP16.
//
// addresses  tensors x lists: where the tensor begins in each of the kernel's lists, 0 if it has no array there
// tensors    tensors x 2: number of elements, place in the caller's lists
// chunks     chunks x 2: row of `tensors`, number of the chunk within the tensor

#include "elements.cuh"
#include "random.cuh"

constexpr int CHUNK = 8192;  // optimizer.py has the same number
constexpr int GROUP = 8;     // elements per thread at a time: 16 bytes of FP16, 32 of FP32

struct Chunk {
    int tensor, count;
    long long first;

    __device__ Chunk(const long long* tensors, const int* chunks) {
        tensor = chunks[2 * blockIdx.x];
        first = static_cast<long long>(chunks[2 * blockIdx.x + 1]) * CHUNK;
        count = static_cast<int>(min(static_cast<long long>(CHUNK), tensors[2 * tensor] - first));
    }

    // Where it lies in one of the lists, or null.
    template <class E>
    __device__ E* in(const unsigned long long* addresses, int lists, int list) const {
        unsigned long long address = addresses[tensor * lists + list];
        return address ? reinterpret_cast<E*>(address) + first : nullptr;
    }
};

// GROUP elements, or the first n of them and zeros; `whole`: n is GROUP and the address is a multiple of 16.
template <class E>
__device__ inline Values<GROUP> load(const E* from, int n, bool whole) {
    if (whole) return load(Width<GROUP>(), from);
    Values<GROUP> values;
#pragma unroll
    for (int i = 0; i < GROUP; i++) values.at[i] = i < n ? widen(from[i]) : 0.0f;
    return values;
}

template <class E>
__device__ inline void save(E* to, const Values<GROUP>& values, int n, bool whole) {
    if (whole) return save(to, values);
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        if (i < n) store(to + i, values.at[i]);  // rounds: a master (FP32) or its copy (FP16): the write-back
}

// --------------------------------------------------------------------------------------------- checking the gradients

// Writes g / scale to the second list, where the tensor has an array there, and lowers *found, if
// given, to the smallest place of a gradient for which that is not finite.  Lists: gradient, result in FP32.
extern "C" __global__ void __launch_bounds__(256) rescale(const unsigned long long* addresses,
                                                          const long long* tensors, const int* chunks,
                                                          const float* scale, int* found) {
    const Chunk chunk(tensors, chunks);
    const T* gradient = chunk.in<const T>(addresses, 2, 0);
    float* result = chunk.in<float>(addresses, 2, 1);
    bool aligned = aligned16(gradient) && aligned16(result), finite = true;
    float s = scale ? *scale : 1.0f;
    for (int i = threadIdx.x * GROUP; i < chunk.count; i += blockDim.x * GROUP) {
        int n = min(GROUP, chunk.count - i);
        bool whole = aligned && n == GROUP;
        Values<GROUP> g = load(gradient + i, n, whole);
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            g.at[j] /= s;
            finite = finite && isfinite(g.at[j]);  // after the division: a scale below 1 may hide an infinity
        }
        if (result) save(result + i, g, n, whole);
    }
    if (found && !finite) atomicMin(found, static_cast<int>(tensors[2 * chunk.tensor + 1]));
}

// --------------------------------------------------------------------------------------------------- the update rules

enum { GRADIENT, MASTER, COPY, STEP, STATE, LISTS = STATE + 3 };  // the lists of an update
constexpr int ROW = 12;                                           // room for the constants of a rule

// A step starts with one thread per tensor: it counts the step and computes in double, as Python does, the constants of
// the rule, which it writes in FP32 to the tensor's row of `constants`. A skipped step does not count.
// A rule updates element j of a group: its weight w, from its gradient g, and its state s. optimizer.py reads here what
// Python calls the numbers of its Options and its states, and puts them in this order.
__device__ inline bool begins(const unsigned long long* addresses, int n, const bool* skip, int& i, int& t) {
    i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || (skip && *skip)) return false;
    t = ++*reinterpret_cast<int*>(addresses[i * LISTS + STEP]);
    return true;
}

__device__ inline double power(double x, int n) {
    double y = 1.0;
    for (; n > 0; n /= 2, x *= x)
        if (n % 2) y *= x;
    return y;
}

// g <- g + decay w;  m <- momentum m + gain g;  w <- w - lr m, or with Nesterov w - lr (g + momentum m)
struct SGD {
    enum { momentum_buffer, STATES };
    struct Options { double lr, momentum, dampening, weight_decay; };
    float lr, momentum, gain, decay, nesterov;

    __device__ void update(float& w, float g, Values<GROUP> (&s)[STATES], int j) const {
        float& m = s[momentum_buffer].at[j];
        if (decay != 0.0f) g += decay * w;
        if (momentum != 0.0f) {
            m = momentum * m + gain * g;
            g = nesterov != 0.0f ? g + momentum * m : m;
        }
        w -= lr * g;
    }
};

// gain = 1 - dampening, but 1 in the first step with a momentum. The list after that of the momentum buffers holds the
// number of steps before the buffer was made (int), null for 0.
extern "C" __global__ void sgd_begin(const unsigned long long* addresses, int n, const bool* skip,
                                     const double* options, int nesterov, float* constants) {
    int i, t;
    if (!begins(addresses, n, skip, i, t)) return;
    SGD& rule = *reinterpret_cast<SGD*>(constants + ROW * i);
    const auto& by = *reinterpret_cast<const SGD::Options*>(options);
    rule.lr = static_cast<float>(by.lr);  // rounds: a constant of the rule, from Python's FP64
    rule.momentum = static_cast<float>(by.momentum);  // rounds: a constant of the rule, from Python's FP64
    const int* since = reinterpret_cast<const int*>(addresses[i * LISTS + STATE + 1]);
    // rounds: a constant of the rule, from Python's FP64
    rule.gain = t == (since ? *since : 0) + 1 ? 1.0f : static_cast<float>(1.0 - by.dampening);
    rule.decay = static_cast<float>(by.weight_decay);  // rounds: a constant of the rule, from Python's FP64
    rule.nesterov = static_cast<float>(nesterov);  // rounds: never, 0 or 1
}

// g <- g + decay w;  s <- s + g^2;  w <- w - lr_t g / (sqrt(s) + eps)
struct Adagrad {
    enum { sum, STATES };
    struct Options { double lr, lr_decay, weight_decay, eps; };
    float lr_t, decay, eps;

    __device__ void update(float& w, float g, Values<GROUP> (&s)[STATES], int j) const {
        if (decay != 0.0f) g += decay * w;
        s[sum].at[j] += g * g;
        w -= lr_t * g / (sqrtf(s[sum].at[j]) + eps);
    }
};

// lr_t = lr / (1 + (t - 1) lr_decay).
extern "C" __global__ void adagrad_begin(const unsigned long long* addresses, int n, const bool* skip,
                                         const double* options, float* constants) {
    int i, t;
    if (!begins(addresses, n, skip, i, t)) return;
    Adagrad& rule = *reinterpret_cast<Adagrad*>(constants + ROW * i);
    const auto& by = *reinterpret_cast<const Adagrad::Options*>(options);
    rule.lr_t = static_cast<float>(by.lr / (1.0 + (t - 1) * by.lr_decay));  // rounds: a constant, from FP64
    rule.decay = static_cast<float>(by.weight_decay);  // rounds: a constant of the rule, from Python's FP64
    rule.eps = static_cast<float>(by.eps);  // rounds: a constant of the rule, from Python's FP64
}

// w <- shrink w;  g <- g + decay w;  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
// w <- w - lr_t m / (sqrt(v) root + eps),  with amsgrad the largest v so far instead of v
struct Adam {
    enum { exp_avg, exp_avg_sq, max_exp_avg_sq, STATES };
    struct Options { double lr, beta1, beta2, weight_decay, eps; };
    float b1, rest1, b2, rest2, lr_t, root, eps, decay, shrink, amsgrad;

    __device__ void update(float& w, float g, Values<GROUP> (&s)[STATES], int j) const {
        float &m = s[exp_avg].at[j], &v = s[exp_avg_sq].at[j], &largest = s[max_exp_avg_sq].at[j];
        w *= shrink;
        if (decay != 0.0f) g += decay * w;
        m = b1 * m + rest1 * g;
        v = b2 * v + rest2 * g * g;
        largest = Max::combine(largest, v);
        w -= m / (sqrtf(amsgrad != 0.0f ? largest : v) * root + eps) * lr_t;
    }
};

// lr_t = lr / (1 - beta1^t), root = 1 / sqrt(1 - beta2^t); weight decay is added to the gradient, or, decoupled,
// shrinks the weight: shrink = 1 - lr weight_decay.
extern "C" __global__ void adam_begin(const unsigned long long* addresses, int n, const bool* skip,
                                      const double* options, int amsgrad, int decoupled, float* constants) {
    int i, t;
    if (!begins(addresses, n, skip, i, t)) return;
    Adam& rule = *reinterpret_cast<Adam*>(constants + ROW * i);
    const auto& by = *reinterpret_cast<const Adam::Options*>(options);
    rule.b1 = static_cast<float>(by.beta1);  // rounds: a constant of the rule, from Python's FP64
    rule.rest1 = static_cast<float>(1.0 - by.beta1);  // rounds: a constant of the rule, from Python's FP64
    rule.b2 = static_cast<float>(by.beta2);  // rounds: a constant of the rule, from Python's FP64
    rule.rest2 = static_cast<float>(1.0 - by.beta2);  // rounds: a constant of the rule, from Python's FP64
    rule.lr_t = static_cast<float>(by.lr / (1.0 - power(by.beta1, t)));  // rounds: a constant, from FP64
    rule.root = static_cast<float>(1.0 / sqrt(1.0 - power(by.beta2, t)));  // rounds: a constant, from FP64
    rule.eps = static_cast<float>(by.eps);  // rounds: a constant of the rule, from Python's FP64
    rule.decay = decoupled ? 0.0f : static_cast<float>(by.weight_decay);  // rounds: a constant, from FP64
    // rounds: a constant, from FP64
    rule.shrink = decoupled ? static_cast<float>(1.0 - by.lr * by.weight_decay) : 1.0f;
    rule.amsgrad = static_cast<float>(amsgrad);  // rounds: never, 0 or 1
}

// One rule on one chunk. The master is written exactly, the working copy with one rounding: to nearest, or, where
// `random` (the state of philox.py) is given, stochastically. Without a master the weights are those of the copy.
template <class Rule>
__device__ inline void update(const unsigned long long* addresses, const long long* tensors, const int* chunks,
                              const float* constants, const bool* skip, const float* scale, int maximize,
                              const unsigned long long* random) {
    static_assert(sizeof(Rule) <= ROW * sizeof(float), "constants need a wider row");
    if (skip && *skip) return;
    const Chunk chunk(tensors, chunks);
    const Rule rule = *reinterpret_cast<const Rule*>(constants + ROW * chunk.tensor);
    const T* gradient = chunk.in<const T>(addresses, LISTS, GRADIENT);
    float* master = chunk.in<float>(addresses, LISTS, MASTER);
    half* copy = chunk.in<half>(addresses, LISTS, COPY);
    float* state[Rule::STATES];
    bool aligned = aligned16(gradient) && aligned16(master) && aligned16(copy);
#pragma unroll
    for (int k = 0; k < Rule::STATES; k++) {
        state[k] = chunk.in<float>(addresses, LISTS, STATE + k);
        aligned = aligned && aligned16(state[k]);
    }
    for (int i = threadIdx.x * GROUP; i < chunk.count; i += blockDim.x * GROUP) {
        int n = min(GROUP, chunk.count - i);
        bool whole = aligned && n == GROUP;
        Values<GROUP> gradients = load(gradient + i, n, whole), s[Rule::STATES] = {};
        Values<GROUP> w = master ? load(master + i, n, whole) : load(copy + i, n, whole);
#pragma unroll
        for (int k = 0; k < Rule::STATES; k++)
            if (state[k]) s[k] = load(state[k] + i, n, whole);
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            float g = gradients.at[j];
            if (scale) g /= *scale;  // unscaled in FP32 (NVG section 2.3.1, step 5)
            rule.update(w.at[j], maximize ? -g : g, s, j);
        }
#pragma unroll
        for (int k = 0; k < Rule::STATES; k++)
            if (state[k]) save(state[k] + i, s[k], n, whole);
        if (master) save(master + i, w, n, whole);
        if (copy && random) {
            auto bits = draw<GROUP>(random, static_cast<unsigned long long>(blockIdx.x) * CHUNK + i);
#pragma unroll
            for (int j = 0; j < GROUP; j++)  // the values are in FP16 now, so that `save` is exact
                w.at[j] = widen(round_stochastically(w.at[j], bits.at[j]));
        }
        if (copy) save(copy + i, w, n, whole);
    }
}

#define LISTS_AND_HOW                                                                                               \
    const unsigned long long *addresses, const long long *tensors, const int *chunks, const float *constants,       \
        const bool *skip, const float *scale, int maximize, const unsigned long long *random
#define UPDATE(RULE) update<RULE>(addresses, tensors, chunks, constants, skip, scale, maximize, random)
extern "C" __global__ void __launch_bounds__(256) sgd(LISTS_AND_HOW) { UPDATE(SGD); }
extern "C" __global__ void __launch_bounds__(256) adagrad(LISTS_AND_HOW) { UPDATE(Adagrad); }
extern "C" __global__ void __launch_bounds__(256) adam(LISTS_AND_HOW) { UPDATE(Adam); }
