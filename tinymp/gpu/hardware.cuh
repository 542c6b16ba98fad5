// One small function for each special instruction: conversions, 16-byte accesses, Tensor Cores.
//
// All CUDA kernels of tinymp are written in terms of these and of plain CUDA C. Nothing is included, so NVRTC needs no
// header of the CUDA toolkit. The tests replace this one file by functions that do the same on a CPU.

struct half {
    unsigned short bits;
};

// Primitive 1 (precision.py): FP16 -> FP32, exact.
__device__ inline float widen(half x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// Primitive 2 (precision.py): FP32 -> FP16, the one rounding: to nearest, ties to even; beyond 65 520 to infinity.
__device__ inline half round_to_half(float x) {  // rounds: the one rounding of FP32 to FP16 in CUDA
    half y;
    // rounds: to nearest, ties to even; beyond 65 520 to infinity
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

// 16 bytes at once. The address p must be a multiple of 16.
__device__ inline uint4 load16(const void* p) { return *reinterpret_cast<const uint4*>(p); }
__device__ inline void store16(void* p, uint4 value) { *reinterpret_cast<uint4*>(p) = value; }

// ---------------------------------------------------------------------------------------------------- Tensor Cores

#if __CUDA_ARCH__ >= 800  // before Ampere, convolutions go through im2col and cuBLAS

// Lane 8 i + r of the warp gives the address (shared memory, a multiple of 16) of row r of matrix i, 8 x 8 halves. After
// it, register i of lane 4 r + c holds elements (r, 2c) and (r, 2c + 1) of matrix i, the first in its low half.
__device__ inline void ldmatrix_x4(unsigned (&to)[4], const half* row) {
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

// The same with each matrix transposed: register i of lane 4 r + c holds elements (2c, r) and (2c + 1, r).
__device__ inline void ldmatrix_x4_trans(unsigned (&to)[4], const half* row) {
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

// d += a b for a 16 x 16, b 16 x 8 in FP16 and d 16 x 8 in FP32 (MPT section 3.3, NVG section 2.2). With lane = 4 g + t:
//   a[0], a[1]: rows g, g + 8, columns 2t, 2t + 1;  a[2], a[3]: the same rows, columns 2t + 8, 2t + 9
//   b[0]: rows 2t, 2t + 1 of column g;  b[1]: rows 2t + 8, 2t + 9
//   d[0], d[1]: row g, columns 2t, 2t + 1;  d[2], d[3]: row g + 8
// rounds: FP32 accumulators of a Tensor Core
__device__ inline void mma_16816(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    // rounds: 16 products a step, FP32 accumulators
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copy BYTES (4, 8 or 16; both addresses multiples of it) from global to shared memory without waiting, or write zeros
// where `valid` is false (`from` is then not read). The data is there after cp_async_wait and a barrier.
template <int BYTES>
__device__ inline void cp_async(void* to, const void* from, bool valid) {
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(BYTES),
                     "r"(valid ? BYTES : 0)
                     : "memory");
}

// Close the group of copies started since the last commit.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most N of this thread's groups are still under way.
template <int N>
__device__ inline void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else  // conv.py and attention.py never launch there what is made of these; the rest of their files must compile

__device__ inline void ldmatrix_x4(unsigned (&)[4], const half*) { __trap(); }
__device__ inline void ldmatrix_x4_trans(unsigned (&)[4], const half*) { __trap(); }
// rounds: never, no kernel calls it before Ampere
__device__ inline void mma_16816(float (&)[4], const unsigned (&)[4], unsigned, unsigned) { __trap(); }
template <int BYTES>
__device__ inline void cp_async(void*, const void*, bool) {
    __trap();
}
__device__ inline void cp_async_commit() { __trap(); }
template <int N>
__device__ inline void cp_async_wait() {
    __trap();
}

#endif

// The block's dynamic shared memory (its size is given at the launch), a multiple of 16, under a name.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
