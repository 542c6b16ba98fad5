// The special instructions of hardware.cuh, each by itself: test_units.py holds them against NumPy.

// y = x widened, v = u rounded.
extern "C" __global__ void convert(const half* x, float* y, const float* u, half* v, int n, int m) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = widen(x[i]);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < m; i += gridDim.x * blockDim.x) v[i] = round_to_half(u[i]);
}

// d += a b by one warp: a 16 x 16, b 16 x 8 or, transposed, 8 x 16. Rows in shared memory are 24 halves apart.
extern "C" __global__ void multiply(const half* a, const half* b, float* d, int b_transposed) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800  // see hardware.cuh
    DYNAMIC_SHARED(memory);
    half* tile_a = reinterpret_cast<half*>(memory);
    half* tile_b = tile_a + 16 * 24;
    int lane = threadIdx.x, columns = b_transposed ? 16 : 8, rows = 24 - columns;
    for (int i = lane; i < 16 * 16; i += 32) tile_a[i / 16 * 24 + i % 16] = a[i];
    for (int i = lane; i < 16 * 8; i += 32) tile_b[i / columns * 24 + i % columns] = b[i];
    __syncthreads();
    unsigned x[4], y[4];
    ldmatrix_x4(x, tile_a + lane % 16 * 24 + lane / 16 * 8);
    if (b_transposed)  // two matrices are wanted, and there are no others: these twice
        ldmatrix_x4(y, tile_b + lane % rows * 24 + lane / 8 % 2 * 8);
    else
        ldmatrix_x4_trans(y, tile_b + lane % rows * 24);
    int g = lane / 4, t = lane % 4;
    float sum[4] = {d[g * 8 + 2 * t], d[g * 8 + 2 * t + 1], d[(g + 8) * 8 + 2 * t], d[(g + 8) * 8 + 2 * t + 1]};
    mma_16816(sum, x, y[0], y[1]);
    for (int i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
#endif
}

// y = the two halves of x in 16-byte accesses, the second first.
extern "C" __global__ void swap_packs(const half* x, half* y) {
    store16(y, load16(x + 8));
    store16(y + 8, load16(x));
}

// Each thread copies BYTES to shared memory, zeros where `valid` is 0, in two groups; y is what is there after the wait.
template <int BYTES>
__device__ void copy_by_threads(const unsigned char* x, const unsigned char* valid, unsigned char* y,
                                unsigned char* tile) {
    int i = threadIdx.x, n = blockDim.x, first = i * BYTES, second = (n + i) * BYTES;
    cp_async<BYTES>(tile + first, x + first, valid[i]);
    cp_async_commit();
    cp_async<BYTES>(tile + second, x + second, valid[n + i]);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    for (int b = 0; b < BYTES; b++) y[(n - 1 - i) * BYTES + b] = tile[(n - 1 - i) * BYTES + b];
    cp_async_wait<0>();
    __syncthreads();
    for (int b = 0; b < BYTES; b++) y[(2 * n - 1 - i) * BYTES + b] = tile[(2 * n - 1 - i) * BYTES + b];
}
extern "C" __global__ void copy_4(const unsigned char* x, const unsigned char* valid, unsigned char* y) {
    DYNAMIC_SHARED(tile);
    copy_by_threads<4>(x, valid, y, tile);
}
extern "C" __global__ void copy_8(const unsigned char* x, const unsigned char* valid, unsigned char* y) {
    DYNAMIC_SHARED(tile);
    copy_by_threads<8>(x, valid, y, tile);
}
extern "C" __global__ void copy_16(const unsigned char* x, const unsigned char* valid, unsigned char* y) {
    DYNAMIC_SHARED(tile);
    copy_by_threads<16>(x, valid, y, tile);
}
