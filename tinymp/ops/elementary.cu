// sin, cos and sign (elementary.py): read T, compute one element in FP32 registers, write T; one launch each.
//
// A function is a struct: f(x) is the op's f; dx(x, dy) is the gradient.

#include "elements.cuh"

// y = sin x;  dx = cos x dy.
struct Sin {
    __device__ float f(float x) const { return sinf(x); }
    __device__ float dx(float x, float dy) const { return dy * cosf(x); }
};

// y = cos x;  dx = -sin x dy.
struct Cos {
    __device__ float f(float x) const { return cosf(x); }
    __device__ float dx(float x, float dy) const { return dy * -sinf(x); }
};

// y = -1, 0 or 1 as x is negative, 0 (or nan) or positive;  dx = 0.
struct Sign {
    __device__ float f(float x) const { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f; }
    __device__ float dx(float x, float dy) const { return dy * 0.0f; }
};

// ----------------------------------------------------------------------------------------------------------- kernels
// x, y, dy, dx: n elements that lie alike in memory.

extern "C" __global__ void sin_forward(const T* x, T* y, long long n) {
    forward(Sin(), x, y, n);
}
extern "C" __global__ void sin_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(Sin(), x, dy, dx, n);
}

extern "C" __global__ void cos_forward(const T* x, T* y, long long n) {
    forward(Cos(), x, y, n);
}
extern "C" __global__ void cos_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(Cos(), x, dy, dx, n);
}

extern "C" __global__ void sign_forward(const T* x, T* y, long long n) {
    forward(Sign(), x, y, n);
}
extern "C" __global__ void sign_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(Sign(), x, dy, dx, n);
}
