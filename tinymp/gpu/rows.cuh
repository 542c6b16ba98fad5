// Walking along the rows of a matrix in memory, and combining what the threads of a block found there.

// ---------------------------------------------------------------------------------------------------- walking memory

constexpr int THREADS = 256;  // of every block
constexpr int BATCH = 4;      // lines that a thread reads before it computes: 64 bytes in flight hide memory's latency

// A line of memory: PACK neighbours, the first at index `at`, `column` columns into its row. Only the elements k with
// lo <= k < hi ("ours") belong to this walk.
struct Line {
    long long at;
    int row, column, lo, hi;
    __device__ bool whole() const { return lo == 0 && hi == PACK; }
    __device__ bool empty() const { return hi <= lo; }
    __device__ bool has(int k) const { return lo <= k && k < hi; }
};

// f(k) for each of our k. In both branches k is known to the compiler: what it indexes stays in registers.
template <class F>
__device__ inline void each(const Line& line, F f) {
    if (line.whole()) {
#pragma unroll
        for (int k = 0; k < PACK; k++) f(k);
    } else {
#pragma unroll
        for (int k = 0; k < PACK; k++)
            if (line.lo <= k && k < line.hi) f(k);
    }
}

// Our part of a line of x, and zeros. wide: whole lines lie at multiples of 16 bytes.
__device__ inline Pack read(const T* x, const Line& line, bool wide) {
    if (wide && line.whole()) return Pack(x + line.at);
    Pack pack;
    each(line, [&](int k) { pack.at[k] = x[line.at + k]; });
    return pack;
}

// Our part of a line of y becomes value(k), rounded where E (which is R) is half. Others are computed as well, and left:
// so `value` is compiled once, not for whole lines and once more for the rest.
template <class E, class F>
__device__ inline void write(E* y, const Line& line, bool wide, F value) {
    if (line.empty()) return;
    Few<E, PACK> few;
#pragma unroll
    for (int k = 0; k < PACK; k++) store(&few.at[k], value(k));  // rounds: the result of a norm or loss kernel
    if (wide && line.whole())
        *reinterpret_cast<Few<E, PACK>*>(y + line.at) = few;
    else
#pragma unroll
        for (int k = 0; k < PACK; k++)
            if (line.has(k)) y[line.at + k] = few.at[k];
}

// The lines that one thread visits of a matrix in memory: of rows row, row + row_step, ... < rows, which lie `pitch`
// elements apart, columns first <= column < last. There `lanes` neighbouring threads take a line each, then the next
// `lanes` lines. Where a row starts between two multiples of 16 bytes, its first line begins before it, with lo > 0.
struct Walk {
    long long start, pitch;
    int row, rows, row_step, lane, lanes, first, last;
    bool wide;
    int column = 0;

    __device__ Walk(long long start, long long pitch, int row, int rows, int row_step, int lane, int lanes, int first,
                    int last, bool wide)
        : start(start), pitch(pitch), row(row), rows(rows), row_step(row_step), lane(lane), lanes(lanes),
          first(first), last(last), wide(wide) {
        begin_row();
    }

    __device__ bool more() const { return row < rows; }

    // The next line; beyond the last one an empty one.
    __device__ Line next() {
        Line line{start + row * pitch + column, row, column, max(first - column, 0), 0};
        if (row < rows) {
            line.hi = min(last - column, PACK);
            column += lanes * PACK;
            if (column >= last) {
                row += row_step;
                begin_row();
            }
        }
        return line;
    }

    __device__ void begin_row() {
        int before = wide ? static_cast<int>((start + row * pitch + first) & (PACK - 1)) : 0;
        column = first - before + lane * PACK;
    }
};

// One thread's part of a matrix of whole rows, of which `lanes` neighbouring threads share one.
struct RowShare {
    long long row;
    int lanes;
    bool there;
    Walk walk;

    __device__ RowShare(long long rows, int length, int lanes, bool wide)
        : row(static_cast<long long>(blockIdx.x) * (THREADS / lanes) + threadIdx.x / lanes), lanes(lanes),
          there(row < rows),
          walk(row * length, 0, 0, there, 1, threadIdx.x % lanes, lanes, 0, length, wide) {}

    __device__ bool writes() const { return there && threadIdx.x % lanes == 0; }
};

// use(lines, xs) for the lines of a walk, BATCH at a time, with our parts of them in each of N arrays: xs[i][u] is that
// of line u of array from[i]. Lines beyond the last one are empty.
template <int N, class Use>
__device__ inline void each_batch(Walk walk, const T* const (&from)[N], Use use) {
    while (walk.more()) {
        Line lines[BATCH];
        Pack xs[N][BATCH];
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            lines[u] = walk.next();
#pragma unroll
            for (int i = 0; i < N; i++) xs[i][u] = read(from[i], lines[u], walk.wide);
        }
        use(lines, xs);
    }
}

