// Index arithmetic of implicit GEMM: which input each (row of K, column) reads, and which row of the packed weights
// belongs to it. The GEMM itself is defined in conv/problem.cuh.
#pragma once
#include "conv/problem.cuh"

// The receptive field (window) of one column of the GEMM, that is, of one output pixel.
template <class Index, int NDIM> struct Window {
    Index image, origin[NDIM]; // offset of the image in x; input coordinate of tap 0 on each axis
    bool exists;

    DEVICE void place(const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps, const Pixel<Index, NDIM>& at) {
        exists = at.exists;
        image = at.n * p.x_batch;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) origin[axis] = at.q[axis] * p.stride[axis] + taps.start[axis];
    }
    // Computes the offset in x of the input that a tap reads, without its channel. Returns whether it lies inside x.
    DEVICE bool find(const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps, const Index (&tap)[NDIM],
                     Index& offset) const {
        bool found = exists;
        offset = image;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) {
            const Index coordinate = origin[axis] + tap[axis] * taps.advance[axis];
            found = found && inside(coordinate, p.x_extent[axis]);
            offset += coordinate * p.x_stride[axis];
        }
        return found;
    }
    // Whether some tap of the window lies outside of x.
    DEVICE bool clipped(const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps) const {
        bool whole = true;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) {
            const Index last = origin[axis] + (Index(taps.count[axis].divisor) - 1) * taps.advance[axis];
            whole = whole && inside(origin[axis], p.x_extent[axis]) && inside(last, p.x_extent[axis]);
        }
        return !whole;
    }
};

// Row of the packed weights that holds channel 0 of a tap.
template <class Index, int NDIM> DEVICE Index tap_row(const Taps<Index, NDIM>& taps, const Index (&tap)[NDIM]) {
    return dot(tap, taps.row, taps.first_row);
}

// Splits row k of the GEMM into its tap and its channel (the channel is fastest).
template <class Index, int NDIM>
DEVICE void split_row(const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps, Index k, Index (&tap)[NDIM],
                      Index& channel) {
    unravel<NDIM>(p.by_channel.split(k, channel), taps.count, tap);
}

// Walks over K slice by slice when each slice belongs to one tap: the tap and first channel of the next slice to load.
template <class Index, int NDIM> struct Cursor {
    Index tap[NDIM], channel;

    DEVICE void start() {
        channel = 0;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) tap[axis] = 0;
    }
    // Advances by `step` channels, or to the next tap (last axis fastest) when the channels are used up. Returns
    // whether the tap has changed.
    DEVICE bool advance(const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps, int step) {
        channel += step;
        if (channel < p.channels) return false;
        channel = 0;
        bool carry = true;
#pragma unroll
        for (int axis = NDIM - 1; axis >= 0; --axis) {
            tap[axis] += carry;
            carry = carry && tap[axis] == Index(taps.count[axis].divisor);
            if (carry) tap[axis] = 0;
        }
        return true;
    }
};
