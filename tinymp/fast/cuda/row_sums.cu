// out[v] = sum of the rows with index[i] = v, in order of i: the gradient of every lookup, without atomics on floats.
//
// order lists the positions i sorted by index (stable), so that the rows of one v are a run of it. It is cut into chunks
// of a fixed length: a thread adds up the part of each run that lies in its chunk. Runs within one chunk are then done;
// the parts of the others wait in `partial`, until `add_parts` adds them up in order, in blocks where they are many.
//
// rows: (n, width) and out: (n_rows, width) in T; index, order: (n,). partial: (chunks, 2, width) in FP32, first the
// run at the start of the chunk, then the one at its end if that is another. bounds: (n_rows, 2), where the run of each
// v begins and ends in `order`; 0 where v has no row. Rows with an index outside [0, n_rows) are left out.
//
// A thread takes N neighbouring columns: PACK of them where all rows are aligned, else 1. `running` asks for the FP16
// accumulator of a policy that studies it: every addition is rounded.

#include "elements.cuh"

template <int N>
__device__ inline void add(Values<N>& sum, const T* row, bool running) {
    Values<N> values = load(Width<N>(), row);
#pragma unroll
    for (int j = 0; j < N; j++) {
        sum.at[j] += values.at[j];
        if (running) sum.at[j] = widen(round_to_half(sum.at[j]));  // rounds: an FP16 accumulator, in a study
    }
}

template <int N>
__device__ inline void add_chunk(const T* rows, const long long* index, const long long* order, T* out, float* partial,
                                 long long* bounds, long long n, long long n_rows, long long width, long long chunk,
                                 bool running, long long k, long long column) {
    long long start = k * chunk, stop = min(start + chunk, n), p = start;
    while (p < stop) {
        long long v = index[order[p]], begin = p;
        Values<N> sum = {};
        for (; p < stop && index[order[p]] == v; p++) add(sum, rows + order[p] * width + column, running);
        if (v < 0 || v >= n_rows) continue;
        bool begins = begin == 0 || index[order[begin - 1]] != v, ends = p == n || index[order[p]] != v;
        if (begins && column == 0) bounds[2 * v] = begin;
        if (ends && column == 0) bounds[2 * v + 1] = p;
        if (begins && ends) {
            save(out + v * width + column, sum);
        } else {
            float* part = partial + (2 * k + (begin > start)) * width + column;
#pragma unroll
            for (int j = 0; j < N; j++) part[j] = sum.at[j];
        }
    }
}

extern "C" __global__ void add_rows(const T* rows, const long long* index, const long long* order, T* out,
                                    float* partial, long long* bounds, long long n, long long n_rows, long long width,
                                    long long chunk, int packed, int running) {
    long long groups = packed ? width / PACK : width, work = (n + chunk - 1) / chunk * groups;
    long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < work; i += threads) {
        long long k = i / groups, group = i % groups;
        if (packed)
            add_chunk<PACK>(rows, index, order, out, partial, bounds, n, n_rows, width, chunk, running, k, group * PACK);
        else
            add_chunk<1>(rows, index, order, out, partial, bounds, n, n_rows, width, chunk, running, k, group);
    }
}

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
__device__ inline void add_parts_of(const float* partial, const long long* bounds, T* out, long long width,
                                    long long chunk, long long v, long long column) {
    long long begin = bounds[2 * v], end = bounds[2 * v + 1], k = begin / chunk, last = (end - 1) / chunk;
    if (end > 0 && k == last) return;  // add_rows has stored it
    InBlocks<RowSum<N>, 3> sum;  // rounds: the parts of a row, summed in FP32 blocks
    if (end > 0) {
        const float* part = partial + (2 * k + (begin > k * chunk)) * width + column;
        for (; k <= last; part = partial + 2 * ++k * width + column) {
            RowSum<N> row;
#pragma unroll
            for (int j = 0; j < N; j++) row.values.at[j] = part[j];
            sum.add(row);
        }
    }
    save(out + v * width + column, sum.total().values);
}

extern "C" __global__ void add_parts(const float* partial, const long long* bounds, T* out, long long n_rows,
                                     long long width, long long chunk, int packed) {
    long long groups = packed ? width / PACK : width, work = n_rows * groups;
    long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < work; i += threads) {
        long long v = i / groups, group = i % groups;
        if (packed)
            add_parts_of<PACK>(partial, bounds, out, width, chunk, v, group * PACK);
        else
            add_parts_of<1>(partial, bounds, out, width, chunk, v, group);
    }
}
