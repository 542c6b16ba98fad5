// Local response normalisation (local_response_norm.py). x lies in memory as (outer, channels, run), for any outer and
// run: a channel's neighbours are run elements apart. A thread reads all windows that its values need; after its first
// reader, others find a value in the caches.

#include "elements.cuh"

struct Windows {
    long long run;
    int channels, size, before;  // a window has `size` channels, `before` of them before its own
    float scale, beta, k;        // scale: alpha / size

    __device__ int first(int c, int before) const { return max(c - before, 0); }
    __device__ int end(int c, int before) const { return min(c - before + size, channels); }

    // k + scale * the sum of x^2 over the window of channel c; x points to the thread's place in channel 0.
    template <class W>
    __device__ auto denominator(W width, const T* x, int c) const {
        Values<width.length> d = {};
        for (int j = first(c, before); j < end(c, before); j++) {
            auto seen = load(width, x + j * run);
#pragma unroll
            for (int i = 0; i < width.length; i++) d.at[i] += seen.at[i] * seen.at[i];
        }
#pragma unroll
        for (int i = 0; i < width.length; i++) d.at[i] = k + scale * d.at[i];
        return d;
    }

    __device__ float power(float d) const {
        if (beta != 0.75f) return powf(d, beta);
        float root = sqrtf(d);
        return root * sqrtf(root);
    }

    // body(width, c, place) for all values: `place` is that of the thread's values in channel 0.
    template <class Body>
    __device__ void each(long long n, bool aligned, Body body) const {
        each_chunk(n, aligned && run % PACK == 0, [=](auto width, long long i) {
            int c = static_cast<int>(i / run % channels);
            body(width, c, i - c * run);
        });
    }
};

// y = x D^-beta.
extern "C" __global__ void __launch_bounds__(256) local_response_norm_forward(
    const T* x, T* y, long long n, long long run, int channels, int size, float scale, float beta, float k) {
    Windows windows{run, channels, size, size / 2, scale, beta, k};
    windows.each(n, aligned16(x) && aligned16(y), [=](auto width, int c, long long place) {
        auto d = windows.denominator(width, x + place, c), values = load(width, x + place + c * run);
#pragma unroll
        for (int i = 0; i < width.length; i++) values.at[i] /= windows.power(d.at[i]);
        save(y + place + c * run, values);
    });
}

// dx = dy D^-beta - 2 scale beta x sum of dy_j x_j D_j^(-beta - 1) over the channels j whose window holds this one.
extern "C" __global__ void __launch_bounds__(256) local_response_norm_backward(
    const T* x, const T* dy, T* dx, long long n, long long run, int channels, int size, float scale, float beta,
    float k) {
    Windows windows{run, channels, size, size / 2, scale, beta, k};
    windows.each(n, aligned16(x) && aligned16(dy) && aligned16(dx), [=](auto width, int c, long long place) {
        Values<width.length> spread = {}, own = {};
        int mirrored = (size - 1) / 2;
        for (int j = windows.first(c, mirrored); j < windows.end(c, mirrored); j++) {
            auto d = windows.denominator(width, x + place, j);
            auto seen = load(width, x + place + j * run), gradient = load(width, dy + place + j * run);
#pragma unroll
            for (int i = 0; i < width.length; i++) {
                float shrunk = gradient.at[i] / windows.power(d.at[i]);
                if (j == c) own.at[i] = shrunk;
                spread.at[i] += shrunk * seen.at[i] / d.at[i];
            }
        }
        auto values = load(width, x + place + c * run);
#pragma unroll
        for (int i = 0; i < width.length; i++) own.at[i] -= 2.0f * scale * beta * values.at[i] * spread.at[i];
        save(dx + place + c * run, own);
    });
}
