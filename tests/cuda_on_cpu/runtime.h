// CUDA's language on a CPU: what the kernels of tinymp use of it, and nothing else. runtime.cpp runs it.
//
// The threads of a block are fibres of one CPU thread. One runs until it waits, at a barrier or in a warp function for
// other lanes; then another one runs: so every order of threads can be played, and repeated.
#pragma once

#include <math.h>
#include <string.h>

#include <type_traits>
#include <utility>

namespace cuda_on_cpu {

struct Index {
    unsigned x, y, z;
};

struct Guard {
    char* at;
    int bytes;
};

extern Index thread_index, block_index, block_size, grid_size;  // of the thread that runs now

// Errors tell the line of the kernel: as last parameters these have the caller's as defaults.
#define CUDA_ON_CPU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// Kernels are compiled with checks of every memory access (see runtime.cpp). What is marked so is not.
#define CUDA_ON_CPU_UNCHECKED __attribute__((no_sanitize("thread", "undefined")))

void block_barrier(const char* file, int line);
void warp_barrier(unsigned mask, const char* file, int line);
unsigned ballot(const char* name, unsigned mask, bool yes, const char* file, int line);

// The bits that the lane `from` gave.
unsigned long long shuffle(const char* name, unsigned mask, unsigned long long bits, int from, const char* file,
                           int line);

void atomic_access(void* p, unsigned bytes);  // an error if p is not valid, or the others do not use it atomically, too
void check_aligned(const char* name, const void* p, unsigned bytes, const char* file, int line);
void load_matrices(unsigned* to, const void* row, bool transposed, const char* file, int line);
void multiply(float* d, const unsigned* a, unsigned b0, unsigned b1, const char* file, int line);
void copy_async(void* to, const void* from, unsigned bytes, bool valid, const char* file, int line);
void commit_copies();
void wait_for_copies(int groups_left);
int lane();
unsigned char* dynamic_shared();

}  // namespace cuda_on_cpu

// --------------------------------------------------------------------------------------------------------- the words

#define __global__
#define __device__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)  // compile.py reads it

// Static shared memory lies in a section of its own, so that it can be filled before every block. Between two arrays
// are two guards, which nothing may touch: one directly behind the first, one directly before the second. This one ends
// 4 bytes behind a multiple of 16, so that an array that must be aligned, but does not ask for it, is not.
#define CUDA_ON_CPU_SHARED static __attribute__((section("cuda_shared"), aligned(1)))  // 1: no more than its type asks
#define CUDA_ON_CPU_GUARD(name, bytes, align)                                   \
    __attribute__((used)) CUDA_ON_CPU_SHARED __align__(align) char name[bytes]; \
    static __attribute__((used, section("cuda_guards"))) cuda_on_cpu::Guard name##_at { name, bytes }
