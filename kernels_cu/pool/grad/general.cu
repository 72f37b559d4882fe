// The gradient of MaxPool: every element of x collects the gradients of the windows that have it for their maximum.
//
// A thread makes one element. It looks at the windows that can reach it, in row-major order, and adds what those have
// whose index is the element's number: no atomics, and the same order always. Where channels lie closest together
// neighbouring threads take neighbouring channels.
#include "base/geometry.cuh"
#include "base/numeric.cuh"

template <class Index, int NDIM> struct MaxPoolGradParams {
    const void* dy;
    const long long* indices;
    void* dx;
    long long plane;                              // elements of x per channel
    Index elements;                               // of dx
    Index y_extent[NDIM], pad[NDIM], reach[NDIM]; // reach: of the dilated kernel
    Index dx_batch, dx_channel, dx_stride[NDIM];
    Index dy_batch, dy_channel, dy_stride[NDIM];
    Index indices_batch, indices_channel, indices_stride[NDIM];
    Index place_stride[NDIM]; // of the elements' numbers within a plane
    Divider<Index> x_extent[NDIM], stride[NDIM], dilation[NDIM], channels;
    Index channels_last;
};

// What the windows of the axes from AXIS on, as far as they reach the element, have for its gradient.
template <int AXIS, class T, class Acc, class Index, int NDIM>
DEVICE void collect(const MaxPoolGradParams<Index, NDIM>& p, const Index (&at)[NDIM], const T* dy,
                    const long long* indices, long long place, Acc& sum) {
    const Index from_begin = at[AXIS] + p.pad[AXIS], stride = Index(p.stride[AXIS].divisor);
    const Index beyond = from_begin - p.reach[AXIS]; // windows that begin there or before do not reach it
    const Index last = p.stride[AXIS].quotient(from_begin);
    const Index stop = last < p.y_extent[AXIS] ? last + 1 : p.y_extent[AXIS];
#pragma unroll 1
    for (Index q = beyond < 0 ? Index(0) : p.stride[AXIS].quotient(beyond) + 1; q < stop; ++q) {
        Index between;
        p.dilation[AXIS].split(from_begin - q * stride, between);
        if (between != 0) continue; // it lies between two taps
        const T* of_dy = dy + q * p.dy_stride[AXIS];
        const long long* of_indices = indices + q * p.indices_stride[AXIS];
        if constexpr (AXIS + 1 < NDIM) collect<AXIS + 1>(p, at, of_dy, of_indices, place, sum);
        else if (*of_indices == place) sum += widen(*of_dy);
    }
}

template <class T, class Acc, class Index, int NDIM>
DEVICE void max_pool_grad(const MaxPoolGradParams<Index, NDIM>& p) {
    const Index element = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (element >= p.elements) return;
    Index at[NDIM], channel, image;
    if (p.channels_last) image = unravel(p.channels.split(element, channel), p.x_extent, at);
    else image = p.channels.split(unravel(element, p.x_extent, at), channel);
    const Index offset = dot(at, p.dx_stride, image * p.dx_batch + channel * p.dx_channel);
    const long long place = (image * Index(p.channels.divisor) + channel) * p.plane + dot(at, p.place_stride);
    Acc sum = 0;
    collect<0>(p, at, static_cast<const T*>(p.dy) + (image * p.dy_batch + channel * p.dy_channel),
               p.indices + (image * p.indices_batch + channel * p.indices_channel), place, sum);
    static_cast<T*>(p.dx)[offset] = narrow<T>(sum);
}
