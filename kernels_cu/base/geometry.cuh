// Coordinates: divisions by numbers known on the host, and axes passed by value.
#pragma once
#include "base/device.cuh"

// Quotient and remainder by a divisor that the host prepared (gpuconv/cuda/build/params.py).
template <class Index> struct Divider;

// Numbers in [0, 2^31): one high product, one sum, one shift (Granlund and Montgomery, PLDI 1994, figure 4.1).
template <> struct Divider<int> {
    unsigned divisor, multiplier, shift;

    DEVICE int quotient(int number) const {
        return int((__umulhi(unsigned(number), multiplier) + unsigned(number)) >> shift);
    }
    DEVICE int split(int number, int& remainder) const {
        const int result = quotient(number);
        remainder = number - result * int(divisor);
        return result;
    }
};

template <> struct Divider<long long> {
    long long divisor;

    DEVICE long long quotient(long long number) const { return number / divisor; }
    DEVICE long long split(long long number, long long& remainder) const {
        const long long result = number / divisor;
        remainder = number - result * divisor;
        return result;
    }
};

// Splits a row-major number into coordinates; what is left above the outermost axis is returned.
template <int NDIM, class Index>
DEVICE Index unravel(Index number, const Divider<Index> (&extents)[NDIM], Index (&coordinates)[NDIM]) {
#pragma unroll
    for (int axis = NDIM - 1; axis >= 0; --axis) number = extents[axis].split(number, coordinates[axis]);
    return number;
}

// A sum to which the products of coordinates and strides are added, axis by axis.
template <int NDIM, class Index>
DEVICE Index dot(const Index (&coordinates)[NDIM], const Index (&strides)[NDIM], Index sum = 0) {
#pragma unroll
    for (int axis = 0; axis < NDIM; ++axis) sum += coordinates[axis] * strides[axis];
    return sum;
}

// Whether 0 <= coordinate < extent, in one comparison.
DEVICE bool inside(int coordinate, int extent) { return unsigned(coordinate) < unsigned(extent); }
DEVICE bool inside(long long coordinate, long long extent) {
    return static_cast<unsigned long long>(coordinate) < static_cast<unsigned long long>(extent);
}
