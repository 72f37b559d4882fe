// Tickets: blocks that share work count their arrivals, and the last one knows that it is.
#pragma once
#include "base/device.cuh"

// What a launch sets to zero for the one after it; it may be nothing.
struct Tickets {
    int* first;
    int count;

    // By all threads of all blocks together.
    DEVICE void clear() const {
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) first[i] = 0;
    }
};

// Returns, to all threads of a block, whether all others had arrived before; then what they wrote is known.
DEVICE bool last_to_arrive(int* ticket, int all) {
    __syncthreads(); // all threads have written
    bool last = false;
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(ticket, 1) == all - 1;
        __threadfence();
    }
    return __syncthreads_or(last);
}
