// Connectionist temporal classification (ctc.py). States b_0, k_1, b_1, ..., k_S, b_S: labels k_i and blanks around them.
// In `alpha`, of each frame and sequence, are ln of b_0 ... b_S and of k_0 ... k_S (there is no k_0: it is IMPOSSIBLE);
// behind the sequences come their mirror images, with frames and labels in reverse.

constexpr float IMPOSSIBLE = -1e30f;  // ln 0; ctc.py has it, too
constexpr int MOST_THREADS = 256;     // and this

__device__ inline float at_least_impossible(float x) { return x < IMPOSSIBLE ? IMPOSSIBLE : x; }  // nan stays

// ln(e^a + e^b)
__device__ inline float add_logs(float a, float b) {
    float most = Max::combine(a, b);
    return most + log1pf(expf(Min::combine(a, b) - most));
}

struct Total {
    float sum = 0.0f;
    __device__ static Total combine(const Total& a, const Total& b) { return {a.sum + b.sum}; }
};

// What both kernels are given: log_probs at [t step + n batch + c spread], targets (sequences, longest), lengths.
struct Problem {
    const T* log_probs;
    long long step, batch, spread;
    const long long *targets, *input_lengths, *target_lengths;
    int frames, sequences, classes, longest, blank;

    __device__ int length(int n) const {  // that it is in range is checked later
        return static_cast<int>(min(max(target_lengths[n], 0LL), static_cast<long long>(longest)));
    }
    // The class of label k_(i + 1); -1 beyond the end of the target.
    __device__ int label(int n, int i) const {
        if (i >= length(n)) return -1;
        long long c = targets[static_cast<long long>(n) * longest + i];
        return static_cast<int>(min(max(c, 0LL), classes - 1LL));
    }
    __device__ float y(int t, int n, int c) const {
        return at_least_impossible(widen(log_probs[t * step + n * batch + c * spread]));
    }
    __device__ float y_blank(int t, int n) const { return t < input_lengths[n] ? y(t, n, blank) : 0.0f; }
    __device__ float y_label(int t, int n, int c) const {
        return c >= 0 && t < input_lengths[n] ? y(t, n, c) : IMPOSSIBLE;
    }
};

#define PROBLEM                                                                                                       \
    const T *log_probs, long long step, long long batch, long long spread, const long long *targets,                  \
        const long long *input_lengths, const long long *target_lengths, int frames, int sequences, int classes,      \
        int longest, int blank
#define GIVEN                                                                                                         \
    {log_probs, step, batch, spread, targets, input_lengths, target_lengths, frames, sequences, classes, longest, blank}

// alpha, (block, frame, blank or label, i), of every sequence and, with twice as many blocks, of their mirror images; and
// the loss of the sequences. A block goes through the frames of one of them, its threads share the states. Those of a
// frame are written as they come, relative to the largest of the frame before.
//
// Dynamic shared memory: b and k of the last and of this frame, and the labels.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) ctc_forward(PROBLEM, float* alpha, float* loss) {
    Problem p GIVEN;
    DYNAMIC_SHARED(room);
    __shared__ float scratch[32];
    int states = longest + 1, n = blockIdx.x % sequences, length = p.length(n);
    bool mirrored = blockIdx.x >= sequences;
    float *before = reinterpret_cast<float*>(room), *now = before + 2 * states;
    int* labels = reinterpret_cast<int*>(now + 2 * states);
    for (int i = threadIdx.x; i < states; i += blockDim.x) {
        before[i] = i == (mirrored ? longest - length : 0) ? 0.0f : IMPOSSIBLE;
        before[states + i] = now[states + i] = IMPOSSIBLE;
        if (i < longest) labels[i] = p.label(n, mirrored ? longest - 1 - i : i);
    }
    __syncthreads();
    InBlocks<Total> total;
    float top = 0.0f;  // the largest of the last frame
    for (int t = 0; t < frames; t++) {
        int frame = mirrored ? frames - 1 - t : t;
        float y_blank = p.y_blank(frame, n), largest = Max::none;
        for (int i = threadIdx.x; i < states; i += blockDim.x) {
            float b = before[i] - top, reached = add_logs(b, before[states + i] - top);
            now[i] = reached + y_blank;
            largest = Max::combine(largest, now[i]);
            if (i < longest) {
                float from = i > 0 && labels[i] == labels[i - 1] ? b : reached;
                float k = add_logs(before[states + i + 1] - top, from) + p.y_label(frame, n, labels[i]);
                now[states + i + 1] = k;
                largest = Max::combine(largest, k);
            }
        }
        top = block_reduce<Max>(largest, scratch);  // its barriers are those between the frames, too
        total.add({top});
        if (alpha) {
            float* to = alpha + (static_cast<long long>(blockIdx.x) * frames + t) * 2 * states;
            for (int i = threadIdx.x; i < 2 * states; i += blockDim.x) to[i] = now[i];
        }
        float* free = before;
        before = now;
        now = free;
    }
    if (threadIdx.x == 0 && !mirrored)
        loss[n] = -(add_logs(before[length] - top, before[states + length] - top) + total.total().sum);
}

