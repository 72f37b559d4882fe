// Adds partial sums of several parts, in their fixed order, and rounds once. One thread computes one element of the
// result. It is the second launch of gradients of weights and biases; bound by memory, with coalesced loads.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"

// Strides count elements.
template <class Index, int NDIM> struct AddUpParams {
    const void* sums; // (part, element), in the accumulator's type
    void* y;
    Index parts, elements;
    Divider<Index> extent[NDIM]; // extents of y
    Index y_stride[NDIM];
};

// Offset of an element in y.
template <class Index, int NDIM> DEVICE Index place(const AddUpParams<Index, NDIM>& p, Index element) {
    Index at[NDIM];
    unravel(element, p.extent, at);
    return dot(at, p.y_stride);
}

// The kernel for real results.
template <class T, class Acc, class Index, int NDIM> DEVICE void add_up(const AddUpParams<Index, NDIM>& p) {
    const Index element = Index(block_number()) * blockDim.x + threadIdx.x;
    if (element >= p.elements) return;
    const Acc* part = static_cast<const Acc*>(p.sums) + element;
    Acc sum = *part;
#pragma unroll 4
    for (Index number = 1; number < p.parts; ++number) sum += part[number * p.elements];
    static_cast<T*>(p.y)[place(p, element)] = narrow<T>(sum);
}

// Complex: four real sums per element, im * re, im * im, re * re and re * im, for the product of (re, im) pairs.
template <class T, class Acc, class Index, int NDIM> DEVICE void add_up_complex(const AddUpParams<Index, NDIM>& p) {
    const Index element = Index(block_number()) * blockDim.x + threadIdx.x;
    if (element >= p.elements) return;
    const Acc* part = static_cast<const Acc*>(p.sums) + 4 * element;
    Acc sums[4] = {part[0], part[1], part[2], part[3]};
#pragma unroll 1
    for (Index number = 1; number < p.parts; ++number)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] += part[4 * number * p.elements + i];
    static_cast<T*>(p.y)[place(p, element)] = T(sums[2] - sums[1], sums[3] + sums[0]);
}
