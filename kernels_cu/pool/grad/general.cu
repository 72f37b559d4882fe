// The gradients of MaxPool and of AveragePool: every element of x collects what the windows that have it give to it.
//
// A thread makes one element. It looks at the windows that can reach it, in row-major order, and adds up their
// gradients: of MaxPool those whose index is the element's number, of AveragePool all, each divided by how many taps
// count. No atomics, and the same order always. Where channels lie closest together neighbouring threads take
// neighbouring channels.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "pool/average.cuh"

template <class Index, int NDIM> struct MaxPoolGradParams {
    const void* dy;
    const long long* indices;
    void* dx;
    long long plane;                              // numbers per channel, or 0
    Index elements;                               // of dx
    Index y_extent[NDIM], pad[NDIM], reach[NDIM]; // reach: of the dilated kernel
    Index dx_batch, dx_channel, dx_stride[NDIM];
    Index dy_batch, dy_channel, dy_stride[NDIM];
    Index indices_batch, indices_channel, indices_stride[NDIM];
    Index place_stride[NDIM]; // of the elements' numbers within a plane
    Divider<Index> x_extent[NDIM], stride[NDIM], dilation[NDIM], channels;
    Index channels_last;
};

// The same without indices; where as many taps count in every window that is `counts`, else 0.
template <class Index, int NDIM> struct AveragePoolGradParams {
    const void* dy;
    void* dx;
    double counts;
    Index elements; // of dx
    Index y_extent[NDIM], pad[NDIM], reach[NDIM];
    Index dx_batch, dx_channel, dx_stride[NDIM];
    Index dy_batch, dy_channel, dy_stride[NDIM];
    Divider<Index> x_extent[NDIM], stride[NDIM], dilation[NDIM], channels;
    Index channels_last;
    Counted<Index, NDIM> counted;
};

// What a window gives: its gradient where its index is the element's number ...
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
// ... or a share of it.
template <class T, class Acc> struct OfAverage {
    const T* dy;
    Acc counts; // of the axes so far
    bool constant;

    template <class Params, class Index> DEVICE OfAverage at(const Params& p, int axis, Index q, Index begin) const {
        return {dy + q * p.dy_stride[axis], constant ? counts : counts * Acc(count(p.counted, axis, begin)), constant};
    }
    DEVICE void give(Acc& sum) const { sum += constant ? widen(*dy) : widen(*dy) / counts; }
};

// What the windows of the axes from AXIS on, as far as they reach the element, have for its gradient.
template <int AXIS, int NDIM, class Params, class Index, class Given, class Acc>
DEVICE void collect(const Params& p, const Index (&at)[NDIM], const Given& given, Acc& sum) {
    const Index from_begin = at[AXIS] + p.pad[AXIS], stride = Index(p.stride[AXIS].divisor);
    const Index beyond = from_begin - p.reach[AXIS]; // windows that begin there or before do not reach it
    const Index last = p.stride[AXIS].quotient(from_begin);
    const Index stop = last < p.y_extent[AXIS] ? last + 1 : p.y_extent[AXIS];
#pragma unroll 1
    for (Index q = beyond < 0 ? Index(0) : p.stride[AXIS].quotient(beyond) + 1; q < stop; ++q) {
        Index between;
        p.dilation[AXIS].split(from_begin - q * stride, between);
        if (between != 0) continue; // it lies between two taps
        const Given of_window = given.at(p, AXIS, q, q * stride);
        if constexpr (AXIS + 1 < NDIM) collect<AXIS + 1, NDIM>(p, at, of_window, sum);
        else of_window.give(sum);
    }
}

// A thread's element, and where it is in dx; false beyond the last one.
template <class Params, class Index, int NDIM>
DEVICE bool stand(const Params& p, Index (&at)[NDIM], Index& channel, Index& image) {
    const Index element = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (element >= p.elements) return false;
    if (p.channels_last) image = unravel(p.channels.split(element, channel), p.x_extent, at);
    else image = p.channels.split(unravel(element, p.x_extent, at), channel);
    return true;
}

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
