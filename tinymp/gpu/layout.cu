// y = x transposed, a matrix of rows x columns, in the order of its memory (layout.py: images are so laid out anew).
//
// A block moves a tile through shared memory: it is read along x's rows and written along y's, 64 neighbours by two
// warps, so that both sides are whole lines of memory. The rows of the tile are one word longer than they need be: the
// threads that read a column of it meet 32 different banks.

constexpr int TILE = 64, LINES = 4;  // a block has TILE x LINES threads

extern "C" __global__ void __launch_bounds__(256) transpose_matrix(const T* x, T* y, int rows, int columns) {
    __shared__ T tile[TILE][TILE + 4 / sizeof(T)];
    int across = (columns + TILE - 1) / TILE, i = threadIdx.x % TILE, line = threadIdx.x / TILE;
    int top = blockIdx.x / across * TILE, left = blockIdx.x % across * TILE;
    for (int j = line; j < TILE; j += LINES)
        if (top + j < rows && left + i < columns)
            tile[j][i] = x[static_cast<long long>(top + j) * columns + left + i];
    __syncthreads();
    for (int j = line; j < TILE; j += LINES)
        if (left + j < columns && top + i < rows)
            y[static_cast<long long>(left + j) * rows + top + i] = tile[i][j];
}
