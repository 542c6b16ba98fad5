// Activations (activation.py): read T, compute one element in FP32 registers, write T; one launch each.
//
// A function is a struct: f(x) is the op's f; dx(v, dy) is the gradient, where v is what the op saved: x, unless the
// comment says y. Its options are members, in alphabetical order. Each kernel at the end only names its struct.

#include "elements.cuh"

// --------------------------------------------------------------------------------------------------------- functions

// ln(1 + e^x), without overflow.
__device__ inline float log1pexp(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// y = x where x > 0, else 0, nan stays nan;  dx = dy where y > 0, else 0.  Saved: y.
struct ReLU {
    __device__ float f(float x) const { return x <= 0.0f ? 0.0f : x; }
    __device__ float dx(float y, float dy) const { return y == 0.0f ? 0.0f : dy; }
};

// y = x where x > 0, else slope x.
struct LeakyReLU {
    float slope;
    __device__ float f(float x) const { return x > 0.0f ? x : slope * x; }
    __device__ float dx(float x, float dy) const { return dy * (x > 0.0f ? 1.0f : slope); }
};

// y = 1 / (1 + e^-x);  dx = y (1 - y) dy.  Saved: y.
struct Sigmoid {
    __device__ float f(float x) const { return sigmoid(x); }
    __device__ float dx(float y, float dy) const { return dy * (y * (1.0f - y)); }
};

// y = tanh x;  dx = (1 - y^2) dy.  Saved: y.
struct Tanh {
    __device__ float f(float x) const { return tanhf(x); }
    __device__ float dx(float y, float dy) const { return dy * (1.0f - y * y); }
};

// y = x limited to [low, high], nan stays nan;  dx = dy strictly inside, else 0.
struct Hardtanh {
    float high, low;
    __device__ float f(float x) const { return Min::combine(Max::combine(x, low), high); }
    __device__ float dx(float x, float dy) const { return x > low && x < high ? dy : 0.0f; }
};

// y = x where x > 0, else alpha (e^x - 1).
struct ELU {
    float alpha;
    __device__ float f(float x) const { return x > 0.0f ? x : alpha * expm1f(x); }
    __device__ float dx(float x, float dy) const { return dy * (x > 0.0f ? 1.0f : alpha * expf(x)); }
};

// y = x Phi(x);  y' = Phi(x) + x phi(x),  phi(x) = e^(-x^2 / 2) / sqrt(2 pi).
struct GELU {
    __device__ float f(float x) const { return x * distribution(x); }
    __device__ float dx(float x, float dy) const {
        return dy * (distribution(x) + x * expf(-0.5f * x * x) * 0.39894228040143268f);
    }
    // Phi(x) = erfc(-x / sqrt 2) / 2: no cancellation in the left tail.
    __device__ static float distribution(float x) { return 0.5f * erfcf(x * -0.70710678118654752f); }
};

// y = x g,  g = (1 + tanh u) / 2 = sigmoid(2u),  u = sqrt(2 / pi) (x + 0.044715 x^3);
// y' = g + x g (1 - g) 2u',  2u' = 2 sqrt(2 / pi) (1 + 3 * 0.044715 x^2).
struct TanhGELU {
    static constexpr float TWO_C = 1.5957691216057308f;
    __device__ float f(float x) const { return x * gate(x); }
    __device__ float dx(float x, float dy) const {
        float g = gate(x);
        return dy * (g + x * (g * (1.0f - g)) * (TWO_C * (1.0f + 0.134145f * x * x)));
    }
    __device__ static float gate(float x) { return sigmoid(TWO_C * (x + 0.044715f * x * x * x)); }
};

// y = x s,  s = sigmoid(x);  y' = s (1 + x (1 - s)).
struct SiLU {
    __device__ float f(float x) const { return x * sigmoid(x); }
    __device__ float dx(float x, float dy) const {
        float s = sigmoid(x);
        return dy * (s * (1.0f + x * (1.0f - s)));
    }
};

// y = ln(1 + e^(beta x)) / beta, and x itself where beta x > threshold;  y' = sigmoid(beta x), or 1.
struct Softplus {
    float beta, threshold;
    __device__ float f(float x) const { return beta * x > threshold ? x : log1pexp(beta * x) / beta; }
    __device__ float dx(float x, float dy) const { return dy * (beta * x > threshold ? 1.0f : sigmoid(beta * x)); }
};

// y = -ln(1 + e^-x);  y' = sigmoid(-x).
struct LogSigmoid {
    __device__ float f(float x) const { return -log1pexp(-x); }
    __device__ float dx(float x, float dy) const { return dy * sigmoid(-x); }
};

// ----------------------------------------------------------------------------------------------------------- kernels
// x, y, dy, dx: n elements that lie alike in memory.

extern "C" __global__ void relu_forward(const T* x, T* y, long long n) {
    forward(ReLU(), x, y, n);
}
extern "C" __global__ void relu_backward(const T* y, const T* dy, T* dx, long long n) {
    backward(ReLU(), y, dy, dx, n);
}

extern "C" __global__ void leaky_relu_forward(const T* x, T* y, long long n, float slope) {
    forward(LeakyReLU{slope}, x, y, n);
}
extern "C" __global__ void leaky_relu_backward(const T* x, const T* dy, T* dx, long long n, float slope) {
    backward(LeakyReLU{slope}, x, dy, dx, n);
}

extern "C" __global__ void sigmoid_forward(const T* x, T* y, long long n) {
    forward(Sigmoid(), x, y, n);
}
extern "C" __global__ void sigmoid_backward(const T* y, const T* dy, T* dx, long long n) {
    backward(Sigmoid(), y, dy, dx, n);
}

extern "C" __global__ void tanh_forward(const T* x, T* y, long long n) {
    forward(Tanh(), x, y, n);
}
extern "C" __global__ void tanh_backward(const T* y, const T* dy, T* dx, long long n) {
    backward(Tanh(), y, dy, dx, n);
}

extern "C" __global__ void hardtanh_forward(const T* x, T* y, long long n, float high, float low) {
    forward(Hardtanh{high, low}, x, y, n);
}
extern "C" __global__ void hardtanh_backward(const T* x, const T* dy, T* dx, long long n, float high, float low) {
    backward(Hardtanh{high, low}, x, dy, dx, n);
}

extern "C" __global__ void elu_forward(const T* x, T* y, long long n, float alpha) {
    forward(ELU{alpha}, x, y, n);
}
extern "C" __global__ void elu_backward(const T* x, const T* dy, T* dx, long long n, float alpha) {
    backward(ELU{alpha}, x, dy, dx, n);
}

extern "C" __global__ void gelu_forward(const T* x, T* y, long long n) {
    forward(GELU(), x, y, n);
}
extern "C" __global__ void gelu_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(GELU(), x, dy, dx, n);
}

extern "C" __global__ void tanh_gelu_forward(const T* x, T* y, long long n) {
    forward(TanhGELU(), x, y, n);
}
extern "C" __global__ void tanh_gelu_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(TanhGELU(), x, dy, dx, n);
}

extern "C" __global__ void silu_forward(const T* x, T* y, long long n) {
    forward(SiLU(), x, y, n);
}
extern "C" __global__ void silu_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(SiLU(), x, dy, dx, n);
}

extern "C" __global__ void softplus_forward(const T* x, T* y, long long n, float beta, float threshold) {
    forward(Softplus{beta, threshold}, x, y, n);
}
extern "C" __global__ void softplus_backward(const T* x, const T* dy, T* dx, long long n, float beta, float threshold) {
    backward(Softplus{beta, threshold}, x, dy, dx, n);
}

extern "C" __global__ void logsigmoid_forward(const T* x, T* y, long long n) {
    forward(LogSigmoid(), x, y, n);
}
extern "C" __global__ void logsigmoid_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(LogSigmoid(), x, dy, dx, n);
}
