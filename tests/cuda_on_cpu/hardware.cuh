// The functions of tinymp/backend/hardware.cuh on a CPU: the same names and meaning (described there), and an error
// where a GPU would fail or return nonsense. half, widen and round_to_half are in runtime.h, as the runtime needs them.

#include "runtime.h"

__device__ inline uint4 load16(const void* p, CUDA_ON_CPU_HERE) {
    cuda_on_cpu::check_aligned("load16", p, 16, file, line);
    return *static_cast<const uint4*>(p);
}

__device__ inline void store16(void* p, uint4 value, CUDA_ON_CPU_HERE) {
    cuda_on_cpu::check_aligned("store16", p, 16, file, line);
    *static_cast<uint4*>(p) = value;
}

__device__ inline void ldmatrix_x4(unsigned (&to)[4], const half* row, CUDA_ON_CPU_HERE) {
    cuda_on_cpu::load_matrices(to, row, false, file, line);
}

__device__ inline void ldmatrix_x4_trans(unsigned (&to)[4], const half* row, CUDA_ON_CPU_HERE) {
    cuda_on_cpu::load_matrices(to, row, true, file, line);
}

__device__ inline void mma_16816(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, CUDA_ON_CPU_HERE) {
    cuda_on_cpu::multiply(d, a, b0, b1, file, line);
}

// The data arrive as late as they may (at cp_async_wait) or as early (at once), as the run has it.
template <int BYTES>
__device__ inline void cp_async(void* to, const void* from, bool valid, CUDA_ON_CPU_HERE) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16);
    cuda_on_cpu::copy_async(to, from, BYTES, valid, file, line);
}

__device__ inline void cp_async_commit() { cuda_on_cpu::commit_copies(); }

template <int N>
__device__ inline void cp_async_wait() {
    cuda_on_cpu::wait_for_copies(N);
}

#define DYNAMIC_SHARED(name) unsigned char* const name = cuda_on_cpu::dynamic_shared()
