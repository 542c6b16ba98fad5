// Pointwise arithmetic (pointwise.py): read T, compute one element in FP32 registers, write T; one launch each.
//
// A function of one operand is a struct as in activation.cu: f(x) is the op's f; dx(v, dy) is the gradient, where v is
// what the op saved. One of two operands has f(x, y) and its gradients dx(x, y, dz), dy(x, y, dz).

#include "elements.cuh"

// ------------------------------------------------------------------------------------------------------- one operand

// y = factor x;  factor = -1 is exact.
struct Scale {
    float factor;
    __device__ float f(float x) const { return factor * x; }
};

// y = |x|;  dx = sign(x) dy, 0 at 0 and -0, nan at nan.
struct Abs {
    __device__ float f(float x) const { return fabsf(x); }
    __device__ float dx(float x, float dy) const { return dy * (x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x - x); }
};

// y = e^x;  dx = y dy.  Saved: y.
struct Exp {
    __device__ float f(float x) const { return expf(x); }
    __device__ float dx(float y, float dy) const { return dy * y; }
};

// y = ln x;  dx = dy / x.
struct Log {
    __device__ float f(float x) const { return logf(x); }
    __device__ float dx(float x, float dy) const { return dy * (1.0f / x); }
};

// y = sqrt x;  dx = dy / 2y.  Saved: y.
struct Sqrt {
    __device__ float f(float x) const { return sqrtf(x); }
    __device__ float dx(float y, float dy) const { return dy * (0.5f / y); }
};

// y = 1 / sqrt x;  dx = -dy / 2 x^(3/2).
struct Rsqrt {
    __device__ float f(float x) const { return 1.0f / sqrtf(x); }
    __device__ float dx(float x, float dy) const { return dy * (-0.5f / (x * sqrtf(x))); }
};

// y = x^2;  dx = 2x dy.
struct Square {
    __device__ float f(float x) const { return x * x; }
    __device__ float dx(float x, float dy) const { return dy * (2.0f * x); }
};

// y = 1 / x;  dx = -dy / x^2.
struct Reciprocal {
    __device__ float f(float x) const { return 1.0f / x; }
    __device__ float dx(float x, float dy) const { return dy * (-1.0f / (x * x)); }
};

// y = min(max(x, low), high), nan stays nan;  dx = dy where low <= x <= high, else 0.
struct Clamp {
    float low, high;
    __device__ float f(float x) const { return Min::combine(Max::combine(x, low), high); }
    __device__ float dx(float x, float dy) const { return x >= low && x <= high ? dy : 0.0f; }
};

// ------------------------------------------------------------------------------------------------------ two operands

// An operand of z = f(x, y), as seen from the n elements of z in the order of their memory (`_seen` in pointwise.py):
//
//     at null      a number, the same for every i
//     length = 0   an array that lies like z: element i is at[i]
//     else         an array that is broadcast, or its only element: element i is at[i / inner % length]  (n < 2^31)
struct Operand {
    const T* at;
    int inner, length;
    float number;

    __device__ bool wide() const { return at == nullptr || length != 0 || aligned16(at); }

    template <int K>
    __device__ Values<K> load_at(Width<K> width, long long i) const {
        if (at != nullptr && length == 0) return load(width, at + i);
        Values<K> values;
        if (at == nullptr) {
#pragma unroll
            for (int k = 0; k < K; k++) values.at[k] = number;
            return values;
        }
        // dividing once, then counting on: a division takes as long as ten other instructions
        unsigned first = static_cast<unsigned>(i), run = first / inner, place = first - run * inner;
        int row = static_cast<int>(run % length);
#pragma unroll
        for (int k = 0; k < K; k++) {
            values.at[k] = widen(at[row]);
            if (++place == inner) {
                place = 0;
                if (++row == length) row = 0;
            }
        }
        return values;
    }
};

// z_i = f(x_i, y_i) for n elements.
template <class F>
__device__ inline void forward(F function, Operand x, Operand y, T* z, long long n) {
    each_chunk(n, x.wide() && y.wide() && aligned16(z), [=](auto width, long long i) {
        auto a = x.load_at(width, i), b = y.load_at(width, i);
#pragma unroll
        for (int k = 0; k < a.length; k++) a.at[k] = function.f(a.at[k], b.at[k]);
        save(z + i, a);
    });
}

