// Copies of many arrays in one launch (tables.py): block b copies the pair in row b of `pairs`, (from, to, number of
// bytes), 2 bytes at a time. Nothing is copied where `wanted` is given and false.
extern "C" __global__ void copy_all(const unsigned long long* pairs, const bool* wanted) {
    if (wanted && !*wanted) return;
    const unsigned long long* pair = pairs + 3 * blockIdx.x;
    const unsigned short* from = reinterpret_cast<const unsigned short*>(pair[0]);
    unsigned short* to = reinterpret_cast<unsigned short*>(pair[1]);
    for (unsigned long long i = threadIdx.x; i < pair[2] / 2; i += blockDim.x) to[i] = from[i];
}
