// Keep the GPU busy for some `rounds`, each waiting for the one before it. What the host asks for in the meantime queues
// up behind, and then runs without waiting for the host: its own time can be measured. (A compiler makes one of several
// rounds of x * a + b; of x * x + b it cannot.)
extern "C" __global__ void spin(unsigned int* out, int rounds) {
    unsigned int x = threadIdx.x;
    for (int i = 0; i < rounds; i++) x = x * x + 1013904223u;  // any value that cannot be known beforehand
    if (x == 1u) *out = x;
}
