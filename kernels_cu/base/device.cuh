// What every function that kernels call is: inlined into them.
#pragma once
#define DEVICE __device__ __forceinline__
