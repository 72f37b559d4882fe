// Copies an array to another one with different strides, for example a residual to the layout that the epilogue
// expects. One thread copies one element; T only has the right size. The host orders the axes by the target's strides,
// so that writes are coalesced. Bound by memory.
#include "base/geometry.cuh"

// Strides count elements.
template <class Index, int NDIM> struct CopyParams {
    const void* source;
    void* target;
    Index elements;
    Index source_stride[NDIM], target_stride[NDIM];
    Divider<Index> extent[NDIM];
};

// The kernel: one thread copies one element.
template <class T, class Index, int NDIM> DEVICE void copy(const CopyParams<Index, NDIM>& p) {
    const Index element = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (element >= p.elements) return;
    Index at[NDIM];
    unravel(element, p.extent, at);
    static_cast<T*>(p.target)[dot(at, p.target_stride)] = static_cast<const T*>(p.source)[dot(at, p.source_stride)];
}
