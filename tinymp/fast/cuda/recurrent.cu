// The pointwise work of one step of an LSTM or a GRU (recurrent.py): one launch between two matrix products.
//
// A step has n rows of H units; a row of gates is the H of the first gate, then those of the next one. Two neighbouring
// units per thread: a warp then reads whole lines of memory, and a step, which is small (32 x 1024 units are usual),
// still gives work to all of a GPU. More neighbours would leave most of it idle.

#include "elements.cuh"

// K neighbours, widened; and back, rounded.
template <int K, class E>
__device__ inline Values<K> read(Width<K>, const E* from) {
    Few<E, K> few = *reinterpret_cast<const Few<E, K>*>(from);
    Values<K> values;
#pragma unroll
    for (int k = 0; k < K; k++) values.at[k] = widen(few.at[k]);
    return values;
}

template <int K, class E>
__device__ inline void write(E* to, const Values<K>& values) {
    Few<E, K> few;
#pragma unroll
    // rounds: gates, states and outputs, or their gradients
    for (int k = 0; k < K; k++) store(&few.at[k], values.at[k]);
    *reinterpret_cast<Few<E, K>*>(to) = few;
}

// x, plus y where that is not null.
template <int K, class X>
__device__ inline Values<K> sum(Width<K> width, const X* x, const T* y) {
    Values<K> values = read(width, x);
    if (y == nullptr) return values;
    Values<K> more = read(width, y);
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

// ---------------------------------------------------------------------------------------------------------------- LSTM

// m: the products with h;  c: the state before;  a: the products with x, then the gates i, f, g, o;  cell, h: the state
// and the output.
extern "C" __global__ void lstm_forward(const float* m, const T* c, T* a, T* cell, T* h, int n, int H) {
    each_unit(n, H, nullptr, [=](auto width, long long row, int j) {
        long long at = row * H + j, first = row * 4 * H + j;
        auto product = [=](int gate) { return sum(width, m + first + gate * H, a + first + gate * H); };
        auto i = product(0), f = product(1), g = product(2), o = product(3), state = read(width, c + at), y = state;
#pragma unroll
        for (int k = 0; k < width.length; k++) {
            i.at[k] = sigmoid(i.at[k]);
            f.at[k] = sigmoid(f.at[k]);
            g.at[k] = tanhf(g.at[k]);
            o.at[k] = sigmoid(o.at[k]);
            state.at[k] = f.at[k] * state.at[k] + i.at[k] * g.at[k];
            y.at[k] = o.at[k] * tanhf(state.at[k]);
        }
        write(a + first, i);
        write(a + first + H, f);
        write(a + first + 2 * H, g);
        write(a + first + 3 * H, o);
        write(cell + at, state);
        write(h + at, y);
    });
}

// a: the gates;  before, cell: the state before and after;  dh, dy: the gradients of the output, from the step after and
// from outside (or null);  dc: that of the state, then that of the state before;  dz: the gradients at the gates.
extern "C" __global__ void lstm_backward(const T* a, const T* before, const T* cell, const float* dh, const T* dy,
                                         float* dc, T* dz, int n, int H) {
    each_unit(n, H, dy, [=](auto width, long long row, int j) {
        long long at = row * H + j, first = row * 4 * H + j;
        auto i = read(width, a + first), f = read(width, a + first + H), g = read(width, a + first + 2 * H),
             o = read(width, a + first + 3 * H), state = read(width, cell + at), earlier = read(width, before + at);
        auto d = sum(width, dh + at, dy ? dy + at : nullptr), carried = read(width, dc + at);
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
        write(dz + first, i);
        write(dz + first + H, f);
        write(dz + first + 2 * H, g);
        write(dz + first + 3 * H, o);
        write(dc + at, carried);
    });
}

// ----------------------------------------------------------------------------------------------------------------- GRU

// m: the products with before, the output of the step before;  b: their bias (or null);  a: the products with x, then
// the gates r, z, n;  inner: m_n + b_n;  h: the output.
extern "C" __global__ void gru_forward(const float* m, const T* b, const T* before, T* a, T* inner, T* h, int n,
                                       int H) {
    each_unit(n, H, b, [=](auto width, long long row, int j) {
        long long at = row * H + j, first = row * 3 * H + j;
        auto product = [=](int gate) { return sum(width, m + first + gate * H, b ? b + j + gate * H : nullptr); };
        auto m_r = product(0), m_z = product(1), m_n = product(2), y = read(width, before + at);
        auto r = read(width, a + first), z = read(width, a + first + H), fresh = read(width, a + first + 2 * H);
#pragma unroll
        for (int k = 0; k < width.length; k++) {
            r.at[k] = sigmoid(r.at[k] + m_r.at[k]);
            z.at[k] = sigmoid(z.at[k] + m_z.at[k]);
            fresh.at[k] = tanhf(fresh.at[k] + r.at[k] * m_n.at[k]);
            y.at[k] = (y.at[k] - fresh.at[k]) * z.at[k] + fresh.at[k];
        }
        write(a + first, r);
        write(a + first + H, z);
        write(a + first + 2 * H, fresh);
        write(inner + at, m_n);
        write(h + at, y);
    });
}

// a: the gates;  inner: m_n;  before: the output of the step before;  dh, dy: the gradients of the output, from the
// products of the step after and from outside (or null);  past: what that step passed on past its products, then what
// this one does;  dp, dm: the gradients of the products with x and with before.
extern "C" __global__ void gru_backward(const T* a, const T* inner, const T* before, const float* dh, const T* dy,
                                        float* past, T* dp, T* dm, int n, int H) {
    each_unit(n, H, dy, [=](auto width, long long row, int j) {
        long long at = row * H + j, first = row * 3 * H + j;
        auto r = read(width, a + first), z = read(width, a + first + H), fresh = read(width, a + first + 2 * H),
             m_n = read(width, inner + at), earlier = read(width, before + at);
        auto d = sum(width, dh + at, dy ? dy + at : nullptr), carried = read(width, past + at);
#pragma unroll
        for (int k = 0; k < width.length; k++) {
            float gr = r.at[k], gz = z.at[k], gn = fresh.at[k], all = d.at[k] + carried.at[k];
            float dn = (1.0f - gn * gn) * all * (1.0f - gz);
            r.at[k] = (gr - gr * gr) * dn * m_n.at[k];
            z.at[k] = (gz - gz * gz) * (earlier.at[k] - gn) * all;
            fresh.at[k] = dn;
            m_n.at[k] = dn * gr;
            carried.at[k] = all * gz;
        }
        write(dp + first, r);
        write(dp + first + H, z);
        write(dp + first + 2 * H, fresh);
        write(dm + first, r);
        write(dm + first + H, z);
        write(dm + first + 2 * H, m_n);
        write(past + at, carried);
    });
}
