// The sums of exponentials along a row, without overflow: of softmax and of cross entropy.

// The largest x, and the sum of exp(x - max). While max is -infinity, where that would be nan, the sum is 0.
struct Exponentials {
    float max = Max::none, sum = 0.0f;

    __device__ static Exponentials combine(const Exponentials& a, const Exponentials& b) {
        Exponentials c;
        bool first = a.max >= b.max;
        float larger = first ? a.max : b.max, smaller = first ? b.max : a.max;
        float factor = larger == smaller ? 1.0f : expf(smaller - larger);
        c.max = Max::combine(a.max, b.max);
        c.sum = (first ? a.sum : b.sum) + (first ? b.sum : a.sum) * factor;
        return c;
    }

    // Of a batch of lines; e becomes exp(x - max).
    __device__ static Exponentials of(const Line (&line)[BATCH], const Pack (&x)[BATCH], float (&e)[BATCH][PACK]) {
        Exponentials c;
#pragma unroll
        for (int u = 0; u < BATCH; u++)
#pragma unroll
            for (int k = 0; k < PACK; k++) {
                e[u][k] = line[u].has(k) ? widen(x[u].at[k]) : Max::none;  // whose exponential is 0
                c.max = Max::combine(c.max, e[u][k]);
            }
        float shift = c.max == Max::none ? 0.0f : c.max;
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            if (!line[u].empty())
#pragma unroll
                for (int k = 0; k < PACK; k++) c.sum += e[u][k] = expf(e[u][k] - shift);
        return c;
    }

    // As the definition has it: nan where all x are -infinity.
    __device__ void finish() { sum *= expf(max - max); }
};

// Exponentials of the thread's walk. Where that is one batch, it is `complete` in e and `held`: nothing need be read or
// computed again.
__device__ inline Exponentials exponentials(const T* x, Walk walk, float (&e)[BATCH][PACK], Line (&held)[BATCH],
                                            bool& complete) {
    InBlocks<Exponentials> all;  // rounds: exponentials in blocks, FP32
    int batches = 0;
    each_batch(walk, {x}, [&](const Line (&lines)[BATCH], const Pack (&xs)[1][BATCH]) {
#pragma unroll
        for (int u = 0; u < BATCH; u++) held[u] = lines[u];
        all.add(Exponentials::of(lines, xs[0], e));
        batches++;
    });
    complete = batches <= 1;
    return all.total();
}
