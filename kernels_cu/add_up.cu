// The sums of several parts, added up in their order and rounded once: a thread for each element of the result.
#include "geometry.cuh"
#include "numeric.cuh"
#include "ptx.cuh"

template <class Index, int NDIM> struct AddUpParams {
    const void* sums;            // part, element
    void* y;
    Index parts, elements;
    Divider<Index> extent[NDIM]; // of y
    Index y_stride[NDIM];
};

template <class T, class Acc, class Index, int NDIM> __device__ __forceinline__ void add_up(const AddUpParams<Index, NDIM>& p)
{
    const Index element = Index(block_number()) * blockDim.x + threadIdx.x;
    if (element >= p.elements) return;
    const Acc* part = static_cast<const Acc*>(p.sums) + element;
    Acc sum = *part;
#pragma unroll 4
    for (Index number = 1; number < p.parts; ++number) sum += part[number * p.elements];
    Index at[NDIM], offset = 0;
    unravel<NDIM>(element, p.extent, at);
#pragma unroll
    for (int axis = 0; axis < NDIM; ++axis) offset += at[axis] * p.y_stride[axis];
    static_cast<T*>(p.y)[offset] = narrow<T>(sum);
}
