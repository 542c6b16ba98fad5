// The pointwise work of one step of an LSTM (recurrent.py): one launch between two matrix products.
//
// A step has n rows of H units; a row of gates is the H of the first gate, then those of the next one. Two neighbouring
// units per thread: a warp then reads whole lines of memory, and a step, which is small (32 x 1024 units are usual),
// still gives work to all of a GPU. More neighbours would leave most of it idle.

#include "elements.cuh"

// x, plus y where that is not null.
template <int K, class X>
__device__ inline Values<K> sum(Width<K> width, const X* x, const T* y) {
    Values<K> values = load(width, x);
    if (y == nullptr) return values;
    Values<K> more = load(width, y);
#pragma unroll
    for (int k = 0; k < K; k++) values.at[k] += more.at[k];
    return values;
}

// body(Width<K>(), row, j) for the units j to j + K - 1 of every row. They go in pairs where H is even and `other` (the
// one array that may not be aligned, or null) lies at a multiple of a pair's size.
template <class Body>
__device__ inline void each_unit(int n, int H, const T* other, Body body) {
    bool pairs = H % 2 == 0 && reinterpret_cast<unsigned long long>(other) % sizeof(Few<T, 2>) == 0;
    int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    for (long long row = blockIdx.y; row < n; row += gridDim.y)
        if (pairs)
            for (int j = 2 * thread; j < H; j += 2 * threads) body(Width<2>(), row, j);
        else
            for (int j = thread; j < H; j += threads) body(Width<1>(), row, j);
}

// m: the products with h;  c: the state before;  a: the products with x, then the gates i, f, g, o;  cell, h: the state
// and the output.
extern "C" __global__ void lstm_forward(const float* m, const T* c, T* a, T* cell, T* h, int n, int H) {
    each_unit(n, H, nullptr, [=](auto width, long long row, int j) {
        long long at = row * H + j, first = row * 4 * H + j;
        auto product = [=](int gate) { return sum(width, m + first + gate * H, a + first + gate * H); };
        auto i = product(0), f = product(1), g = product(2), o = product(3), state = load(width, c + at), y = state;
#pragma unroll
        for (int k = 0; k < width.length; k++) {
            i.at[k] = sigmoid(i.at[k]);
            f.at[k] = sigmoid(f.at[k]);
            g.at[k] = tanhf(g.at[k]);
            o.at[k] = sigmoid(o.at[k]);
            state.at[k] = f.at[k] * state.at[k] + i.at[k] * g.at[k];
            y.at[k] = o.at[k] * tanhf(state.at[k]);
        }
        save(a + first, i);
        save(a + first + H, f);
        save(a + first + 2 * H, g);
        save(a + first + 3 * H, o);
        save(cell + at, state);
        save(h + at, y);
    });
}

// a: the gates;  before, cell: the state before and after;  dh, dy: the gradients of the output, from the step after and
// from outside (or null);  dc: that of the state, then that of the state before;  dz: the gradients at the gates.
extern "C" __global__ void lstm_backward(const T* a, const T* before, const T* cell, const float* dh, const T* dy,
                                         float* dc, T* dz, int n, int H) {
    each_unit(n, H, dy, [=](auto width, long long row, int j) {
        long long at = row * H + j, first = row * 4 * H + j;
        auto i = load(width, a + first), f = load(width, a + first + H), g = load(width, a + first + 2 * H),
             o = load(width, a + first + 3 * H), state = load(width, cell + at), earlier = load(width, before + at);
        auto d = sum(width, dh + at, dy ? dy + at : nullptr), carried = load(width, dc + at);
#pragma unroll
        for (int k = 0; k < width.length; k++) {
            float gi = i.at[k], gf = f.at[k], gg = g.at[k], go = o.at[k], t = tanhf(state.at[k]);
            float dstate = carried.at[k] + (1.0f - t * t) * go * d.at[k];
            i.at[k] = dstate * gg * (gi - gi * gi);
            f.at[k] = dstate * earlier.at[k] * (gf - gf * gf);
            g.at[k] = dstate * gi * (1.0f - gg * gg);
            o.at[k] = d.at[k] * t * (go - go * go);
            carried.at[k] = dstate * gf;
        }
        save(dz + first, i);
        save(dz + first + H, f);
        save(dz + first + 2 * H, g);
        save(dz + first + 3 * H, o);
        save(dc + at, carried);
    });
}
