// Small kernels with one fault each; a macro such as SYNCHRONISED mends the fault.
#include "ptx.cuh"

extern "C" __global__ void reads_unwritten_shared(float* y)
{
    __shared__ float values[64];
    if (threadIdx.x < 63) values[threadIdx.x] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = values[63 - threadIdx.x];
}

extern "C" __global__ void stores_misaligned(float* y) { *(float4*)(y + threadIdx.x) = make_float4(1, 2, 3, 4); }

extern "C" __global__ void waits_in_divergent_code(float* y)
{
    if (threadIdx.x < 16) {
        y[threadIdx.x] = 1;
        __syncthreads();
        y[threadIdx.x] = 3;
    } else {
        y[threadIdx.x] = 2;
        __syncthreads();
        y[threadIdx.x] = 4;
    }
}

extern "C" __global__ void exchanges_in_a_warp(int* y)
{
    __shared__ int values[32];
    values[threadIdx.x] = threadIdx.x;
#ifdef SYNCHRONISED
    __syncwarp();
#endif
    y[threadIdx.x] = values[threadIdx.x ^ 1];
}

extern "C" __global__ void exchanges_in_a_block(int* y)
{
    __shared__ int values[64];
    for (int round = 0; round < 2; ++round) {
        values[threadIdx.x] = threadIdx.x + round;
        __syncthreads();
        y[threadIdx.x] = values[63 - threadIdx.x];
#ifdef SYNCHRONISED
        __syncthreads();
#endif
    }
}

extern "C" __global__ void overruns_a_variable(float* y)
{
    __shared__ float a[16], b[16];
    a[threadIdx.x + 1] = 1;
    __syncthreads();
    b[threadIdx.x] = 2;
    __syncthreads();
    y[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x];
}

extern "C" __global__ void blocks_write_the_same(float* y) { y[threadIdx.x] = blockIdx.x; }

extern "C" __global__ void exchanges_in_global_memory(int* y)
{
    y[threadIdx.x] = threadIdx.x;
#ifdef SYNCHRONISED
    __syncwarp();
#endif
    y[32 + threadIdx.x] = y[31 - threadIdx.x];
}

extern "C" __global__ void blocks_add_atomically(float* y) { atomicAdd(&y[threadIdx.x], 1.f); }

extern "C" __global__ void shuffles_with_absent_lanes(int* y)
{
    int value = threadIdx.x;
    if (threadIdx.x < 20) value = __shfl_down_sync(0xffffffffu, value, 1);
    y[threadIdx.x] = value;
}

extern "C" __global__ void shuffles_from_an_absent_lane(int* y)
{
    if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(0xffffu, int(threadIdx.x), 20);
}

extern "C" __global__ void waits_for_nobody(int* y)
{
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");
    y[threadIdx.x] = 1;
}

extern "C" __global__ void never_ends(int* y)
{
    for (volatile int i = 0; i >= 0; i = 0) y[0] = i;
}

extern "C" __global__ void uses_dynamic_shared(float* y)
{
    extern __shared__ float values[];
    values[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = values[threadIdx.x];
}

extern "C" __global__ void copies(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }

extern "C" __global__ void writes_its_input(float* x) { x[threadIdx.x] = 1; }

extern "C" __global__ void copies_asynchronously(const float* x, float* y)
{
    __shared__ __align__(16) float values[64];
    cp_async16(smem_addr(values + 4 * threadIdx.x), x + 4 * threadIdx.x, 16);
    cp_async_commit();
#ifdef SYNCHRONISED
    cp_async_wait<0>();
#endif
    __syncthreads();
    for (int i = 0; i < 4; ++i) y[4 * threadIdx.x + i] = values[(4 * threadIdx.x + i + 32) % 64];
}

extern "C" __global__ void leaves_copies_in_flight(const float* x)
{
    __shared__ __align__(16) float values[64];
    cp_async16(smem_addr(values + 4 * threadIdx.x), x + 4 * threadIdx.x, 16);
    cp_async_commit();
}

extern "C" __global__ void traps(int* y)
{
    if (y[threadIdx.x] == 3) __trap();
}

// Split sum: every block writes a part, and the last block to draw a ticket adds all parts. Macros replace single
// steps.
#ifndef PUBLISHES
#define PUBLISHES __threadfence()
#endif
#ifndef LEARNS
#define LEARNS __threadfence()
#endif
#ifndef ALL_WROTE
#define ALL_WROTE __syncthreads()
#endif
#ifndef ARRIVES
#define ARRIVES(TICKET) atomicAdd(TICKET, 1)
#endif
extern "C" __global__ void last_block_adds(int* ticket, int* parts, int* y)
{
    __shared__ int arrived;
    parts[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
    ALL_WROTE;
    if (threadIdx.x == 0) {
        PUBLISHES;
        arrived = ARRIVES(ticket);
        LEARNS;
    }
    __syncthreads();
    if (arrived != gridDim.x - 1) return;
    int sum = 0;
    for (int block = 0; block < gridDim.x; ++block) sum += parts[block * blockDim.x + (threadIdx.x + 1) % blockDim.x];
    y[threadIdx.x] = sum;
}

// The same with blocks of one warp: a shuffle passes on the ticket, but does not order memory accesses; __syncwarp
// does.
extern "C" __global__ void last_warp_adds(int* ticket, int* parts, int* y)
{
    parts[blockIdx.x * 32 + threadIdx.x] = 1;
    __syncwarp();
    int arrived = 0;
    if (threadIdx.x == 0) {
        PUBLISHES;
        arrived = ARRIVES(ticket);
        LEARNS;
    }
#ifdef SYNCHRONISED
    __syncwarp();
#endif
    if (__shfl_sync(~0u, arrived, 0) != gridDim.x - 1) return;
    int sum = 0;
    for (int block = 0; block < gridDim.x; ++block) sum += parts[block * 32 + threadIdx.x];
    y[threadIdx.x] = sum;
}

extern "C" __global__ void notes_its_turn(int* turn, int* y) { y[blockIdx.x] = atomicAdd(turn, 1); }
