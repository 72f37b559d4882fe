// Rows of 32 numbers, copied through their array's tensor map, or by plain loads.
#include "hopper.cuh"

using CUtensorMap = TensorMap;

struct MapCopy {
    CUtensorMap x_map;
    float* y;
    int rows;
};

// A block copies 32 rows.
__device__ __forceinline__ void copy_by_map(const MapCopy& p)
{
    __shared__ __align__(128) float tile[32 * 32];
    __shared__ __align__(8) unsigned long long arrived;
    const int first = blockIdx.x * 32;
    if (threadIdx.x == 0) {
        mbarrier_init(smem_addr(&arrived), 1);
        fence_mbarrier_init();
        mbarrier_expect_tx(smem_addr(&arrived), sizeof tile);
        tma_load_2d(smem_addr(tile), &p.x_map, smem_addr(&arrived), 0, first);
    }
    __syncthreads();
    mbarrier_wait(smem_addr(&arrived), 0);
    for (int i = threadIdx.x; i < 1024 && first + i / 32 < p.rows; i += blockDim.x) p.y[first * 32 + i] = tile[i];
}

struct RowCopy {
    const float* x;
    float* y;
    int rows, pitch;
};

__device__ __forceinline__ void copy_by_row(const RowCopy& p)
{
    for (int row = blockIdx.x; row < p.rows; row += gridDim.x) p.y[row * 32 + threadIdx.x] = p.x[row * p.pitch + threadIdx.x];
}
