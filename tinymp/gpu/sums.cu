// Sums (sums.py) over all but the channels, or along rows: gradients of biases, losses.

#include "elements.cuh"
#include "rows.cuh"
#include "channels.cuh"

template <int V>
__device__ inline void sum_of(const T* x, float* sums, const Layout& layout) {
    __shared__ float scratch[FLOATS<Total<V>> * THREADS];
    Share<V> share(layout, aligned16(x));
    Total<V> all = combine_rows(total<V>(x, share.walk), share.lanes, scratch);  // rounds: FP32 sums
    if (threadIdx.x < share.lanes)
        for (int v = 0; v < V; v++) share.put(sums, share.part, v, all.sum[v]);
}

// sums (parts, channels): those of each part of x.
extern "C" __global__ void __launch_bounds__(THREADS) sum(const T* x, float* sums, LAYOUT) {
    sum_of<1>(x, sums, {outer, channels, inner, lanes, rows_per_part, columns_per_part, parts});
}
extern "C" __global__ void __launch_bounds__(THREADS) sum_columns(const T* x, float* sums, LAYOUT) {
    sum_of<PACK>(x, sums, {outer, channels, inner, lanes, rows_per_part, columns_per_part, parts});
}

// sums (rows,) of x (rows, length).
extern "C" __global__ void __launch_bounds__(THREADS) sum_rows(
    const T* x, float* sums, long long rows, int length, int lanes) {
    __shared__ float scratch[FLOATS<Total<1>> * THREADS];
    RowShare share(rows, length, lanes, aligned16(x));
    Total<1> all = combine_lanes(total<1>(x, share.walk), lanes, scratch);  // rounds: FP32 sums
    if (share.writes()) sums[share.row] = all.sum[0];
}
