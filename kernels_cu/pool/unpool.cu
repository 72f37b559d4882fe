// MaxUnpool: scatters each element of x to the position that its Index names; all other outputs are zero. If several
// elements name one position, the last in row-major order wins, independent of timing.
//
// Two launches, after the claims have been cleared. In the first, one thread per element claims its position by
// atomicMax of its number. In the second, one thread per output gathers the element that has won. Indices number the
// elements of a tensor of shape (N, C, D1 … Dn); the output may be larger. Bound by memory.
#include "base/geometry.cuh"

// Strides count elements.
template <class Index, int NDIM> struct MaxUnpoolParams {
    const void* x;
    const long long* indices;
    void* y;
    Index* claims;          // per output, row-major: 1 + number of the winning element, or 0
    long long numbered;     // valid Indices are below this; others name no position
    long long plane_step;   // elements per plane if Indices count within each plane, else 0
    Index elements, places; // elements of x; outputs
    Index x_batch, x_channel, x_stride[NDIM];
    Index indices_batch, indices_channel, indices_stride[NDIM];
    Index y_batch, y_channel, y_stride[NDIM];
    Divider<Index> channels, x_extent[NDIM], y_extent[NDIM], numbered_extent[NDIM];
    Index channels_last; // threads of the second launch number y with channels fastest
};

// The coordinates of an element.
template <class Index, int NDIM> struct Place {
    Index image, channel, at[NDIM];

    DEVICE void split(Index number, const Divider<Index> (&extents)[NDIM], const Divider<Index>& channels) {
        image = channels.split(unravel(number, extents, at), channel);
    }
    DEVICE Index offset(Index batch, Index of_channel, const Index (&strides)[NDIM]) const {
        return dot(at, strides, image * batch + channel * of_channel);
    }
    // The number of this position in an array of these extents.
    DEVICE Index number(const Divider<Index> (&extents)[NDIM], const Divider<Index>& channels) const {
        Index found = image * Index(channels.divisor) + channel;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) found = found * Index(extents[axis].divisor) + at[axis];
        return found;
    }
};

// First launch: claims positions.
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

// Second launch: gathers the winners.
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
