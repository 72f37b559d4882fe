// DEVICE: the qualifier of every device function here. All of them are inlined into the kernel.
#pragma once
#define DEVICE __device__ __forceinline__
