// out[v] = sum of the rows with index[i] = v, in order of i: the gradient of every lookup, without atomics on floats.
//
// order lists the positions i sorted by index (stable), so that the rows of v are a run of it, from begin[v] to
// begin[v + 1]. rows: (n, width) and out: (n_rows, width). A thread adds up N neighbouring columns of one v, four of them
// where all rows are aligned, else 1; long runs in blocks.

#include "elements.cuh"

template <int N>
struct RowSum {
    Values<N> values = {};

    __device__ static RowSum combine(const RowSum& a, const RowSum& b) {
        RowSum c;
#pragma unroll
        for (int j = 0; j < N; j++) c.values.at[j] = a.values.at[j] + b.values.at[j];
        return c;
    }
};

template <int N>
__device__ inline void add_run(const float* rows, const long long* order, const long long* begin, float* out,
                               long long width, long long v, long long column) {
    InBlocks<RowSum<N>, 3> sum;  // rounds: the rows of a run, summed in FP32 blocks
    for (long long p = begin[v]; p < begin[v + 1]; p++)
        sum.add({load(Width<N>(), rows + order[p] * width + column)});
    save(out + v * width + column, sum.total().values);
}

extern "C" __global__ void add_rows(const float* rows, const long long* order, const long long* begin, float* out,
                                    long long n_rows, long long width, int packed) {
    long long groups = packed ? width / 4 : width, work = n_rows * groups;
    long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < work; i += threads) {
        long long v = i / groups, group = i % groups;
        if (packed)
            add_run<4>(rows, order, begin, out, width, v, group * 4);
        else
            add_run<1>(rows, order, begin, out, width, v, group);
    }
}
