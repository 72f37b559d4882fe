// MaxUnpool: every element of x goes to the place that its index names; places that none names hold zero.
//
// Of elements with the same index the last in row-major order wins, whichever thread comes first: in one launch each
// claims its place with its number, of which the largest stays, in the next one each place takes the element that has
// claimed it. Indices number the elements of one shape (N, C, D1 … Dn), the result may have a larger one.
#include "base/geometry.cuh"

template <class Index, int NDIM> struct MaxUnpoolParams {
    const void* x;
    const long long* indices;
    void* y;
    Index* claims;          // of each place of y, row-major: 1 + the number of the element that it holds, or 0
    long long numbered;     // numbers that elements can have; others name none
    long long plane_step;   // elements of a plane, where indices count within each, else 0
    Index elements, places; // of x, of y
    Index x_batch, x_channel, x_stride[NDIM];
    Index indices_batch, indices_channel, indices_stride[NDIM];
    Index y_batch, y_channel, y_stride[NDIM];
    Divider<Index> channels, x_extent[NDIM], y_extent[NDIM], numbered_extent[NDIM];
    Index channels_last; // threads of the last launch go through y with its channels fastest
};

template <class Index, int NDIM> struct Place {
    Index image, channel, at[NDIM];

    DEVICE void split(Index number, const Divider<Index> (&extents)[NDIM], const Divider<Index>& channels) {
        image = channels.split(unravel(number, extents, at), channel);
    }
    DEVICE Index offset(Index batch, Index of_channel, const Index (&strides)[NDIM]) const {
        return dot(at, strides, image * batch + channel * of_channel);
    }
    // The number of the same place in an array of these extents.
    DEVICE Index number(const Divider<Index> (&extents)[NDIM], const Divider<Index>& channels) const {
        Index found = image * Index(channels.divisor) + channel;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) found = found * Index(extents[axis].divisor) + at[axis];
        return found;
    }
};

template <class Index, int NDIM> DEVICE void max_unpool_claim(const MaxUnpoolParams<Index, NDIM>& p) {
    const Index element = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (element >= p.elements) return;
    Place<Index, NDIM> from, to;
    from.split(element, p.x_extent, p.channels);
    const long long index = p.indices[from.offset(p.indices_batch, p.indices_channel, p.indices_stride)];
    if (index < 0 || index >= p.numbered) return;
    const Index plane = from.image * Index(p.channels.divisor) + from.channel;
    to.split(Index(index + plane * p.plane_step), p.numbered_extent, p.channels);
    atomicMax(p.claims + to.number(p.y_extent, p.channels), element + 1);
}

template <class T, class Index, int NDIM> DEVICE void max_unpool(const MaxUnpoolParams<Index, NDIM>& p) {
    const Index thread = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (thread >= p.places) return;
    Place<Index, NDIM> to, from;
    if (p.channels_last) to.image = unravel(p.channels.split(thread, to.channel), p.y_extent, to.at);
    else to.split(thread, p.y_extent, p.channels);
    const Index element = p.claims[p.channels_last ? to.number(p.y_extent, p.channels) : thread];
    T value = 0;
    if (element > 0) {
        from.split(element - 1, p.x_extent, p.channels);
        value = static_cast<const T*>(p.x)[from.offset(p.x_batch, p.x_channel, p.x_stride)];
    }
    static_cast<T*>(p.y)[to.offset(p.y_batch, p.y_channel, p.y_stride)] = value;
}
