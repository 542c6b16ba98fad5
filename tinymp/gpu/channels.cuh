// Sums over all but the channels of x, seen as (outer, channels, inner); see `channels` in layout.py.
//
// V is the number of channels that a thread sees: 1 where inner > 1 (a block walks one channel along its runs of `inner`),
// PACK where inner = 1 (neighbours in memory are different channels: a thread keeps PACK of them, and walks along outer).

#define LAYOUT int outer, int channels, int inner, int lanes, int rows_per_part, int columns_per_part, int parts

struct Layout {
    int outer, channels, inner;              // of x
    int lanes;                               // neighbouring threads on one run of memory
    int rows_per_part, columns_per_part;     // of a channel, as a matrix (outer, inner), each block takes so much
    int parts;                               // blocks per channel, or per lanes * PACK channels
};

// What one block does, seen from one thread.
template <int V>
struct Share {
    int channel, part;  // the thread's first channel; which part of it
    int lanes;          // threads that agree modulo this have the same channels
    int unit, units, parts, channels;
    Walk walk;

    __device__ Share(const Layout& x, bool wide)
        : part(blockIdx.x % x.parts), lanes(V == 1 ? 1 : x.lanes), parts(x.parts), channels(x.channels),
          walk(V == 1 ? one(x, wide) : many(x, wide)) {
        int group = blockIdx.x / x.parts;
        channel = V == 1 ? group : (group * x.lanes + threadIdx.x % x.lanes) * V;
        unit = channel / V;
        units = (channels + V - 1) / V;
    }

    // One channel: part of its `outer` rows, or part of their columns.
    __device__ static Walk one(const Layout& x, bool wide) {
        int across = (x.inner + x.columns_per_part - 1) / x.columns_per_part, part = blockIdx.x % x.parts;
        int row = part / across * x.rows_per_part, column = part % across * x.columns_per_part;
        long long start = static_cast<long long>(blockIdx.x / x.parts) * x.inner;
        return Walk(start, static_cast<long long>(x.channels) * x.inner, row + threadIdx.x / x.lanes,
                    min(row + x.rows_per_part, x.outer), THREADS / x.lanes,
                    threadIdx.x % x.lanes, x.lanes, column, min(column + x.columns_per_part, x.inner), wide);
    }

    // lanes * PACK channels of the matrix (outer, channels): a line per thread and row, always on the same channels.
    __device__ static Walk many(const Layout& x, bool wide) {
        int row = blockIdx.x % x.parts * x.rows_per_part, column = blockIdx.x / x.parts * x.lanes * PACK;
        return Walk(0, x.channels, row + threadIdx.x / x.lanes, min(row + x.rows_per_part, x.outer), THREADS / x.lanes,
                    threadIdx.x % x.lanes, x.lanes, column, min(column + x.lanes * PACK, x.channels),
                    wide && x.channels % PACK == 0);
    }

    // True of the thread that writes what belongs to its channels.
    __device__ bool writes() const { return part == 0 && threadIdx.x < lanes; }

    __device__ void get(float (&to)[V], const float* from, float otherwise) const {
#pragma unroll
        for (int v = 0; v < V; v++) to[v] = from && channel + v < channels ? from[channel + v] : otherwise;
    }

    // Into a row of `to` (rows, channels), which may be null.
    __device__ void put(float* to, int row, int v, float value) const {
        if (to && channel + v < channels) to[static_cast<long long>(row) * channels + channel + v] = value;
    }
};

// Of InBlocks: with two, the PACK channels of a thread would take too many registers, and its share of each is short.
template <int V>
constexpr int LEVELS = V == 1 ? 2 : 1;
