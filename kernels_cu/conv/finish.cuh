// The epilogue's last step, what becomes of a sum with its bias before it is rounded: y = activation(sum + residual),
// in the accumulator's type.
//
// The activation is one formula for all that there are: v = v < 0 ? v * slope : v, then no less than `low`, then no
// more than `high`. A NaN stays one, since it compares as false. Kernels test `any` once for a group of stores: nothing
// of this costs plain calls more than a branch that all threads take alike.
#pragma once
#include "base/vectors.cuh"

struct Finish {
    const void* residual;                // its elements lie as far from here as those of y from y; or null
    unsigned long long slope, low, high; // bits of numbers of the accumulator's type
    int acts;                            // whether there is an activation

    DEVICE bool any() const { return residual != nullptr || acts != 0; }
};

template <class Acc> DEVICE Acc number(unsigned long long bits);
template <> DEVICE float number<float>(unsigned long long bits) { return __uint_as_float(unsigned(bits)); }
template <> DEVICE double number<double>(unsigned long long bits) {
    return __longlong_as_double(static_cast<long long>(bits));
}

template <class Acc> DEVICE Acc activated(const Finish& finish, Acc sum) {
    if (finish.acts == 0) return sum;
    const Acc low = number<Acc>(finish.low), high = number<Acc>(finish.high);
    sum = sum < Acc(0) ? sum * number<Acc>(finish.slope) : sum;
    sum = sum < low ? low : sum;
    return sum > high ? high : sum;
}

// The residual of what `target`, somewhere in y, is to become.
template <class T> DEVICE const T* residual_of(const Finish& finish, const void* y, const T* target) {
    const long long away = reinterpret_cast<const char*>(target) - static_cast<const char*>(y);
    return reinterpret_cast<const T*>(static_cast<const char*>(finish.residual) + away);
}
template <class T, class Acc> DEVICE Acc finished(const Finish& finish, const void* y, Acc sum, const T* target) {
    if (finish.residual != nullptr) sum += widen(*residual_of(finish, y, target));
    return activated(finish, sum);
}

// Finishes neighbours, whose residuals are read at once: they have to lie on a multiple of their size.
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

// Whether vectors of y, and of the residual if there is one, lie on multiples of so many bytes, if y's strides let
// them.
DEVICE bool vectors_aligned(const Finish& finish, const void* y, int bytes) {
    return (reinterpret_cast<unsigned long long>(y) | reinterpret_cast<unsigned long long>(finish.residual)) % bytes
        == 0;
}
