// y = x / (1 - p) where kept, else 0 exactly: an infinity that is dropped does not become nan. n elements in the order
// of memory; what is written is freshly allocated, and so aligned.

#include "elements.cuh"
#include "random.cuh"

template <int K>
__device__ inline Values<K> scale_kept(Values<K> x, const Few<bool, K>& kept, float scale) {
#pragma unroll
    for (int k = 0; k < K; k++) x.at[k] = kept.at[k] ? x.at[k] * scale : 0.0f;
    return x;
}

// kept[i]: whether random number i, in [0, 1), is at least p. state: see `draw`.
extern "C" __global__ void dropout_forward(const T* x, T* y, bool* kept, const unsigned long long* state, long long n,
                                           float p, float scale) {
    each_chunk(n, aligned16(x), [=](auto width, long long i) {
        Few<bool, width.length> mask;
        auto bits = draw<width.length>(state, i);
#pragma unroll
        for (int k = 0; k < width.length; k++) mask.at[k] = uniform(bits.at[k]) >= p;
        save(y + i, scale_kept(load(width, x + i), mask, scale));
        *reinterpret_cast<Few<bool, width.length>*>(kept + i) = mask;
    });
}

// dx = dy / (1 - p) where kept, else 0.
extern "C" __global__ void dropout_backward(const T* dy, const bool* kept, T* dx, long long n, float scale) {
    each_chunk(n, aligned16(dy) && aligned16(kept), [=](auto width, long long i) {
        auto mask = *reinterpret_cast<const Few<bool, width.length>*>(kept + i);
        save(dx + i, scale_kept(load(width, dy + i), mask, scale));
    });
}
