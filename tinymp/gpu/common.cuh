// What all kernels share. Every .cu file is compiled with STORAGE = half and with STORAGE = float: the FP32 policy runs
// the same source. Kernels read T, compute in FP32 registers and write what they round as R, which is T unless an observer
// is to see the FP32 numbers before `store` of precision.py rounds them (RESULT = float).

#ifndef RESULT
#define RESULT STORAGE
#endif
typedef STORAGE T;
typedef RESULT R;

__device__ inline float widen(float x) { return x; }

// Primitive 2 (precision.py): the one rounding where T is half; with T = float the value passes.
__device__ inline void store(half* to, float x) { *to = round_to_half(x); }  // rounds: all stores, if T is half
__device__ inline void store(float* to, float x) { *to = x; }

// ------------------------------------------------------------------------------------------------------- reductions

struct Sum {
    static constexpr float none = 0.0f;
    __device__ static float combine(float a, float b) { return a + b; }
};

struct Max {  // nan if one is, as numpy.maximum
    static constexpr float none = -__builtin_bit_cast(float, 0x7f800000);
    __device__ static float combine(float a, float b) { return (a > b || a != a) ? a : b; }
};

constexpr int CHAIN = 64;  // long sums: how many terms, or sums of terms, a thread adds one after the other

// What one thread accumulates, in blocks: CHAIN terms, then CHAIN of their sums, and so on: the error of a long sum then
// grows with the logarithm of its length (the primitive `reduce` promises a bound). A: a struct with combine(a, b), whose
// default A() is the neutral element. Two levels keep the chains short for many thousand terms; one is a plain sum.
template <class A, int LEVELS = 2>
struct InBlocks {
    A level[LEVELS];
    int terms = 0;

    __device__ void add(const A& a) {
        level[0] = A::combine(level[0], a);
        terms++;
#pragma unroll
        for (int i = 1, full = CHAIN; i < LEVELS; i++, full *= CHAIN)
            if (terms % full == 0) {
                level[i] = A::combine(level[i], level[i - 1]);
                level[i - 1] = A();
            }
    }

    __device__ A total() const {
        A all = level[LEVELS - 1];
#pragma unroll
        for (int i = LEVELS - 2; i >= 0; i--) all = A::combine(all, level[i]);
        return all;
    }
};

// Over groups of `lanes` neighbouring lanes of a warp, a power of two; every lane gets the result of its group. The
// order is fixed: a run repeats bit for bit.
template <class How>
__device__ inline float warp_reduce(float x, int lanes = 32) {
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        x = How::combine(x, __shfl_xor_sync(0xffffffffu, x, distance));  // rounds: a sum over the lanes of a warp, FP32
    return x;
}