#define CUDA_ON_CPU_GUARDS_(number)                 \
    CUDA_ON_CPU_GUARD(cuda_behind_##number, 64, 1); \
    CUDA_ON_CPU_GUARD(cuda_before_##number, 68, 16)
#define CUDA_ON_CPU_GUARDS(number) CUDA_ON_CPU_GUARDS_(number)
#define __shared__                   \
    CUDA_ON_CPU_GUARDS(__COUNTER__); \
    CUDA_ON_CPU_SHARED

#define threadIdx (static_cast<const cuda_on_cpu::Index&>(cuda_on_cpu::thread_index))
#define blockIdx (static_cast<const cuda_on_cpu::Index&>(cuda_on_cpu::block_index))
#define blockDim (static_cast<const cuda_on_cpu::Index&>(cuda_on_cpu::block_size))
#define gridDim (static_cast<const cuda_on_cpu::Index&>(cuda_on_cpu::grid_size))

// ----------------------------------------------------------------------------------------------------------- vectors

struct __align__(16) uint4 {
    unsigned x, y, z, w;
};
struct __align__(8) uint2 {
    unsigned x, y;
};
struct __align__(16) float4 {
    float x, y, z, w;
};
struct __align__(8) float2 {
    float x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

// ----------------------------------------------------------------------------------------------------------- numbers

namespace cuda_on_cpu {

template <class To, class From>
inline To bits_of(From x) {
    To y{};
    memcpy(&y, &x, sizeof x < sizeof y ? sizeof x : sizeof y);
    return y;
}

}  // namespace cuda_on_cpu

inline unsigned __float_as_uint(float x) { return cuda_on_cpu::bits_of<unsigned>(x); }
inline int __float_as_int(float x) { return cuda_on_cpu::bits_of<int>(x); }
inline float __uint_as_float(unsigned x) { return cuda_on_cpu::bits_of<float>(x); }
inline float __int_as_float(int x) { return cuda_on_cpu::bits_of<float>(x); }

// CuPy has kernels compiled so that numbers of FP32 below 2^-126 count as 0, and results below it become 0. The
// processor does that in arithmetic (see Flush); functions that look at bits get it so.
inline float cuda_on_cpu_flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
#define CUDA_ON_CPU_FLUSHED(name) \
    inline float cuda_on_cpu_##name(float x) { return cuda_on_cpu_flush(name##f(cuda_on_cpu_flush(x))); }
CUDA_ON_CPU_FLUSHED(exp)
CUDA_ON_CPU_FLUSHED(expm1)
CUDA_ON_CPU_FLUSHED(log)
CUDA_ON_CPU_FLUSHED(log2)
CUDA_ON_CPU_FLUSHED(log10)
CUDA_ON_CPU_FLUSHED(log1p)
CUDA_ON_CPU_FLUSHED(sin)
CUDA_ON_CPU_FLUSHED(cos)
CUDA_ON_CPU_FLUSHED(tan)
CUDA_ON_CPU_FLUSHED(sinh)
CUDA_ON_CPU_FLUSHED(cosh)
CUDA_ON_CPU_FLUSHED(tanh)
CUDA_ON_CPU_FLUSHED(asin)
CUDA_ON_CPU_FLUSHED(acos)
CUDA_ON_CPU_FLUSHED(atan)
CUDA_ON_CPU_FLUSHED(fabs)
CUDA_ON_CPU_FLUSHED(rint)
CUDA_ON_CPU_FLUSHED(floor)
CUDA_ON_CPU_FLUSHED(ceil)
CUDA_ON_CPU_FLUSHED(trunc)
inline float cuda_on_cpu_pow(float x, float y) {
    return cuda_on_cpu_flush(powf(cuda_on_cpu_flush(x), cuda_on_cpu_flush(y)));
}
#define expf cuda_on_cpu_exp
#define expm1f cuda_on_cpu_expm1
#define logf cuda_on_cpu_log
#define log2f cuda_on_cpu_log2
#define log10f cuda_on_cpu_log10
#define log1pf cuda_on_cpu_log1p
#define sinf cuda_on_cpu_sin
#define cosf cuda_on_cpu_cos
#define tanf cuda_on_cpu_tan
#define sinhf cuda_on_cpu_sinh
#define coshf cuda_on_cpu_cosh
#define tanhf cuda_on_cpu_tanh
#define asinf cuda_on_cpu_asin
#define acosf cuda_on_cpu_acos
#define atanf cuda_on_cpu_atan
#define fabsf cuda_on_cpu_fabs
#define rintf cuda_on_cpu_rint
#define floorf cuda_on_cpu_floor
#define ceilf cuda_on_cpu_ceil
#define truncf cuda_on_cpu_trunc
#define powf cuda_on_cpu_pow

// As a GPU has it: -0 is less than 0, and of a number and a NaN the number is returned.
template <class F>
inline F cuda_on_cpu_max(F a, F b) { return a == b ? (signbit(a) ? b : a) : a > b || b != b ? a : b; }
inline float cuda_on_cpu_max(float a, float b) {
    return cuda_on_cpu_max<float>(cuda_on_cpu_flush(a), cuda_on_cpu_flush(b));
}
template <class F>
inline F cuda_on_cpu_min(F a, F b) { return -cuda_on_cpu_max(-a, -b); }
inline float min(float a, float b) { return cuda_on_cpu_min(a, b); }
inline float max(float a, float b) { return cuda_on_cpu_max(a, b); }
#define fminf cuda_on_cpu_min<float>
#define fmaxf cuda_on_cpu_max
#define fmin cuda_on_cpu_min<double>
#define fmax cuda_on_cpu_max<double>

inline float __fmul_rn(float a, float b) { return a * b; }  // nothing here is compiled to a fused a * b + c
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }

#define CUDA_ON_CPU_MIN_MAX(type)                             \
    inline type min(type a, type b) { return b < a ? b : a; } \
    inline type max(type a, type b) { return a < b ? b : a; }
CUDA_ON_CPU_MIN_MAX(int)
CUDA_ON_CPU_MIN_MAX(unsigned)
CUDA_ON_CPU_MIN_MAX(long long)
CUDA_ON_CPU_MIN_MAX(unsigned long long)

// Numbers of FP32 below 2^-126 are 0, as CuPy asks of the compiler, while the object lives.
struct Flush {
#if defined(__x86_64__)
    unsigned before = __builtin_ia32_stmxcsr();
    Flush() { __builtin_ia32_ldmxcsr(before | 0x8040u); }
    ~Flush() { __builtin_ia32_ldmxcsr(before); }
#endif
};

struct half {
    unsigned short bits;
};

// FP16 -> FP32, exact.
inline float widen(half x) {
    unsigned sign = (x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
    if (rest < 0x0400u) return copysignf(static_cast<float>(rest) * 0x1p-24f, __uint_as_float(sign));  // 0, subnormal
    unsigned bias = rest < 0x7c00u ? 112u << 23 : 224u << 23;  // of the exponent: 127 - 15; inf and nan keep all ones
    return __uint_as_float(sign | ((rest << 13) + bias));
}

// FP32 -> FP16, to nearest, ties to even.
inline half round_to_half(float x) {
    unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        rest = 0x7fffu;  // nan
    else if (rest >= 0x477ff000u)
        rest = 0x7c00u;  // from 65 520 on: infinity
    else if (rest >= 0x38800000u)
        rest = (rest - (112u << 23) + 0x0fffu + (rest >> 13 & 1u)) >> 13;
    else  // below 2^-14: subnormal. From 0.5 to 1, floats have steps of 2^-24, too
        rest = __float_as_uint(__uint_as_float(rest) + 0.5f) - __float_as_uint(0.5f);
    return {static_cast<unsigned short>(sign | rest)};
}

// ------------------------------------------------------------------------------------------- barriers, warp functions

inline void __threadfence() {}  // memory has one order here
inline void __syncthreads(CUDA_ON_CPU_HERE) { cuda_on_cpu::block_barrier(file, line); }
inline void __syncwarp(unsigned mask = 0xffffffffu, CUDA_ON_CPU_HERE) { cuda_on_cpu::warp_barrier(mask, file, line); }

inline unsigned __ballot_sync(unsigned mask, int predicate, CUDA_ON_CPU_HERE) {
    return cuda_on_cpu::ballot("__ballot_sync", mask, predicate != 0, file, line);
}
inline int __any_sync(unsigned mask, int predicate, CUDA_ON_CPU_HERE) {
    return cuda_on_cpu::ballot("__any_sync", mask, predicate != 0, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, CUDA_ON_CPU_HERE) {
    return cuda_on_cpu::ballot("__all_sync", mask, predicate != 0, file, line) == mask;
}

namespace cuda_on_cpu {

template <class V>
inline V shuffle_value(const char* name, unsigned mask, V value, int from, const char* file, int line) {
    static_assert(std::is_arithmetic_v<V> && sizeof(V) >= 4, "shuffles take int, unsigned, long long, float, double");
    return bits_of<V>(shuffle(name, mask, bits_of<unsigned long long>(value), from, file, line));
}

}  // namespace cuda_on_cpu

// `width`, a power of two, divides the warp into groups of so many lanes. Beyond its group a lane finds its own value.
template <class V>
inline V __shfl_sync(unsigned mask, V value, int from, int width = 32, CUDA_ON_CPU_HERE) {
    int first = cuda_on_cpu::lane() & ~(width - 1);
    return cuda_on_cpu::shuffle_value("__shfl_sync", mask, value, first + (from & (width - 1)), file, line);
}
template <class V>
inline V __shfl_xor_sync(unsigned mask, V value, int bits, int width = 32, CUDA_ON_CPU_HERE) {
    int me = cuda_on_cpu::lane(), from = (me ^ bits) <= (me | (width - 1)) ? me ^ bits : me;
    return cuda_on_cpu::shuffle_value("__shfl_xor_sync", mask, value, from, file, line);
}
template <class V>
inline V __shfl_down_sync(unsigned mask, V value, unsigned by, int width = 32, CUDA_ON_CPU_HERE) {
    int me = cuda_on_cpu::lane(), step = static_cast<int>(by), from = me % width + step < width ? me + step : me;
    return cuda_on_cpu::shuffle_value("__shfl_down_sync", mask, value, from, file, line);
}
template <class V>
inline V __shfl_up_sync(unsigned mask, V value, unsigned by, int width = 32, CUDA_ON_CPU_HERE) {
    int me = cuda_on_cpu::lane(), step = static_cast<int>(by), from = me % width >= step ? me - step : me;
    return cuda_on_cpu::shuffle_value("__shfl_up_sync", mask, value, from, file, line);
}

// ----------------------------------------------------------------------------------------------------------- atomics

namespace cuda_on_cpu {

template <class V>
using Same =
    std::enable_if_t<std::is_same_v<V, int> || std::is_same_v<V, unsigned> || std::is_same_v<V, unsigned long long>, V>;

// Another fibre runs only where this one waits, so reading and writing is atomic. Floats are left out on purpose: their
// sums would depend on the order.
template <class V, class Change>
CUDA_ON_CPU_UNCHECKED inline V atomic(V* p, Change change) {
    atomic_access(p, sizeof *p);
    V old = *p;
    *p = change(old);
    return old;
}

}  // namespace cuda_on_cpu

template <class V>
inline V atomicAdd(V* p, cuda_on_cpu::Same<V> x) {
    return cuda_on_cpu::atomic(p, [x](V old) { return static_cast<V>(old + static_cast<unsigned long long>(x)); });
}
template <class V>
inline V atomicMax(V* p, cuda_on_cpu::Same<V> x) {
    return cuda_on_cpu::atomic(p, [x](V old) { return max(old, x); });
}
template <class V>
inline V atomicMin(V* p, cuda_on_cpu::Same<V> x) {
    return cuda_on_cpu::atomic(p, [x](V old) { return min(old, x); });
}
template <class V>
inline V atomicOr(V* p, cuda_on_cpu::Same<V> x) {
    return cuda_on_cpu::atomic(p, [x](V old) { return old | x; });
}
template <class V>
inline V atomicCAS(V* p, cuda_on_cpu::Same<V> expected, cuda_on_cpu::Same<V> x) {
    return cuda_on_cpu::atomic(p, [=](V old) { return old == expected ? x : old; });
}

// --------------------------------------------------------------------------------------------------------- launching

namespace cuda_on_cpu {

struct Module {
    char *shared, *shared_end;   // static shared memory
    Guard *guards, *guards_end;  // in it
};

template <class... A, size_t... I>
CUDA_ON_CPU_UNCHECKED void call(void (*kernel)(A...), void* const* arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}
template <class... A>
CUDA_ON_CPU_UNCHECKED void call(void (*kernel)(A...), void* const* arguments) {
    call(kernel, arguments, std::index_sequence_for<A...>());
}

constexpr unsigned first(unsigned threads, unsigned = 0) { return threads; }

}  // namespace cuda_on_cpu

// compile.py writes these behind the source. For every kernel, with its launch bounds, a function that takes an array
// of pointers to the arguments, as cuLaunchKernel does; and once, where the shared memory lies.
#define CUDA_ON_CPU_KERNEL(name, ...)                                                                       \
    extern "C" void cuda_on_cpu_call_##name(void* const* arguments) { cuda_on_cpu::call(name, arguments); } \
    extern "C" unsigned cuda_on_cpu_most_threads_##name;                                                    \
    unsigned cuda_on_cpu_most_threads_##name = cuda_on_cpu::first(__VA_ARGS__);
#define CUDA_ON_CPU_MODULE                                                                                           \
    CUDA_ON_CPU_GUARDS(last);                                                                                        \
    extern "C" __attribute__((visibility("hidden"))) char __start_cuda_shared[], __stop_cuda_shared[];               \
    extern "C" __attribute__((visibility("hidden"))) cuda_on_cpu::Guard __start_cuda_guards[], __stop_cuda_guards[]; \
    extern "C" cuda_on_cpu::Module cuda_on_cpu_module;                                                               \
    cuda_on_cpu::Module cuda_on_cpu_module{__start_cuda_shared, __stop_cuda_shared, __start_cuda_guards,             \
                                           __stop_cuda_guards};
