// Reading and writing neighbours in memory, and sharing elements among threads.

// 16 bytes in registers: 8 halves or 4 floats.
template <class E>
union PackOf {
    static constexpr int length = 16 / sizeof(E);
    uint4 raw;
    E at[length];
    __device__ PackOf() : raw() {}
    __device__ explicit PackOf(const E* from) : raw(load16(from)) {}
    __device__ void store_to(E* to) const { store16(to, raw); }
};

typedef PackOf<T> Pack;
constexpr int PACK = Pack::length;

__device__ inline bool aligned16(const void* p) { return (reinterpret_cast<unsigned long long>(p) & 15) == 0; }

// K elements of E side by side, read and written at once.
template <class E, int K>
struct alignas(K * sizeof(E) < 16 ? K * sizeof(E) : 16) Few {
    E at[K];
};

// K neighbours, widened. Width<K> is K as an argument.
template <int K>
struct Values {
    static constexpr int length = K;
    float at[K];
};

template <int K>
struct Width {
    static constexpr int length = K;
};

// K neighbours at a multiple of their size, or of 16 bytes.
template <int K, class E>
__device__ inline Values<K> load(Width<K>, const E* from) {
    Few<E, K> few = *reinterpret_cast<const Few<E, K>*>(from);
    Values<K> values;
#pragma unroll
    for (int k = 0; k < K; k++) values.at[k] = widen(few.at[k]);
    return values;
}

template <int K, class E>
__device__ inline void save(E* to, const Values<K>& values) {
    Few<E, K> few;
#pragma unroll
    for (int k = 0; k < K; k++) store(&few.at[k], values.at[k]);  // rounds: the result of a pointwise kernel
    *reinterpret_cast<Few<E, K>*>(to) = few;
}

// K neighbours as they are stored.
template <int K, class E>
__device__ inline Few<E, K> few(Width<K>, const E* from) {
    return *reinterpret_cast<const Few<E, K>*>(from);
}

// K elements from `at` on, or one for all of them, where an array is broadcast (step 0).
template <int K, class E>
__device__ inline Few<E, K> few_at(Width<K> width, const E* from, long long at, long long step) {
    if (K == 1 || step == 1) return few(width, from + at);
    Few<E, K> same;
#pragma unroll
    for (int k = 0; k < K; k++) same.at[k] = from[at];
    return same;
}

template <int K, class E>
__device__ inline void put(E* to, const Few<E, K>& values) {
    *reinterpret_cast<Few<E, K>*>(to) = values;
}

// body(Width<K>, i) for the K elements from i on, by a thread each; the last ones, fewer than K, one by one.
template <int K, class Body>
__device__ inline void each_pack(long long n, Body body) {
    long long i = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * K;
    if (i + K <= n) {
        body(Width<K>(), i);
    } else {
        for (; i < n; i++) body(Width<1>(), i);
    }
}

// All threads of the grid share n elements: body(Width<K>, i) for the elements i to i + K - 1. wide: PACK at a time as
// far as n goes, then one by one; else all of them one by one.
template <class Body>
__device__ inline void each_chunk(long long n, bool wide, Body body) {
    long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    long long threads = static_cast<long long>(gridDim.x) * blockDim.x, packs = wide ? n / PACK : 0;
    for (long long i = thread; i < packs; i += threads) body(Width<PACK>(), i * PACK);
    for (long long i = packs * PACK + thread; i < n; i += threads) body(Width<1>(), i);
}
