// One step of an LSTM: `units` numbers, H of each row; a row of gates has i, f, g, o.

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// z: the products with x;  m: those with the h before;  c: the state before
extern "C" __global__ void lstm_unit(const T* z, const float* m, const T* c, R* gates, R* cell, R* h, int units, int H) {
    int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= units) return;
    long long at = e / H * 4ll * H + e % H;
    auto sum = [&](int gate) { return widen(z[at + gate * H]) + m[at + gate * H]; };
    float i = sigmoid(sum(0)), f = sigmoid(sum(1)), g = tanhf(sum(2)), o = sigmoid(sum(3));
    float state = f * widen(c[e]) + i * g;
    // rounds: `store`: the gates, the state and the output, once each
    store(gates + at, i), store(gates + at + H, f), store(gates + at + 2 * H, g), store(gates + at + 3 * H, o);
    store(cell + e, state), store(h + e, o * tanhf(state));  // rounds: `store`
}

// dh: the gradient of h, without dy where that is given;  dc: that of the state, then that of the state before
extern "C" __global__ void lstm_unit_backward(
    const T* gates, const T* cell, const T* before, const float* dh, const float* dy, float* dc, R* dz, int n, int H) {
    int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= n) return;
    long long at = e / H * 4ll * H + e % H;
    auto gate = [&](int k) { return widen(gates[at + k * H]); };
    float i = gate(0), f = gate(1), g = gate(2), o = gate(3), t = tanhf(widen(cell[e]));
    float d = dy ? dh[e] + dy[e] : dh[e], s = dc[e] + d * (o * (1.0f - t * t));
    store(dz + at, s * g * (i - i * i)), store(dz + at + H, s * widen(before[e]) * (f - f * f));  // rounds: `store`
    store(dz + at + 2 * H, s * i * (1.0f - g * g)), store(dz + at + 3 * H, d * t * (o - o * o));  // rounds: `store`
    dc[e] = s * f;
}

