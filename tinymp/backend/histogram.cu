// How often each exponent occurs among values: floor(log2 |x|), exactly, in integers (histogram.py has the layout).

#include "elements.cuh"

constexpr int BINS = 280;  // histogram.py has the same number
enum { ZEROS = 0, LOWEST = 1, INFINITIES = 278, NANS = 279 };  // LOWEST counts 2^-149, the next bin 2^-148, ...

__device__ inline int bin_of(float x) {
    unsigned int bits = __float_as_uint(x) & 0x7fffffffu;
    if (bits == 0) return ZEROS;
    if (bits > 0x7f800000u) return NANS;
    if (bits == 0x7f800000u) return INFINITIES;
    int exponent = static_cast<int>(bits >> 23) - 127;
    // a subnormal is bits 2^-149, with an integer that FP32 holds exactly
    if (exponent == -127) exponent = static_cast<int>(__float_as_uint(static_cast<float>(bits)) >> 23) - 127 - 149;
    return exponent + 149 + LOWEST;
}

// x: n values.  counts += the histogram of x. Each warp counts for itself at first: most values share few exponents, and
// threads that count the same one at the same time wait for each other.
extern "C" __global__ void __launch_bounds__(256) exponents(const T* x, unsigned long long* counts, long long n) {
    __shared__ unsigned int own[8][BINS];
    for (int i = threadIdx.x; i < 8 * BINS; i += blockDim.x) own[i / BINS][i % BINS] = 0;
    __syncthreads();
    unsigned int* mine = own[threadIdx.x / 32];
    each_chunk(n, aligned16(x), [=](auto width, long long i) {
        auto values = load(width, x + i);
#pragma unroll
        for (int k = 0; k < values.length; k++) atomicAdd(&mine[bin_of(values.at[k])], 1u);
    });
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
        unsigned long long total = 0;
        for (int warp = 0; warp < 8; warp++) total += own[warp][bin];
        if (total) atomicAdd(&counts[bin], total);
    }
}
