// Kernels for test_shim.py: each with one planted mistake, and one without.

// ------------------------------------------------------------------------------------------------------------ correct

// Copies in two groups: y[0] is what is in shared memory after the wait for the first, y[1] after that for the second.
template <int FIRST, int SECOND>
__device__ void copy_in_groups(const float* x, float* y, float* tile) {
    int i = threadIdx.x;
    cp_async<4>(tile + i, x + i, true);
    cp_async_commit();
    cp_async<4>(tile + 32 + i, x + 32 + i, i % 2 == 0);
    cp_async_commit();
    cp_async_wait<FIRST>();
    y[i] = tile[i];
    cp_async_wait<SECOND>();
    y[32 + i] = tile[32 + i];
}

// ------------------------------------------------------------------------------------------------------ with mistakes

extern "C" __global__ void copy_without_wait(const float* x, float* y) {
    __shared__ float tile[64];
    copy_in_groups<1, 1>(x, y, tile);
}

// Every thread writes the same value: no order of threads shows that it is read too early.
extern "C" __global__ void hidden_race(float* y) {
    __shared__ float value;
    if (threadIdx.x == 0) value = 1.0f;
    __syncthreads();
    if (threadIdx.x == 40) value = 1.0f;
    y[threadIdx.x] = value;
}

extern "C" __global__ void warp_race(float* y) {
    __shared__ float line[32];
    line[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = __shfl_sync(0xffffffffu, line[threadIdx.x ^ 1], 0);
}

extern "C" __global__ void atomic_race(int* y) {
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    atomicAdd(&count, 1);
    if (threadIdx.x == 0) *y = count;
}

extern "C" __global__ void global_race(float* y) { y[0] = threadIdx.x; }
extern "C" __global__ void block_race(float* y) { y[blockIdx.x + 1] = y[blockIdx.x] + 1.0f; }

extern "C" __global__ void shifted(const T* x, T* y, int by_x, int by_y) {
    int i = threadIdx.x;
    y[i + by_y] = x[i + by_x];
}

extern "C" __global__ void add_at_null(float* y, int i) { y[i] += 1.0f; }

extern "C" __global__ void dynamic_shared(float* y, int write, int read) {
    DYNAMIC_SHARED(memory);
    float* line = reinterpret_cast<float*>(memory);
    int i = threadIdx.x;
    line[i + write] = i;
    __syncthreads();
    y[i] = line[i + read];
}

__device__ float* hide(float* p) {  // so that the compiler does not know the array behind it
    asm volatile("" : "+r"(p));
    return p;
}
extern "C" __global__ void static_shared(float* y, int write, int read, int know) {
    __shared__ float before[7], line[25];
    __shared__ float after[3];
    before[0] = after[0] = 0.0f;
    float* unknown = hide(line);
    if (know)
        line[write] = 1.0f;
    else
        unknown[write] = 1.0f;
    y[0] = know ? line[read] : unknown[read];
}

extern "C" __global__ void local_array(float* y, int i) {
    float line[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    line[i] += 1.0f;
    y[0] = line[i] + line[0];
}

extern "C" __global__ void packs(const T* x, T* y, int from, int to) { Pack(x + from).store_to(y + to); }
extern "C" __global__ void misaligned_cast(const T* x, T* y, int from) {
    *reinterpret_cast<uint4*>(y) = *reinterpret_cast<const uint4*>(x + from);
}
extern "C" __global__ void unaligned_shared(const T* x, T* y) {  // lacks __align__(16)
    __shared__ T line[PACK];
    Pack(x).store_to(line);
    Pack(line).store_to(y);
}

extern "C" __global__ void some_leave(float* y) {
    if (threadIdx.x == 3) return;
    __syncthreads();
    y[threadIdx.x] = 1.0f;
}
extern "C" __global__ void two_barriers(float* y) {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = 1.0f;
}
extern "C" __global__ void barrier_and_shuffle(float* y) {
    if (threadIdx.x == 0) __syncthreads();
    y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, y[threadIdx.x], 1);
    if (threadIdx.x != 0) __syncthreads();
}
extern "C" __global__ void shuffle_after_leaving(float* y) {
    if (threadIdx.x == 5) return;
    y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, y[threadIdx.x], 1);
}
extern "C" __global__ void shuffle_outside_mask(float* y) {
    if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(0x0000ffffu, y[threadIdx.x], 20);
}
extern "C" __global__ void not_in_mask(float* y) { y[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 0); }

extern "C" __global__ void matrices_in_global_memory(const half* x, float* y) {
    unsigned to[4];
    ldmatrix_x4(to, x + threadIdx.x % 16 * 8);
    y[threadIdx.x] = to[0];
}
extern "C" __global__ void endless(volatile int* y) {
    while (y[0] == 0) {
    }
}
extern "C" __global__ void recursive(float* y, int n) {
    float line[1000];
    for (int i = 0; i < 1000; i++) line[i] = y[i % 4];
    if (n > 0) recursive(y, n - 1);
    y[n % 4] += line[n % 1000];
}
extern "C" __global__ void overflow(int* y, int n) { y[0] = n * n; }
extern "C" __global__ void divide(int* y, int n) { y[0] = 7 / n; }
extern "C" __global__ void __launch_bounds__(64) bounded(float* y) { y[threadIdx.x] = 1.0f; }
extern "C" __global__ void restricted(const T* __restrict__ x, T* __restrict__ y) { y[threadIdx.x] = x[threadIdx.x]; }
