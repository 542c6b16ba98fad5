// hardswish and mish (rectifiers.py): read T, compute one element in FP32 registers, write T; one launch each.
//
// A function is a struct: f(x) is the op's f; dx(x, dy) is the gradient.

#include "elements.cuh"

// y = x min(max(x + 3, 0), 6) / 6;  y' = 0 up to -3, 1 from 3 on, x / 3 + 1 / 2 between.
struct Hardswish {
    __device__ float f(float x) const {
        return x <= -3.0f ? 0.0f : x * (Min::combine(Max::combine(x + 3.0f, 0.0f), 6.0f) / 6.0f);
    }
    __device__ float dx(float x, float dy) const {
        return dy * (x >= 3.0f ? 1.0f : x <= -3.0f ? 0.0f : x / 3.0f + 0.5f);
    }
};

// y = x g,  g = tanh ln(1 + e^x) = n / (n + 2) with n = e^x (e^x + 2);  y' = g + x sigmoid(x) (1 - g^2).
struct Mish {
    __device__ float f(float x) const { return x * gate(x); }
    __device__ float dx(float x, float dy) const {
        float g = gate(x);
        return dy * (g + x * sigmoid(x) * (1.0f - g * g));
    }
    __device__ static float gate(float x) {
        float e = expf(Min::combine(x, 20.0f)), n = e * (e + 2.0f);
        return n / (n + 2.0f);
    }
};

// ----------------------------------------------------------------------------------------------------------- kernels
// x, y, dy, dx: n elements that lie alike in memory.

extern "C" __global__ void hardswish_forward(const T* x, T* y, long long n) {
    forward(Hardswish(), x, y, n);
}
extern "C" __global__ void hardswish_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(Hardswish(), x, dy, dx, n);
}

extern "C" __global__ void mish_forward(const T* x, T* y, long long n) {
    forward(Mish(), x, y, n);
}
extern "C" __global__ void mish_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(Mish(), x, dy, dx, n);
}