// Where a gradient goes: to `narrow`, rounded; or, where its operand was broadcast and the sum over it is still to
// come, to `wide` in FP32; or, where none is wanted and both are null, nowhere.
struct Gradient {
    T* narrow;
    float* wide;

    template <int K>
    __device__ void save_at(long long i, const Values<K>& values) const {
        if (narrow != nullptr) save(narrow + i, values);
        if (wide != nullptr)
#pragma unroll
            for (int k = 0; k < K; k++) wide[i + k] = values.at[k];
    }
};

// The gradients of both operands of z = f(x, y), n elements.
template <class F>
__device__ inline void backward(F function, Operand x, Operand y, const T* dz, Gradient dx, Gradient dy, long long n) {
    bool wide = x.wide() && y.wide() && aligned16(dz) && aligned16(dx.narrow) && aligned16(dy.narrow);
    each_chunk(n, wide, [=](auto width, long long i) {
        auto a = x.load_at(width, i), b = y.load_at(width, i), g = load(width, dz + i);
        auto to_x = g, to_y = g;
#pragma unroll
        for (int k = 0; k < g.length; k++) {
            to_x.at[k] = function.dx(a.at[k], b.at[k], g.at[k]);
            to_y.at[k] = function.dy(a.at[k], b.at[k], g.at[k]);
        }
        dx.save_at(i, to_x);
        dy.save_at(i, to_y);
    });
}

// z = x + factor y.  (Subtraction: a negative factor. 1 and -1 are exact.)
struct Add {
    float factor;
    __device__ float f(float x, float y) const { return x + factor * y; }
};

// z = x y;  dx = y dz, dy = x dz.
struct Mul {
    __device__ float f(float x, float y) const { return x * y; }
    __device__ float dx(float, float y, float dz) const { return dz * y; }
    __device__ float dy(float x, float, float dz) const { return dz * x; }
};

// z = x / y;  dx = dz / y, dy = -dz x / y^2.
struct Div {
    __device__ float f(float x, float y) const { return x / y; }
    __device__ float dx(float, float y, float dz) const { return dz / y; }
    __device__ float dy(float x, float y, float dz) const { return -(dz / y) * (x / y); }
};

// z = max(x, y), nan if either is;  the larger operand gets dz, equal ones half each, both all of it at nan.
struct Maximum {
    __device__ float f(float x, float y) const { return Max::combine(x, y); }
    __device__ float dx(float x, float y, float dz) const { return y > x ? 0.0f : x == y ? 0.5f * dz : dz; }
    __device__ float dy(float x, float y, float dz) const { return dx(y, x, dz); }
};

// z = min(x, y), nan if either is;  the smaller operand gets dz, equal ones half each, both all of it at nan.
struct Minimum {
    __device__ float f(float x, float y) const { return Min::combine(x, y); }
    __device__ float dx(float x, float y, float dz) const { return y < x ? 0.0f : x == y ? 0.5f * dz : dz; }
    __device__ float dy(float x, float y, float dz) const { return dx(y, x, dz); }
};

// ----------------------------------------------------------------------------------------------------------- kernels
// One operand: x, y, dy, dx are n elements that lie alike in memory.

extern "C" __global__ void scale(const T* x, T* y, long long n, float factor) { forward(Scale{factor}, x, y, n); }

extern "C" __global__ void abs_forward(const T* x, T* y, long long n) {
    forward(Abs(), x, y, n);
}
extern "C" __global__ void abs_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(Abs(), x, dy, dx, n);
}

extern "C" __global__ void exp_forward(const T* x, T* y, long long n) {
    forward(Exp(), x, y, n);
}
extern "C" __global__ void exp_backward(const T* y, const T* dy, T* dx, long long n) {
    backward(Exp(), y, dy, dx, n);
}

extern "C" __global__ void log_forward(const T* x, T* y, long long n) {
    forward(Log(), x, y, n);
}
extern "C" __global__ void log_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(Log(), x, dy, dx, n);
}

extern "C" __global__ void sqrt_forward(const T* x, T* y, long long n) {
    forward(Sqrt(), x, y, n);
}
extern "C" __global__ void sqrt_backward(const T* y, const T* dy, T* dx, long long n) {
    backward(Sqrt(), y, dy, dx, n);
}

