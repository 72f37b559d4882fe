// wgmma by one warpgroup. The host lays out both operands byte by byte; the descriptors come from the kernels' headers.
//
// PROBE_KIND: WgmmaHalf, WgmmaBfloat16 or WgmmaTf32; PROBE_COLUMNS: N; PROBE_SLICE: bytes of a row along K;
// PROBE_CROSSWISE: B is N-major ("MN-major") instead of K-major; PROBE_REGISTERS: A is in registers.
#include "base/ptx.cuh"
#include "conv/wgmma/wgmma.cuh"

extern __shared__ __align__(1024) unsigned char memory[];

__device__ __forceinline__ void settle(float (&d)[PROBE_COLUMNS / 8][4])
{
#pragma unroll
    for (int j = 0; j < PROBE_COLUMNS / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[j][i])::"memory");
}
__device__ __forceinline__ void bring(unsigned char* to, const uint4* from, int bytes)
{
    for (int i = threadIdx.x; i < bytes / 16; i += 128) reinterpret_cast<uint4*>(to)[i] = from[i];
}
// Stores the accumulator fragment as [row][column].
__device__ __forceinline__ void write(float* y, const float (&d)[PROBE_COLUMNS / 8][4])
{
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < PROBE_COLUMNS / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) y[(row + i / 2 * 8) * PROBE_COLUMNS + j * 8 + column + i % 2] = d[j][i];
}
__device__ __forceinline__ void read(const float* c, float (&d)[PROBE_COLUMNS / 8][4])
{
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < PROBE_COLUMNS / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) d[j][i] = c[(row + i / 2 * 8) * PROBE_COLUMNS + j * 8 + column + i % 2];
}

#ifndef PROBE_REGISTERS
// STEPS instructions along K as one wgmma group, as in the kernels.
template <int STEPS> __device__ __forceinline__ void multiply(float (&d)[PROBE_COLUMNS / 8][4], unsigned long long rows, unsigned long long columns)
{
    constexpr int kStep = (PROBE_CROSSWISE ? 16 * 128 : 32) / 16;
    settle(d);
    products_begin();
#pragma unroll
    for (int k = 0; k < STEPS; ++k) PROBE_KIND::multiply<PROBE_CROSSWISE>(d, rows + k * 2, columns + k * kStep);
    products_commit();
    products_wait<0>();
    settle(d);
}
// One block per tile: C + A B over one step of 32 bytes along K, or over a whole slice.
extern "C" __global__ void __launch_bounds__(128) products(const uint4* a, const uint4* b, const float* c, float* y, int steps)
{
    constexpr int kA = 64 * PROBE_SLICE, kB = PROBE_COLUMNS * PROBE_SLICE;
    const int tile = blockIdx.x;
    bring(memory, a + tile * (kA / 16), kA);
    bring(memory + kA, b + tile * (kB / 16), kB);
    float d[PROBE_COLUMNS / 8][4];
    read(c + tile * 64 * PROBE_COLUMNS, d);
    barrier_fence();
    __syncthreads();
    const unsigned at = shared_address(memory);
    const unsigned long long rows = rows_along_k<PROBE_SLICE>(at);
    const unsigned long long columns = PROBE_CROSSWISE ? rows_across_k<64 * PROBE_SLICE>(at + kA) : rows_along_k<PROBE_SLICE>(at + kA);
    if (steps == PROBE_SLICE / 32) multiply<PROBE_SLICE / 32>(d, rows, columns);
    else multiply<1>(d, rows, columns);
    write(y + tile * 64 * PROBE_COLUMNS, d);
}
#else
// The same with A in registers, given as [tile][step][thread].
extern "C" __global__ void __launch_bounds__(128) products_of_rows(const uint4* a, const uint4* b, const float* c, float* y, int steps)
{
    constexpr int kB = PROBE_COLUMNS * PROBE_SLICE;
    const int tile = blockIdx.x;
    bring(memory, b + tile * (kB / 16), kB);
    float d[PROBE_COLUMNS / 8][4];
    read(c + tile * 64 * PROBE_COLUMNS, d);
    barrier_fence();
    __syncthreads();
    const unsigned long long columns = rows_along_k<PROBE_SLICE>(shared_address(memory));
    for (int k = 0; k < steps; ++k) {
        const uint4 v = a[(tile * steps + k) * 128 + threadIdx.x];
        const unsigned rows[4] = {v.x, v.y, v.z, v.w};
        settle(d);
        products_begin();
        PROBE_KIND::multiply_rows<PROBE_COLUMNS>(d, rows, columns + k * 2);
        products_commit();
        products_wait<0>();
        settle(d);
    }
    write(y + tile * 64 * PROBE_COLUMNS, d);
}
#endif
