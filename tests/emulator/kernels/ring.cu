// The ring of conv/wgmma in a minimal kernel: a warp that loads RING_ITEMS rows of 32 floats by TMA in order, and two
// warps that read each row. Macros may replace single synchronisations, to plant faults.
#include "conv/wgmma/ring.cuh"

#ifndef RING_READERS
#define RING_READERS 2
#endif
#ifndef RING_BYTES
#define RING_BYTES 128
#endif
#ifndef WAIT_EMPTY
#define WAIT_EMPTY ring.wait_empty()
#endif
#ifndef WAIT_FULL
#define WAIT_FULL ring.wait_full()
#endif
#ifndef READS
#define READS sum += row[lane ^ item];
#endif
#ifndef RELEASES
#define RELEASES proxy_fence(); __syncwarp(); if (lane == 0) barrier_arrive(ring.empty());
#endif

extern "C" __global__ void __launch_bounds__(96) passes_rows(const __grid_constant__ CUtensorMap map, float* y)
{
    using Stages = FixedStages<RING_STAGES, 128>;
    __shared__ __align__(1024) unsigned char shared[Stages::kBytes + Stages::kBarrierBytes];
    Ring<Stages> ring(shared, shared + Stages::kBytes);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) ring.init(RING_READERS);
    __syncthreads();
    if (threadIdx.x == 64)
        for (int item = 0; item < RING_ITEMS; ++item, ring.next()) {
            WAIT_EMPTY;
            barrier_expect(ring.full(), RING_BYTES);
            copy_box(ring.address(), map, ring.full(), 0, item, 0, 0);
        }
    if (warp == 2) return;
    float sum = 0;
    for (int item = 0; item < RING_ITEMS; ++item, ring.next()) {
        WAIT_FULL;
        const float* row = reinterpret_cast<const float*>(shared + (ring.address() - ring.stages));
        READS
        RELEASES
    }
    y[threadIdx.x] = sum;
}
