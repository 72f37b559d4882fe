// Element types: conversion to the accumulator's type (widen), rounding back from it (narrow), and helpers on
// accumulators. Accumulators are float for float16, bfloat16 and float32, and double for float64.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "base/device.cuh"

DEVICE float widen(__half value) { return __half2float(value); }
DEVICE float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
DEVICE float widen(float value) { return value; }
DEVICE double widen(double value) { return value; }

// Rounds to nearest, ties to even. Overflow gives infinity.
template <class T, class Acc> DEVICE T narrow(Acc value) { return T(value); }
template <> DEVICE __half narrow<__half, float>(float value) { return __float2half_rn(value); }
template <> DEVICE __nv_bfloat16 narrow<__nv_bfloat16, float>(float value) { return __float2bfloat16_rn(value); }

// x * 0 == 0 holds for every finite x, and for no infinity or NaN.
template <class Acc> DEVICE bool is_finite(Acc value) { return value * Acc(0) == Acc(0); }

// Sets sums to zero: one number, or an array of any rank.
DEVICE void clear(float& sum) { sum = 0; }
DEVICE void clear(double& sum) { sum = 0; }
template <class Sums, int COUNT> DEVICE void clear(Sums (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) clear(sums[i]);
}

DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }

// Returns a finite value unchanged (even -0), and NaN for infinities and NaN.
template <class Acc> DEVICE Acc nan_unless_finite(Acc value) { return multiply_add(value, Acc(0), value); }

// A complex number, stored as CuPy and NumPy store it: real part first.
template <class Acc> struct alignas(2 * sizeof(Acc)) Complex {
    Acc re, im;

    Complex() = default;
    DEVICE Complex(Acc re, Acc im = 0) : re(re), im(im) {}
    DEVICE Complex& operator+=(const Complex& other) {
        re += other.re;
        im += other.im;
        return *this;
    }
};
template <class Acc> DEVICE Complex<Acc> widen(const Complex<Acc>& value) { return value; }

// Returns the value of the lane `distance` lanes further on. All lanes of the warp must take part.
template <class Acc> DEVICE Acc shuffle_down(Acc value, int distance) {
    return __shfl_down_sync(0xffffffffu, value, distance);
}
template <class Acc> DEVICE Complex<Acc> shuffle_down(const Complex<Acc>& value, int distance) {
    return {shuffle_down(value.re, distance), shuffle_down(value.im, distance)};
}
