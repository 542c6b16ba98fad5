// Random numbers of the GPU; see `draw` in random.cuh. state: [seed, offset] in device memory; philox.py moves on to
// the next offset after a launch. What is written is freshly allocated, and so aligned.

#include "elements.cuh"
#include "random.cuh"

// y: n numbers in [0, 1).
extern "C" __global__ void draw_uniform(const unsigned long long* state, float* y, long long n) {
    each_chunk(n, true, [=](auto width, long long i) {
        auto bits = draw<width.length>(state, i);
        Values<width.length> drawn;
#pragma unroll
        for (int k = 0; k < width.length; k++) drawn.at[k] = uniform(bits.at[k]);
        save(y + i, drawn);
    });
}

// y: x in FP16, n numbers.
extern "C" __global__ void cast_stochastic(const unsigned long long* state, const float* x, half* y, long long n) {
    each_chunk(n, aligned16(x), [=](auto width, long long i) {
        auto bits = draw<width.length>(state, i);
        auto wide = load(width, x + i);
        Few<half, width.length> rounded;
#pragma unroll
        for (int k = 0; k < width.length; k++) rounded.at[k] = round_stochastically(wide.at[k], bits.at[k]);
        *reinterpret_cast<Few<half, width.length>*>(y + i) = rounded;
    });
}