// dx (frames, sequences, classes), a block for each frame of each sequence. alpha is at
// [t alpha_step + (0 for b, 1 for k) alpha_part + i alpha_state + sequence alpha_batch]; dl: (sequences,).
//
// Dynamic shared memory: the shares of b_0 ... b_S and of k_1 ... k_S, and the labels.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    ctc_backward(PROBLEM, const float* alpha, long long alpha_step, long long alpha_part, long long alpha_state,
                 long long alpha_batch, const float* dl, T* dx) {
    Problem p GIVEN;
    DYNAMIC_SHARED(room);
    __shared__ float scratch[32];
    int n = blockIdx.x % sequences, t = blockIdx.x / sequences, states = longest + 1;
    float *of_blanks = reinterpret_cast<float*>(room), *of_labels = of_blanks + states;
    int* labels = reinterpret_cast<int*>(of_labels + longest);
    T* to = dx + static_cast<long long>(blockIdx.x) * classes;
    if (t >= input_lengths[n]) {
        for (int c = threadIdx.x; c < classes; c += blockDim.x) store(to + c, 0.0f);
        return;
    }
    const float* a = alpha + t * alpha_step + n * alpha_batch;
    const float* b = alpha + (frames - 1 - t) * alpha_step + (n + sequences) * alpha_batch;
    float y_blank = p.y_blank(t, n), largest = Max::none;
    for (int i = threadIdx.x; i < states; i += blockDim.x) {
        of_blanks[i] = a[i * alpha_state] + b[(longest - i) * alpha_state] - y_blank;
        largest = Max::combine(largest, of_blanks[i]);
        if (i < longest) {
            labels[i] = p.label(n, i);
            of_labels[i] = a[alpha_part + (i + 1) * alpha_state] + b[alpha_part + (longest - i) * alpha_state] -
                           p.y_label(t, n, labels[i]);
            largest = Max::combine(largest, of_labels[i]);
        }
    }
    largest = block_reduce<Max>(largest, scratch);
    float blanks = 0.0f, others = 0.0f;
    for (int i = threadIdx.x; i < states; i += blockDim.x) {
        blanks += expf(of_blanks[i] - largest);
        if (i < longest) others += of_labels[i] = expf(of_labels[i] - largest);
    }
    blanks = block_reduce<Sum>(blanks, scratch);
    others = block_reduce<Sum>(others, scratch);
    float factor = -dl[n] / (blanks + others);
    for (int c = threadIdx.x; c < classes; c += blockDim.x) store(to + c, (c == blank ? blanks : 0.0f) * factor);
    __syncthreads();
    for (int i = threadIdx.x; i < longest; i += blockDim.x) {  // the first of equal labels adds up all of them
        bool first = labels[i] >= 0;
        for (int j = 0; j < i && first; j++) first = labels[j] != labels[i];
        if (!first) continue;
        float share = 0.0f;
        for (int j = i; j < longest; j++)
            if (labels[j] == labels[i]) share += of_labels[j];
        store(to + labels[i], share * factor);
    }
}
