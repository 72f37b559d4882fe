// Tiles of 32 x 32 floats, stored to and loaded from global memory by TMA. Macros leave out fences, barriers and waits.
#include "hopper.cuh"

#ifndef WAITS
#define WAITS 2
#endif

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

// Two tiles in turn, from the same shared memory; a store is waited for before the next tile is written.
extern "C" __global__ void stores_two_tiles(const __grid_constant__ TensorMap map)
{
    __shared__ __align__(128) float tile[32 * 32];
    for (int number = 0; number < 2; ++number) {
        for (int i = threadIdx.x; i < 1024; i += 128) tile[i] = 1024 * number + i;
        fence_proxy_async();
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                         :: "l"(&map), "r"(0), "r"(32 * number), "r"(smem_addr(tile)) : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            if (number < WAITS) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        }
        __syncthreads();
    }
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
