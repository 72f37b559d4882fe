// Gradient of the weights for groups with few filters, in any layout and rank, as sums in registers
// (weight_grad/problem.cuh). A GEMM tile would be nearly empty there.
//
// Block: FILTERS filters x kColumns columns, over one part of the pixels. Thread: all of these sums, over every
// kThreads-th pixel. Lanes have adjacent pixels, so loads of x and dy are coalesced. At the end, a warp shuffle adds
// the lanes' sums, and shared memory those of the warps. A second launch (passes/add_up.cu) adds the parts.
#include "weight_grad/problem.cuh"

// The kernel; see the top of this file.
template <class T, class Acc, class Index, int NDIM, int FILTERS>
DEVICE void conv_weight_grad_few(const WeightGradParams<Index, NDIM>& p) {
    constexpr int kThreads = 128, kWarps = kThreads / 32, kColumns = 12;
    __shared__ Column<Index, NDIM> table[kColumns];
    __shared__ Acc of_warps[kWarps][FILTERS][kColumns];

    const WeightGradTile<Index> tile = tile_of_block(p);
    const Index filter0 = tile.m_tile * FILTERS, column0 = tile.n_tile * kColumns, first = tile.part * p.each;
    const Index limit = first + p.each < p.pixels ? first + p.each : p.pixels;
    const T* x = static_cast<const T*>(p.x) + tile.group * p.channels * p.x_channel;
    const T* dy = static_cast<const T*>(p.dy) + (tile.group * p.filters + filter0) * p.dy_channel;
    if (threadIdx.x < kColumns) table[threadIdx.x].find(p, column0 + threadIdx.x);
    __syncthreads();

    Acc sums[FILTERS][kColumns];
    clear(sums);
#pragma unroll 1
    for (Index pixel = first + threadIdx.x; pixel < limit; pixel += kThreads) {
        Output<Index, NDIM> output;
        output.find(p, pixel, limit);
        Acc of_dy[FILTERS];
#pragma unroll
        for (int i = 0; i < FILTERS; ++i)
            of_dy[i] = filter0 + i < p.filters ? widen(dy[output.in_dy + i * p.dy_channel]) : Acc(0);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
            if (!table[j].meets(p, output)) continue;
            const Acc of_x = widen(x[output.in_x + table[j].in_x]);
#pragma unroll
            for (int i = 0; i < FILTERS; ++i) sums[i][j] = multiply_add(of_dy[i], of_x, sums[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < FILTERS; ++i)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2) sums[i][j] += shuffle_down(sums[i][j], distance);
            if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][i][j] = sums[i][j];
        }
    __syncthreads();
    static_assert(FILTERS * kColumns <= kThreads); // one sum per thread
    const int i = threadIdx.x / kColumns, j = threadIdx.x % kColumns;
    if (i >= FILTERS || filter0 + i >= p.filters || column0 + j >= p.columns) return;
    Acc sum = of_warps[0][i][j];
    for (int warp = 1; warp < kWarps; ++warp) sum += of_warps[warp][i][j];
    const Index row = tile.group * p.filters + filter0 + i;
    static_cast<Acc*>(p.sums)[tile.part * p.all + row * p.columns + column0 + j] = sum;
}
