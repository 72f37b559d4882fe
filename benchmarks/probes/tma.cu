// TMA copies, dumped from shared memory; and a ring of stages with mbarriers, filled by TMA or by ordinary stores.
#include "base/ptx.cuh"
#include "conv/wgmma/ring.cuh"

extern __shared__ __align__(1024) unsigned char memory[];

// Runs `copies` TMA copies in sequence, each to the same shared memory; `places` has eight coordinates per copy.
template <class Copy> __device__ __forceinline__ void dump(unsigned* y, const int* places, int copies, int bytes, Copy copy)
{
    unsigned* words = reinterpret_cast<unsigned*>(memory);
    const unsigned target = shared_address(memory), barrier = target + bytes;
    if (threadIdx.x == 0) barrier_init(barrier, 1);
    for (int i = 0; i < copies; ++i) {
        for (int k = threadIdx.x; k < bytes / 4; k += blockDim.x) words[k] = 0xa5a5a5a5;
        barrier_fence();     // orders the stores above before the TMA copy to the same memory
        __syncthreads();
        if (threadIdx.x == 0) {
            barrier_expect(barrier, bytes);
            copy(target, barrier, places + i * 8);
        }
        barrier_wait(barrier, i & 1);
        for (int k = threadIdx.x; k < bytes / 4; k += blockDim.x) y[i * (bytes / 4) + k] = words[k];
        __syncthreads();
    }
}
extern "C" __global__ void boxes_4(const __grid_constant__ CUtensorMap map, unsigned* y, const int* places, int copies, int bytes)
{
    dump(y, places, copies, bytes, [&](unsigned to, unsigned barrier, const int* at) { copy_box(to, map, barrier, at[0], at[1], at[2], at[3]); });
}
extern "C" __global__ void boxes_5(const __grid_constant__ CUtensorMap map, unsigned* y, const int* places, int copies, int bytes)
{
    dump(y, places, copies, bytes, [&](unsigned to, unsigned barrier, const int* at) { copy_box(to, map, barrier, at[0], at[1], at[2], at[3], at[4]); });
}
// Coordinates: channel, spatial position, image, im2col offsets.
template <int AXES> __device__ __forceinline__ void dump_pixels(const CUtensorMap& map, unsigned* y, const int* places, int copies, int bytes)
{
    dump(y, places, copies, bytes, [&](unsigned to, unsigned barrier, const int* numbers) {
        int at[AXES], offset[AXES];
        for (int axis = 0; axis < AXES; ++axis) {
            at[axis] = numbers[1 + axis];
            offset[axis] = numbers[2 + AXES + axis];
        }
        copy_pixels(to, map, barrier, numbers[0], at, numbers[1 + AXES], offset);
    });
}
extern "C" __global__ void pixels_1(const __grid_constant__ CUtensorMap map, unsigned* y, const int* places, int copies, int bytes)
{
    dump_pixels<1>(map, y, places, copies, bytes);
}
extern "C" __global__ void pixels_2(const __grid_constant__ CUtensorMap map, unsigned* y, const int* places, int copies, int bytes)
{
    dump_pixels<2>(map, y, places, copies, bytes);
}
extern "C" __global__ void pixels_3(const __grid_constant__ CUtensorMap map, unsigned* y, const int* places, int copies, int bytes)
{
    dump_pixels<3>(map, y, places, copies, bytes);
}

// ---- rings: warp 8 (or its first thread) fills the stages, warps 0 to 7 read them

constexpr int kStages = 3, kStageWords = 2048;
using Stages = FixedStages<kStages, kStageWords * 4>;

template <class Fill> __device__ __forceinline__ void run_ring(unsigned* y, int rounds, Fill fill)
{
    Ring<Stages> ring(memory, memory + Stages::kBytes);
    if (threadIdx.x == 0) ring.init(8);
    __syncthreads();
    if (threadIdx.x >= 256) {
        for (int round = 0; round < rounds; ++round, ring.next()) fill(ring, round);
        return;
    }
    unsigned sum = 0;
    for (int round = 0; round < rounds; ++round) {
        ring.wait_full();
        for (int k = threadIdx.x; k < kStageWords; k += 256) sum = sum * 5 + load_word(ring.address() + k * 4);
        y[round * 256 + threadIdx.x] = sum;
        proxy_fence();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(ring.empty());
        ring.next();
    }
}
// Two boxes of 32 x 32 words per stage; the first starts at row (round * 3) % 61, the second 5 rows below it.
extern "C" __global__ void __launch_bounds__(288) ring_of_copies(const __grid_constant__ CUtensorMap map, unsigned* y, int rounds)
{
    run_ring(y, rounds, [&](Ring<Stages>& ring, int round) {
        if (threadIdx.x != 256) return;
        ring.wait_empty();
        barrier_expect(ring.full(), kStageWords * 4);
        copy_box(ring.address(), map, ring.full(), 0, round * 3 % 61, 0, 0);
        copy_box(ring.address() + kStageWords * 2, map, ring.full(), 0, round * 3 % 61 + 5, 0, 0);
    });
}
extern "C" __global__ void __launch_bounds__(288) ring_of_stores(const unsigned* x, unsigned* y, int rounds)
{
    run_ring(y, rounds, [&](Ring<Stages>& ring, int round) {
        ring.wait_empty();
        for (int k = threadIdx.x % 32; k < kStageWords; k += 32) store_word(ring.address() + k * 4, x[round * kStageWords + k]);
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(ring.full());
    });
}

// ---- setmaxnreg: one warpgroup releases registers; two others take them and use more than the launch gave them

constexpr int kHeld = 208;

extern "C" __global__ void __launch_bounds__(384, 1) registers(const unsigned* x, unsigned* y, int rounds)
{
    if (threadIdx.x / 128 == 2) {
        give_registers<40>();
        y[blockIdx.x * 384 + threadIdx.x] = x[threadIdx.x] + 1;
        return;
    }
    take_registers<232>();
    unsigned held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = x[(threadIdx.x + i * 7) % 384];
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) held[i] = held[i] * 3 + held[(i + 1) % kHeld];
#pragma unroll
        for (int i = 0; i < kHeld; ++i) keep(held[i]);
    }
    unsigned sum = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) sum = sum * 31 + held[i];
    y[blockIdx.x * 384 + threadIdx.x] = sum;
}