// use(line, x) or, for two arrays, use(line, x, y) for each line of a walk.
template <int N, class Use>
__device__ inline void each_line(Walk walk, const T* const (&from)[N], Use use) {
    each_batch(walk, from, [&](const Line (&lines)[BATCH], const Pack (&xs)[N][BATCH]) {
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            if constexpr (N == 1)
                use(lines[u], xs[0][u]);
            else
                use(lines[u], xs[0][u], xs[1][u]);
    });
}

// The total, in blocks, of what a thread's walk adds up: add(a, line, x) or, for two arrays, add(a, line, x, y) adds the
// elements of a line to a. Two levels: a few lines, CHAIN of them, and so on; one: all of them in their order.
template <class A, int LEVELS = 2, int N, class Add>
__device__ inline A add_lines(Walk walk, const T* const (&from)[N], Add add) {
    InBlocks<A, LEVELS> all;  // rounds: the elements of a row in blocks, FP32
    each_batch(walk, from, [&](const Line (&lines)[BATCH], const Pack (&xs)[N][BATCH]) {
        A fresh;
        A& few = LEVELS == 1 ? all.level[0] : fresh;
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            if constexpr (N == 1)
                add(few, lines[u], xs[0][u]);
            else
                add(few, lines[u], xs[0][u], xs[1][u]);
        if (LEVELS > 1) all.add(few);
    });
    return all.total();
}

// -------------------------------------------------------------------------- combining what the threads of a block have

// What threads accumulate is a struct A of floats with combine(a, b) and, from A(), its neutral element.
template <class A>
constexpr int FLOATS = sizeof(A) / sizeof(float);

template <class A>
__device__ inline float member(const A& a, int i) {
    return reinterpret_cast<const float*>(&a)[i];
}

// The A whose member i is value(i).
template <class A, class F>
__device__ inline A made_of(F value) {
    A a;
#pragma unroll
    for (int i = 0; i < FLOATS<A>; i++) reinterpret_cast<float*>(&a)[i] = value(i);
    return a;
}

// a + b, member by member.
template <class A>
__device__ inline A plus(const A& a, const A& b) {
    return made_of<A>([&](int i) { return member(a, i) + member(b, i); });
}

// Over groups of `lanes` neighbouring lanes of a warp, those whose numbers agree modulo `least` (both powers of two).
// Their results may differ in the last bit: where one result is needed, take that of one lane.
template <class A>
__device__ inline A combine_in_warp(A a, int lanes, int least) {
    for (int distance = lanes / 2; distance >= least; distance /= 2)
        // rounds: a sum over the lanes of a warp, FP32
        a = A::combine(a, made_of<A>([&](int i) { return __shfl_xor_sync(0xffffffffu, member(a, i), distance); }));
    return a;
}

// Over the threads whose numbers agree modulo `lanes` (a power of two): over the block where lanes is 1. Every thread
// gets the result, the same bits. scratch: FLOATS<A> * THREADS floats of shared memory.
template <class A>
__device__ inline A combine_rows(A a, int lanes, float* scratch) {  // rounds: sums over the warps of a block, FP32
    a = combine_in_warp(a, 32, lanes);
    __syncthreads();  // scratch may still be read from an earlier call
#pragma unroll
    for (int i = 0; i < FLOATS<A>; i++) scratch[i * THREADS + threadIdx.x] = member(a, i);
    __syncthreads();
    A total;
    for (int thread = threadIdx.x % lanes; thread < THREADS; thread += max(lanes, 32))
        total = A::combine(total, made_of<A>([&](int i) { return scratch[i * THREADS + thread]; }));
    return total;
}

// Over `lanes` neighbouring threads: a power of two up to 32, or the block. Each gets the result, the same bits.
template <class A>
__device__ inline A combine_lanes(A a, int lanes, float* scratch) {  // rounds: sums over some lanes, FP32
    if (lanes > 32) return combine_rows(a, 1, scratch);  // rounds: sums over a block, FP32
    a = combine_in_warp(a, lanes, 1);
    int first = threadIdx.x % 32 / lanes * lanes;
    return made_of<A>([&](int i) { return __shfl_sync(0xffffffffu, member(a, i), first); });
}

// -------------------------------------------------------------------------------------------------------- plain sums

// Sums of V channels (one, of rows).
template <int V>
struct Total {
    float sum[V] = {};
    __device__ static Total combine(const Total& a, const Total& b) { return plus(a, b); }
};

template <int V>
__device__ inline Total<V> total(const T* x, const Walk& walk) {
    return add_lines<Total<V>>(walk, {x}, [](Total<V>& few, const Line& line, const Pack& xs) {
        each(line, [&](int k) { few.sum[k % V] += widen(xs.at[k]); });
    });
}
