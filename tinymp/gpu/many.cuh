// Many arrays in one launch (many.py). A row holds the addresses of arrays of one length, or of counts; the rows are an
// argument, by value. Block b works on one chunk: CHUNK neighbouring elements (fewer at the end) of one row's arrays.

constexpr int CHUNK = 8192;  // many.py has the same number

template <int COLUMNS, int ROWS>
struct Rows {
    struct {
        unsigned long long at[COLUMNS];  // addresses
        long long n;                     // elements
        int first, place;                // its first block; its place among all that the caller has
    } row[ROWS];
    int count;
};

struct Chunk {
    int row = 0, n;
    long long first;

    // By bisection: the last row that begins at this block or before it.
    template <class Rows>
    __device__ explicit Chunk(const Rows& rows) {
        for (int end = rows.count; end - row > 1;) {
            int middle = (row + end) / 2;
            if (rows.row[middle].first <= static_cast<int>(blockIdx.x)) row = middle;
            else end = middle;
        }
        first = static_cast<long long>(blockIdx.x - rows.row[row].first) * CHUNK;
        n = static_cast<int>(min(static_cast<long long>(CHUNK), rows.row[row].n - first));
    }

    template <class E, class Rows>
    __device__ E* in(const Rows& rows, int column) const {
        return reinterpret_cast<E*>(rows.row[row].at[column]) + first;
    }

    // body(Width<K>, i) for the K elements from i on, K = 8 while there are so many and addresses permit, then 1.
    template <class Body>
    __device__ void each(bool aligned, Body body) const {
        int whole = aligned ? n / 8 * 8 : 0;
        for (int i = threadIdx.x * 8; i < whole; i += blockDim.x * 8) body(Width<8>(), i);
        for (int i = whole + threadIdx.x; i < n; i += blockDim.x) body(Width<1>(), i);
    }
};

// To be called at the end of a kernel: whether this block is the last one of the grid, and this its first thread.
// *ended is 0 before and after the launch.
__device__ inline bool last_to_end(int* ended) {
    __syncthreads();
    if (threadIdx.x != 0) return false;
    __threadfence();
    // rounds: never, whole numbers
    if (atomicAdd(ended, 1) != static_cast<int>(gridDim.x) - 1) return false;
    *ended = 0;
    return true;
}
