// Element types: how they are widened to the accumulator's type, and rounded from it once.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }

// Rounds to nearest even; overflow gives infinity.
template <class T, class Acc> __device__ __forceinline__ T narrow(Acc value) { return T(value); }
template <> __device__ __forceinline__ __half narrow<__half, float>(float value) { return __float2half_rn(value); }
template <> __device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16, float>(float value)
{
    return __float2bfloat16_rn(value);
}

// A product with zero is NaN for infinities and NaN alone.
template <class Acc> __device__ __forceinline__ bool is_finite(Acc value) { return value * Acc(0) == Acc(0); }

// Sums, of any array of them, before the first product.
__device__ __forceinline__ void clear(float& sum) { sum = 0; }
__device__ __forceinline__ void clear(double& sum) { sum = 0; }
template <class Sums, int COUNT> __device__ __forceinline__ void clear(Sums (&sums)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; ++i) clear(sums[i]);
}

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }

// A complex number as memory has it.
template <class Acc> struct alignas(2 * sizeof(Acc)) Complex {
    Acc re, im;

    Complex() = default;
    __device__ __forceinline__ Complex(Acc re, Acc im = 0) : re(re), im(im) {}
    __device__ __forceinline__ Complex& operator+=(const Complex& other)
    {
        re += other.re;
        im += other.im;
        return *this;
    }
};
template <class Acc> __device__ __forceinline__ Complex<Acc> widen(const Complex<Acc>& value) { return value; }

// The value of the lane so many lanes further on.
template <class Acc> __device__ __forceinline__ Acc shuffle_down(Acc value, int distance)
{
    return __shfl_down_sync(0xffffffffu, value, distance);
}
template <class Acc> __device__ __forceinline__ Complex<Acc> shuffle_down(const Complex<Acc>& value, int distance)
{
    return {shuffle_down(value.re, distance), shuffle_down(value.im, distance)};
}
