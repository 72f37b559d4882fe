// Last step of the epilogue, in the accumulator's type and before the one rounding: y = activation(sum + residual),
// where the sum includes the bias.
//
// One formula covers relu, leaky relu and clip: v = v < 0 ? v * slope : v, then max(v, low), then min(v, high). NaN
// passes through, since all its comparisons are false. Kernels test `any()` once per group of stores, so plain calls
// pay only for a uniform branch.
#pragma once
#include "base/vectors.cuh"

// Residual and activation of a call; one of these is part of each convolution's parameters.
struct Finish {
    const void* residual;                // has the strides of y, see residual_of; or null
    unsigned long long slope, low, high; // bit patterns of numbers of the accumulator's type
    int acts;                            // whether there is an activation

    DEVICE bool any() const { return residual != nullptr || acts != 0; }
};

// Reinterprets a bit pattern as a number of the accumulator's type.
template <class Acc> DEVICE Acc number(unsigned long long bits);
template <> DEVICE float number<float>(unsigned long long bits) { return __uint_as_float(unsigned(bits)); }
template <> DEVICE double number<double>(unsigned long long bits) {
    return __longlong_as_double(static_cast<long long>(bits));
}

// Applies the activation, if there is one.
template <class Acc> DEVICE Acc activated(const Finish& finish, Acc sum) {
    if (finish.acts == 0) return sum;
    const Acc low = number<Acc>(finish.low), high = number<Acc>(finish.high);
    sum = sum < Acc(0) ? sum * number<Acc>(finish.slope) : sum;
    sum = sum < low ? low : sum;
    return sum > high ? high : sum;
}

// The residual that belongs to `target`, an element of y: it lies as many bytes after finish.residual as target after
// y.
template <class T> DEVICE const T* residual_of(const Finish& finish, const void* y, const T* target) {
    const long long away = reinterpret_cast<const char*>(target) - static_cast<const char*>(y);
    return reinterpret_cast<const T*>(static_cast<const char*>(finish.residual) + away);
}
template <class T, class Acc> DEVICE Acc finished(const Finish& finish, const void* y, Acc sum, const T* target) {
    if (finish.residual != nullptr) sum += widen(*residual_of(finish, y, target));
    return activated(finish, sum);
}

// Finishes COUNT adjacent outputs. Their residuals are loaded as one vector, which must be aligned to its size.
template <class T, class Acc, int COUNT>
DEVICE void finish_all(const Finish& finish, const void* y, Acc (&sums)[COUNT], const T* target) {
    if (finish.residual != nullptr) {
        const auto elements = *reinterpret_cast<const Elements<T, COUNT>*>(residual_of(finish, y, target));
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sums[i] += widen(elements.values[i]);
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = activated(finish, sums[i]);
}

// Whether y, and the residual if there is one, begin at a multiple of `bytes`. Vector stores also need suitable
// strides.
DEVICE bool vectors_aligned(const Finish& finish, const void* y, int bytes) {
    return (reinterpret_cast<unsigned long long>(y) | reinterpret_cast<unsigned long long>(finish.residual)) % bytes
        == 0;
}
