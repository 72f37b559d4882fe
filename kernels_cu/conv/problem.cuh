// The problem that Conv, and each output phase of ConvTranspose, comes down to:
//
//     y[n, m, q] = b[m] + sum over taps j and channels c of x[n, c, q * stride + start + j * advance] * w[m, c, j]
//
// axis by axis, where inputs outside of x take no part. As a GEMM: M = output channels of a group, N = output pixels
// (n, q1 … qn) flattened, K = (tap, channel) with the channel fastest.
#pragma once
#include "conv/finish.cuh"
#include "base/geometry.cuh"

// The taps that the outputs of one block meet, and where these outputs stand. ConvTranspose has others in each phase.
template <class Index, int NDIM> struct Taps {
    Index start[NDIM];   // input coordinate of tap 0 for q = 0
    Index advance[NDIM]; // input coordinates from one tap to the next
    Index row[NDIM];     // rows of the packed weights from one tap to the next
    Divider<Index> count[NDIM];
    Index first_row;   // row of the packed weights that tap 0 and channel 0 have
    Index rows;        // K: taps times channels
    Index limit[NDIM]; // columns that exist along each axis; no more than the extents of the correlation
    Index y_first;     // offset of column 0 in y
};

// What all blocks of a launch share. Strides count elements; channels and filters are those of one group.
template <class Index, int NDIM> struct Correlation {
    const void* x;       // (N, group, C, D1 … Dn)
    const void* weights; // (group, taps, C, pitch) in the accumulator's type
    const void* b;       // (group, M) or null
    void* y;             // (N, group, M, Q1 … Qn)
    Index channels;      // C
    Index filters;       // M
    Index pixels;        // columns: N times the extents below
    Index pitch;         // M rounded up to 16 bytes
    Index all_rows;      // rows of the packed weights of one group
    Index x_batch, x_channel, x_extent[NDIM], x_stride[NDIM];
    Index y_batch, y_channel, y_stride[NDIM]; // the last from one column to the next
    Index b_stride;
    Index stride[NDIM];          // input coordinates from one column to the next
    Divider<Index> extent[NDIM]; // columns along each axis
    Divider<Index> by_channel;   // C
    Divider<int> m_tiles, n_tiles;
    Finish finish;
};

// The parameters of Conv; those of ConvTranspose are in conv/phases.cuh.
template <class Index, int NDIM> struct ConvParams {
    Correlation<Index, NDIM> common;
    Taps<Index, NDIM> taps;
};

// Where a tile stands, of those that run over M first: its group, its number among the tiles along M and along N.
template <class Index, int NDIM>
DEVICE void tile_of(const Correlation<Index, NDIM>& p, int tile, Index& group, Index& m_tile, Index& n_tile) {
    int m, n;
    group = p.n_tiles.split(p.m_tiles.split(tile, m), n);
    m_tile = m;
    n_tile = n;
}

// One column of the GEMM.
template <class Index, int NDIM> struct Pixel {
    Index n;
    Index q[NDIM];
    bool exists;
};

template <class Index, int NDIM> DEVICE Pixel<Index, NDIM> pixel(const Correlation<Index, NDIM>& p, Index column) {
    Pixel<Index, NDIM> result;
    result.exists = column < p.pixels;
    result.n = unravel<NDIM>(result.exists ? column : Index(0), p.extent, result.q);
    return result;
}
