// Gradients of MaxPool and AveragePool for any rank, kernel, stride, dilation and layout: the general kernels. A
// gather: one thread computes one element of dx from all windows that cover it, in row-major order, without atomics.
//
// MaxPool: adds dy of the windows whose Index names the element. AveragePool: adds dy / (number of counted taps) of
// every window. Adjacent threads have adjacent elements, or adjacent channels if these are closest together in memory.
// Windows that several elements share hit in L1; bound by L1 for large windows, by memory for small ones.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "pool/average.cuh"

// Strides count elements; x_extent is the shape of dx.
template <class Index, int NDIM> struct MaxPoolGradParams {
    const void* dy;
    const long long* indices;
    void* dx;
    long long plane;                              // Indices per channel, or 0 to count within each plane
    Index elements;                               // elements of dx
    Index y_extent[NDIM], pad[NDIM], reach[NDIM]; // reach: size of the dilated kernel
    Index dx_batch, dx_channel, dx_stride[NDIM];
    Index dy_batch, dy_channel, dy_stride[NDIM];
    Index indices_batch, indices_channel, indices_stride[NDIM];
    Index place_stride[NDIM]; // Index distance per coordinate, within a plane
    Divider<Index> x_extent[NDIM], stride[NDIM], dilation[NDIM], channels;
    Index channels_last; // elements are numbered with channels fastest
};

// The same without Indices. `counts`: taps of every window, or 0 if they differ.
template <class Index, int NDIM> struct AveragePoolGradParams {
    const void* dy;
    void* dx;
    double counts;
    Index elements; // elements of dx
    Index y_extent[NDIM], pad[NDIM], reach[NDIM];
    Index dx_batch, dx_channel, dx_stride[NDIM];
    Index dy_batch, dy_channel, dy_stride[NDIM];
    Divider<Index> x_extent[NDIM], stride[NDIM], dilation[NDIM], channels;
    Index channels_last;
    Counted<Index, NDIM> counted;
};

// What a window contributes: its gradient if its Index names the element ...
template <class T, class Acc> struct OfMaximum {
    const T* dy;
    const long long* indices;
    long long place;

    template <class Params, class Index> DEVICE OfMaximum at(const Params& p, int axis, Index q, Index) const {
        return {dy + q * p.dy_stride[axis], indices + q * p.indices_stride[axis], place};
    }
    DEVICE void give(Acc& sum) const {
        if (*indices == place) sum += widen(*dy);
    }
};
// ... or its gradient divided by the counted taps.
template <class T, class Acc> struct OfAverage {
    const T* dy;
    Acc counts; // product over the axes so far
    bool constant;

    template <class Params, class Index> DEVICE OfAverage at(const Params& p, int axis, Index q, Index begin) const {
        return {dy + q * p.dy_stride[axis], constant ? counts : counts * Acc(count(p.counted, axis, begin)), constant};
    }
    DEVICE void give(Acc& sum) const { sum += constant ? widen(*dy) : widen(*dy) / counts; }
};

// Adds the contributions of all windows, along the axes from AXIS on, that cover the element.
template <int AXIS, int NDIM, class Params, class Index, class Given, class Acc>
DEVICE void collect(const Params& p, const Index (&at)[NDIM], const Given& given, Acc& sum) {
    const Index from_begin = at[AXIS] + p.pad[AXIS], stride = Index(p.stride[AXIS].divisor);
    const Index beyond = from_begin - p.reach[AXIS]; // windows that begin at or before this do not cover it
    const Index last = p.stride[AXIS].quotient(from_begin);
    const Index stop = last < p.y_extent[AXIS] ? last + 1 : p.y_extent[AXIS];
#pragma unroll 1
    for (Index q = beyond < 0 ? Index(0) : p.stride[AXIS].quotient(beyond) + 1; q < stop; ++q) {
        Index between;
        p.dilation[AXIS].split(from_begin - q * stride, between);
        if (between != 0) continue; // the element lies between two taps
        const Given of_window = given.at(p, AXIS, q, q * stride);
        if constexpr (AXIS + 1 < NDIM) collect<AXIS + 1, NDIM>(p, at, of_window, sum);
        else of_window.give(sum);
    }
}

// Decodes this thread's element. Returns false past the last one.
template <class Params, class Index, int NDIM>
DEVICE bool stand(const Params& p, Index (&at)[NDIM], Index& channel, Index& image) {
    const Index element = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (element >= p.elements) return false;
    if (p.channels_last) image = unravel(p.channels.split(element, channel), p.x_extent, at);
    else image = p.channels.split(unravel(element, p.x_extent, at), channel);
    return true;
}

// The kernel for MaxPool.
template <class T, class Acc, class Index, int NDIM>
DEVICE void max_pool_grad(const MaxPoolGradParams<Index, NDIM>& p) {
    Index at[NDIM], channel, image;
    if (!stand(p, at, channel, image)) return;
    const Index offset = dot(at, p.dx_stride, image * p.dx_batch + channel * p.dx_channel);
    const long long place = (image * Index(p.channels.divisor) + channel) * p.plane + dot(at, p.place_stride);
    Acc sum = 0;
    const OfMaximum<T, Acc> given{static_cast<const T*>(p.dy) + (image * p.dy_batch + channel * p.dy_channel),
                                  p.indices + (image * p.indices_batch + channel * p.indices_channel), place};
    collect<0, NDIM>(p, at, given, sum);
    static_cast<T*>(p.dx)[offset] = narrow<T>(sum);
}

// The kernel for AveragePool.
template <class T, class Acc, class Index, int NDIM>
DEVICE void average_pool_grad(const AveragePoolGradParams<Index, NDIM>& p) {
    Index at[NDIM], channel, image;
    if (!stand(p, at, channel, image)) return;
    Acc sum = 0;
    const OfAverage<T, Acc> given{static_cast<const T*>(p.dy) + (image * p.dy_batch + channel * p.dy_channel), 1,
                                  p.counts > 0};
    collect<0, NDIM>(p, at, given, sum);
    static_cast<T*>(p.dx)[dot(at, p.dx_stride, image * p.dx_batch + channel * p.dx_channel)] =
        given.constant ? average<T>(sum, Acc(p.counts)) : narrow<T>(sum);
}
