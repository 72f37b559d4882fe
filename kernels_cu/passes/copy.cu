// A copy of an array of any strides into others: a residual, to where kernels look for it beside y.
//
// A thread copies one element, of which only the size matters. The host orders the axes by the target's strides, so
// that neighbours are written together.
#include "base/geometry.cuh"

template <class Index, int NDIM> struct CopyParams {
    const void* source;
    void* target;
    Index elements;
    Index source_stride[NDIM], target_stride[NDIM];
    Divider<Index> extent[NDIM];
};

template <class T, class Index, int NDIM> DEVICE void copy(const CopyParams<Index, NDIM>& p) {
    const Index element = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (element >= p.elements) return;
    Index at[NDIM];
    unravel(element, p.extent, at);
    static_cast<T*>(p.target)[dot(at, p.target_stride)] = static_cast<const T*>(p.source)[dot(at, p.source_stride)];
}
