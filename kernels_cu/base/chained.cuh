// What a kernel begins with that may be launched to overlap the one before it; all threads come here first.
#pragma once
#include "base/device.cuh"

// Waits until the kernels before have ended, and what they wrote is there. Only then lets the next one start: nothing
// but that one's own wait stands between the two, and with this order it need not know of any before.
DEVICE void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
