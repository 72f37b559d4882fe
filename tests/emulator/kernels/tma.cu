// A tile to global memory and back through the TMA engine, with what may be forgotten left out on demand.
#include "hopper.cuh"

extern "C" __global__ void stores_a_tile(const __grid_constant__ TensorMap map)
{
    __shared__ __align__(128) float tile[32 * 32];
    for (int i = threadIdx.x; i < 1024; i += 128) tile[i] = i;
#ifndef NO_FENCE
    fence_proxy_async();
#endif
#ifndef NO_BARRIER
    __syncthreads();
#endif
    if (threadIdx.x == 0) tma_store_2d(&map, smem_addr(tile), 0, 0);
}

extern "C" __global__ void loads_a_tile(const __grid_constant__ TensorMap map, float* y)
{
    __shared__ __align__(128) float tile[32 * 32];
    __shared__ __align__(8) unsigned long long bar;
    if (threadIdx.x == 0) {
        mbarrier_init(smem_addr(&bar), 1);
#ifndef NO_FENCE
        fence_mbarrier_init();
#endif
        mbarrier_expect_tx(smem_addr(&bar), 4096);
        tma_load_2d(smem_addr(tile), &map, smem_addr(&bar), 0, 0);
    }
    __syncthreads();
#ifndef NO_WAIT
    mbarrier_wait(smem_addr(&bar), 0);
#endif
    for (int i = threadIdx.x; i < 1024; i += 128) y[i] = tile[i];
}