extern "C" __global__ void rsqrt_forward(const T* x, T* y, long long n) {
    forward(Rsqrt(), x, y, n);
}
extern "C" __global__ void rsqrt_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(Rsqrt(), x, dy, dx, n);
}

extern "C" __global__ void square_forward(const T* x, T* y, long long n) {
    forward(Square(), x, y, n);
}
extern "C" __global__ void square_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(Square(), x, dy, dx, n);
}

extern "C" __global__ void reciprocal_forward(const T* x, T* y, long long n) {
    forward(Reciprocal(), x, y, n);
}
extern "C" __global__ void reciprocal_backward(const T* x, const T* dy, T* dx, long long n) {
    backward(Reciprocal(), x, dy, dx, n);
}

extern "C" __global__ void clamp_forward(const T* x, T* y, long long n, float low, float high) {
    forward(Clamp{low, high}, x, y, n);
}
extern "C" __global__ void clamp_backward(const T* x, const T* dy, T* dx, long long n, float low, float high) {
    backward(Clamp{low, high}, x, dy, dx, n);
}

// Two operands: x and y with their inner and length, and the number that stands for one of them; see Operand. z, dz, dx
// and dy are n elements that lie alike in memory.

extern "C" __global__ void add_forward(const T* x, int x_inner, int x_length, const T* y, int y_inner, int y_length,
                                       float number, T* z, long long n, float factor) {
    forward(Add{factor}, {x, x_inner, x_length, number}, {y, y_inner, y_length, number}, z, n);
}

extern "C" __global__ void mul_forward(const T* x, int x_inner, int x_length, const T* y, int y_inner, int y_length,
                                       float number, T* z, long long n) {
    forward(Mul(), {x, x_inner, x_length, number}, {y, y_inner, y_length, number}, z, n);
}
extern "C" __global__ void mul_backward(const T* x, int x_inner, int x_length, const T* y, int y_inner,
                                        int y_length, float number, const T* dz, T* dx, float* dx_wide, T* dy,
                                        float* dy_wide, long long n) {
    Operand a{x, x_inner, x_length, number}, b{y, y_inner, y_length, number};
    backward(Mul(), a, b, dz, {dx, dx_wide}, {dy, dy_wide}, n);
}

extern "C" __global__ void div_forward(const T* x, int x_inner, int x_length, const T* y, int y_inner, int y_length,
                                       float number, T* z, long long n) {
    forward(Div(), {x, x_inner, x_length, number}, {y, y_inner, y_length, number}, z, n);
}
extern "C" __global__ void div_backward(const T* x, int x_inner, int x_length, const T* y, int y_inner,
                                        int y_length, float number, const T* dz, T* dx, float* dx_wide, T* dy,
                                        float* dy_wide, long long n) {
    Operand a{x, x_inner, x_length, number}, b{y, y_inner, y_length, number};
    backward(Div(), a, b, dz, {dx, dx_wide}, {dy, dy_wide}, n);
}

extern "C" __global__ void maximum_forward(const T* x, int x_inner, int x_length, const T* y, int y_inner, int y_length,
                                           float number, T* z, long long n) {
    forward(Maximum(), {x, x_inner, x_length, number}, {y, y_inner, y_length, number}, z, n);
}
extern "C" __global__ void maximum_backward(const T* x, int x_inner, int x_length, const T* y, int y_inner,
                                            int y_length, float number, const T* dz, T* dx, float* dx_wide, T* dy,
                                            float* dy_wide, long long n) {
    Operand a{x, x_inner, x_length, number}, b{y, y_inner, y_length, number};
    backward(Maximum(), a, b, dz, {dx, dx_wide}, {dy, dy_wide}, n);
}

extern "C" __global__ void minimum_forward(const T* x, int x_inner, int x_length, const T* y, int y_inner, int y_length,
                                           float number, T* z, long long n) {
    forward(Minimum(), {x, x_inner, x_length, number}, {y, y_inner, y_length, number}, z, n);
}
extern "C" __global__ void minimum_backward(const T* x, int x_inner, int x_length, const T* y, int y_inner,
                                            int y_length, float number, const T* dz, T* dx, float* dx_wide, T* dy,
                                            float* dy_wide, long long n) {
    Operand a{x, x_inner, x_length, number}, b{y, y_inner, y_length, number};
    backward(Minimum(), a, b, dz, {dx, dx_wide}, {dy, dy_wide}, n);
}
