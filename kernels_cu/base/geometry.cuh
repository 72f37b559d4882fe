// Index arithmetic: division by divisors that the host has prepared, conversion between linear indices and coordinates,
// and bounds checks.
#pragma once
#include "base/device.cuh"

// Quotient and remainder by a constant divisor. The host fills in the members (gpuconv/cuda/build/params.py). Members
// of parameters with this type are counts, such as tiles along an axis; `split` peels such a factor off a linear index.
template <class Index> struct Divider;

// Dividends in [0, 2^31): q = (umulhi(n, multiplier) + n) >> shift (Granlund and Montgomery, PLDI 1994, figure 4.1).
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
    // 64-bit indices use the hardware's division; the divisor itself is stored.
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

// Converts a row-major linear index into coordinates, innermost axis last. Returns the quotient that remains above the
// outermost axis, for example the image when `extents` covers the spatial axes only.
template <int NDIM, class Index>
DEVICE Index unravel(Index number, const Divider<Index> (&extents)[NDIM], Index (&coordinates)[NDIM]) {
#pragma unroll
    for (int axis = NDIM - 1; axis >= 0; --axis) number = extents[axis].split(number, coordinates[axis]);
    return number;
}

// Returns sum + the dot product of coordinates and strides: the offset of an element, in elements.
template <int NDIM, class Index>
DEVICE Index dot(const Index (&coordinates)[NDIM], const Index (&strides)[NDIM], Index sum = 0) {
#pragma unroll
    for (int axis = 0; axis < NDIM; ++axis) sum += coordinates[axis] * strides[axis];
    return sum;
}

// Whether 0 <= coordinate < extent, as one unsigned comparison.
DEVICE bool inside(int coordinate, int extent) { return unsigned(coordinate) < unsigned(extent); }
DEVICE bool inside(long long coordinate, long long extent) {
    return static_cast<unsigned long long>(coordinate) < static_cast<unsigned long long>(extent);
}
