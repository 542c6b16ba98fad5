// Non-maximum suppression (boxes.py). The boxes are FP32, in the order of their scores. First each box is compared with
// all later ones: bit j % 64 of word j / 64 of its mask says that it would drive out box j. Then one block of threads
// walks through the masks, 64 boxes at a time.

constexpr int WORD = 64;  // boxes.py has these, too
constexpr int KEEPERS = 256;

struct Box {
    float x1, y1, x2, y2;

    __device__ float area() const { return __fmul_rn(x2 - x1, y2 - y1); }
};

// Intersection over union. __fmul_rn: a product that is rounded, as NumPy's, before anything is added to it.
__device__ inline float overlap(const Box& a, const Box& b) {
    float width = min(a.x2, b.x2) - max(a.x1, b.x1), height = min(a.y2, b.y2) - max(a.y1, b.y1);
    float shared = __fmul_rn(max(width, 0.0f), max(height, 0.0f));
    return shared / max(a.area() + b.area() - shared, 0x1p-126f);
}

// masks: (n, words). Block (c, r) compares the 64 boxes of word r with those of word c; where c < r nothing is written
// and nothing read. Boxes of different groups do not meet.
extern "C" __global__ void __launch_bounds__(WORD) nms_masks(const float* boxes, const long long* group,
                                                             unsigned long long* masks, int n, float threshold) {
    if (blockIdx.x < blockIdx.y) return;
    __shared__ Box others[WORD];
    __shared__ long long their_group[WORD];
    int first = blockIdx.x * WORD, count = min(WORD, n - first), words = gridDim.x, t = threadIdx.x;
    if (t < count) {
        const float* from = boxes + 4LL * (first + t);
        others[t] = {from[0], from[1], from[2], from[3]};
        their_group[t] = group[first + t];
    }
    __syncthreads();
    int i = blockIdx.y * WORD + t;
    if (i >= n) return;
    const float* from = boxes + 4LL * i;
    Box box = {from[0], from[1], from[2], from[3]};
    unsigned long long mask = 0;
    for (int j = 0; j < count; j++)
        if (first + j > i && their_group[j] == group[i] && overlap(box, others[j]) > threshold) mask |= 1ULL << j;
    masks[static_cast<long long>(i) * words + blockIdx.x] = mask;
}

// kept[i]: whether no earlier box that is kept drives out box i. One block; dynamic shared memory: a word of 64 boxes
// each, whether they are driven out.
extern "C" __global__ void __launch_bounds__(KEEPERS) nms_keep(const unsigned long long* masks, bool* kept, int n) {
    DYNAMIC_SHARED(room);
    unsigned long long* gone = reinterpret_cast<unsigned long long*>(room);
    __shared__ unsigned long long within[WORD], keep;
    int words = (n + WORD - 1) / WORD, t = threadIdx.x;
    for (int j = t; j < words; j += KEEPERS) gone[j] = 0;
    for (int word = 0; word < words; word++) {
        int count = min(WORD, n - word * WORD);
        const unsigned long long* rows = masks + static_cast<long long>(word) * WORD * words;
        if (t < count) within[t] = rows[static_cast<long long>(t) * words + word];
        __syncthreads();
        if (t == 0) {
            unsigned long long out = gone[word];
            keep = 0;
            for (int i = 0; i < count; i++)
                if (!(out >> i & 1)) {
                    keep |= 1ULL << i;
                    out |= within[i];
                }
        }
        __syncthreads();
        if (t < count) kept[word * WORD + t] = keep >> t & 1;
        for (int j = word + 1 + t; j < words; j += KEEPERS)
            for (int i = 0; i < count; i++)
                if (keep >> i & 1) gone[j] |= rows[static_cast<long long>(i) * words + j];
    }
}
