// Philox 4x32 with 10 rounds (Salmon et al., 2011): 128 random bits as a function of a 64-bit seed and a 128-bit
// counter, so that element i of any launch has its own number, in whatever order threads run.
__device__ inline uint4 philox(unsigned long long seed, unsigned long long offset, unsigned long long index) {
    unsigned int k0 = static_cast<unsigned int>(seed), k1 = static_cast<unsigned int>(seed >> 32);
    uint4 c;
    c.x = static_cast<unsigned int>(index);
    c.y = static_cast<unsigned int>(index >> 32);
    c.z = static_cast<unsigned int>(offset);
    c.w = static_cast<unsigned int>(offset >> 32);
    for (int round = 0; round < 10; round++) {
        unsigned long long a = 0xD2511F53ull * c.x, b = 0xCD9E8D57ull * c.z;
        uint4 next;
        next.x = static_cast<unsigned int>(b >> 32) ^ c.y ^ k0;
        next.y = static_cast<unsigned int>(b);
        next.z = static_cast<unsigned int>(a >> 32) ^ c.w ^ k1;
        next.w = static_cast<unsigned int>(a);
        c = next;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

// Numbers i to i + K - 1 of a launch, 32 bits each: number i is word i % 4 of philox(seed, offset, i / 4). K = 1, or K
// and i are multiples of 4. state: seed and offset, in device memory: a CUDA graph draws new numbers at each replay.
template <int K>
struct Bits {
    unsigned int at[K];
};

template <int K>
__device__ inline Bits<K> draw(const unsigned long long* state, unsigned long long i) {
    Bits<K> bits;
#pragma unroll
    for (int k = 0; k < K; k += 4) {
        uint4 drawn = philox(state[0], state[1], (i + k) / 4);
        if constexpr (K == 1)
            bits.at[0] = i % 4 == 0 ? drawn.x : i % 4 == 1 ? drawn.y : i % 4 == 2 ? drawn.z : drawn.w;
        else
            bits.at[k] = drawn.x, bits.at[k + 1] = drawn.y, bits.at[k + 2] = drawn.z, bits.at[k + 3] = drawn.w;
    }
    return bits;
}

// 24 random bits as a float in [0, 1).
// rounds: never, 24 bits fit FP32
__device__ inline float uniform(unsigned int bits) { return static_cast<float>(bits >> 8) * 5.9604644775390625e-8f; }

// x in FP16: with z1 <= |x| <= z2 its neighbours there, z2 with probability (|x| - z1) / (z2 - z1), else z1 (MPT v1,
// appendix A). |x| = (z + f) ulp with z an integer and 0 <= f < 1, all exact in FP32; the 32 random bits, an integer,
// are below 2^32 f with probability f, and never where f = 0.
__device__ inline half round_stochastically(float x, unsigned int bits) {
    float size = fabsf(x);
    if (!(size < 65536.0f)) return round_to_half(x);  // rounds: to infinity, whatever is drawn
    int exponent = max(static_cast<int>(__float_as_uint(size) >> 23) - 127, -14);  // below 2^-14 the spacing stays 2^-24
    float steps = size * __uint_as_float((127 + 10 - exponent) << 23), low = floorf(steps);
    if (bits < static_cast<unsigned int>((steps - low) * 4294967296.0f)) low += 1.0f;
    float y = low * __uint_as_float((127 - 10 + exponent) << 23);  // 65 536 becomes infinite
    // rounds: never, it is a multiple of FP16's spacing: `low` was rounded at random
    return round_to_half(__uint_as_float(__float_as_uint(y) | (__float_as_uint(x) & 0x80000000u)));
}
