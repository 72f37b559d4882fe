// Tickets: arrival counters in global memory. Blocks that share a tile count their arrivals, and the block that arrives
// last adds up the partial sums. No block ever waits for another.
#pragma once
#include "base/device.cuh"

// Counters that one launch sets to zero for the next launch of the call. count may be 0.
struct Tickets {
    int* first;
    int count;

    // Sets all counters to zero. All threads of the grid take part (a grid-stride loop).
    DEVICE void clear() const {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) first[i] = 0;
    }
};

// Returns, to every thread of the block, whether this block is the last of `all` blocks to arrive at this ticket. If it
// is, the writes of all other blocks are visible to it.
DEVICE bool last_to_arrive(int* ticket, int all) {
    __syncthreads(); // all threads of this block have written
    bool last = false;
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(ticket, 1) == all - 1;
        __threadfence();
    }
    return __syncthreads_or(last);
}
