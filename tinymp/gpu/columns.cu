// Windows of images x (C, H, W, N) in memory as columns of a matrix, and back: for FP32, and GPUs before Ampere.

constexpr int MOST = 1024;  // threads of a block, at most

#define GEOMETRY                                                                                                      \
    int C, int H, int W, int N, int OH, int OW, int kh, int kw, int sh, int sw, int top, int left, int dh, int dw

// columns (C, kh, kw, OH, OW, N): what each window sees, and 0 where it sees padding. A copy: nothing is rounded
template <class Index>
__device__ inline void images_to_columns_by(const T* x, T* columns, long long total, GEOMETRY) {
    for (long long e = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; e < total;
         e += static_cast<long long>(gridDim.x) * blockDim.x) {
        Index rest = static_cast<Index>(e) / N;
        int n = static_cast<Index>(e) % N, ow = rest % OW, oh = (rest /= OW) % OH, j = (rest /= OH) % kw;
        int i = (rest /= kw) % kh;
        long long c = rest / kh;
        int h = oh * sh - top + i * dh, w = ow * sw - left + j * dw;
        bool inside = h >= 0 && h < H && w >= 0 && w < W;
        columns[e] = inside ? x[((c * H + h) * W + w) * N + n] : T{};
    }
}

// Divisions of 64 bits take several times as long as those of 32: they are for more elements alone.
#define BY_SIZE(name, from, to) \
    if (total >> 32) name##_by<unsigned long long>(from, to, total, C, H, W, N, OH, OW, kh, kw, sh, sw, top, left, dh, dw); \
    else name##_by<unsigned>(from, to, total, C, H, W, N, OH, OW, kh, kw, sh, sw, top, left, dh, dw)

extern "C" __global__ void __launch_bounds__(MOST) images_to_columns(const T* x, T* columns, long long total, GEOMETRY) {
    BY_SIZE(images_to_columns, x, columns);
}

// x (C, H, W, N): each pixel is the sum, in FP32, of the places of columns that saw it, tap after tap
template <class Index>
__device__ inline void columns_to_images_by(const float* columns, float* x, long long total, GEOMETRY) {
    for (long long e = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; e < total;
         e += static_cast<long long>(gridDim.x) * blockDim.x) {
        Index rest = static_cast<Index>(e) / N;
        int n = static_cast<Index>(e) % N, w = rest % W, h = (rest /= W) % H;
        long long c = rest / H;
        float sum = 0.0f;
        for (int i = 0; i < kh; i++)
            for (int j = 0; j < kw; j++) {
                int down = h + top - i * dh, right = w + left - j * dw, oh = down / sh, ow = right / sw;
                if (down < 0 || right < 0 || down % sh || right % sw || oh >= OH || ow >= OW) continue;
                // rounds: the sum of the places where a pixel was read, FP32
                sum += columns[((((c * kh + i) * kw + j) * OH + oh) * OW + ow) * N + n];
            }
        x[e] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(MOST) columns_to_images(
    const float* columns, float* x, long long total, GEOMETRY) {
    BY_SIZE(columns_to_images, columns, x);
}

