// Keep the GPU busy for about 2 `rounds` nanoseconds, each round waiting for the one before it. What the host asks for
// in the meantime queues up behind, and then runs without waiting for the host: its own time can be measured.
extern "C" __global__ void spin(unsigned int* out, int rounds) {
    unsigned int x = threadIdx.x;
    for (int i = 0; i < rounds; i++) x = x * 1664525u + 1013904223u;  // any value that cannot be known beforehand
    if (x == 1u) *out = x;
}
