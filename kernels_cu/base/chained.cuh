// First statement of a kernel that supports programmatic dependent launch (PDL), so that its launch overhead overlaps
// the previous kernel. Every thread calls `follow` before it touches memory. On devices before sm_90 it does nothing.
#pragma once
#include "base/device.cuh"

// Waits until all preceding kernels have finished and their writes are visible, then allows the next kernel to launch.
// The order matters: when the next kernel passes its own wait, every earlier kernel of the stream has finished too.
DEVICE void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
