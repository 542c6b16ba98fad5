// The sum of gradients of one tensor (sums.py), each read once: in FP32, one after the other, and rounded once.

#include "elements.cuh"

// n elements of the storage dtype or, where there is no x, in FP32.
struct Part {
    const T* x;
    const float* wide;

    __device__ bool there() const { return x || wide; }
    __device__ bool aligned() const { return aligned16(x) && aligned16(wide); }

    template <int K>
    __device__ Values<K> load_at(Width<K> width, long long i) const {
        return x ? load(width, x + i) : load(width, wide + i);
    }
};

// y = a (+ b (+ c)): stored, or in FP32 where there is no y. All lie alike in memory.
extern "C" __global__ void add_gradients(const T* a, const float* a_wide, const T* b, const float* b_wide, const T* c,
                                         const float* c_wide, T* y, float* y_wide, long long n) {
    Part first{a, a_wide}, others[] = {{b, b_wide}, {c, c_wide}};
    bool aligned = first.aligned() && others[0].aligned() && others[1].aligned() && aligned16(y) && aligned16(y_wide);
    each_chunk(n, aligned, [=](auto width, long long i) {
        auto total = first.load_at(width, i);
#pragma unroll
        for (const Part& other : others) {
            if (!other.there()) continue;
            auto values = other.load_at(width, i);
#pragma unroll
            for (int k = 0; k < total.length; k++) total.at[k] += values.at[k];
        }
        if (y) {
            save(y + i, total);
        } else {
            save(y_wide + i, total);
        }
    });
}
