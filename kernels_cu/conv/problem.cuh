// The problem that the convolution kernels solve: a correlation, which is a whole Conv, or one output phase of a
// ConvTranspose (conv/phases.cuh). With taps j and channels c,
//
//     y[n, m, q] = b[m] + sum over j, c of x[n, c, q * stride + start + j * advance] * w[m, c, j]
//
// axis by axis; out-of-bounds inputs are skipped. As a GEMM per group:
//
//     M = output channels (filters),  N = output pixels (n, q1 … qn) flattened,  K = (tap, channel), channel fastest
//
// A "column" is a column of this GEMM (an output pixel), and a "row" of packed weights is one k of K.
#pragma once
#include "conv/finish.cuh"
#include "base/geometry.cuh"

// The taps of the outputs that one block computes, and the position of these outputs in y. Conv has one set of taps;
// ConvTranspose has one per phase.
template <class Index, int NDIM> struct Taps {
    Index start[NDIM];          // input coordinate of tap 0 for output q = 0
    Index advance[NDIM];        // input coordinates between adjacent taps
    Index row[NDIM];            // rows of the packed weights between adjacent taps
    Divider<Index> count[NDIM]; // taps along each axis
    Index first_row;            // row of the packed weights of tap 0, channel 0
    Index rows;                 // K: taps times channels
    Index limit[NDIM];          // columns of this phase along each axis; at most Correlation::extent
    Index y_first;              // offset in y of column 0
};

// Parameters that all blocks of a launch share. Channels and filters are counted per group. Strides are in elements:
// x_batch between images, x_channel between channels, x_stride along the spatial axes; the same names are used for y.
template <class Index, int NDIM> struct Correlation {
    const void* x;       // (N, group, C, D1 … Dn)
    const void* weights; // (group, taps, C, pitch) in the accumulator's type; for tensor cores, packed fragments
    const void* b;       // shape (group, M), or null
    void* y;             // (N, group, M, Q1 … Qn)
    Index channels;      // C
    Index filters;       // M
    Index pixels;        // columns: N times the extents below
    Index pitch;         // M rounded up to a multiple of 16 bytes; of fragments, bytes per slice of K
    Index all_rows;      // rows of the packed weights per group
    Index x_batch, x_channel, x_extent[NDIM], x_stride[NDIM];
    Index y_batch, y_channel, y_stride[NDIM]; // y_stride: between adjacent columns
    Index b_stride;
    Index stride[NDIM];            // input coordinates between adjacent columns
    Divider<Index> extent[NDIM];   // columns along each axis
    Divider<Index> by_channel;     // divides by C
    Divider<int> m_tiles, n_tiles; // tiles along M, along N
    Finish finish;
};

// The parameters of Conv. Those of ConvTranspose are in conv/phases.cuh.
template <class Index, int NDIM> struct ConvParams {
    Correlation<Index, NDIM> common;
    Taps<Index, NDIM> taps;
};

// Splits a block's number into its group and its tile along M and N; M varies fastest.
template <class Index, int NDIM>
DEVICE void tile_of(const Correlation<Index, NDIM>& p, int tile, Index& group, Index& m_tile, Index& n_tile) {
    int m, n;
    group = p.n_tiles.split(p.m_tiles.split(tile, m), n);
    m_tile = m;
    n_tile = n;
}

// One column of the GEMM: image n and output coordinates q.
template <class Index, int NDIM> struct Pixel {
    Index n;
    Index q[NDIM];
    bool exists;
};

// Decodes a column. Columns past the end decode as column 0, with exists = false.
template <class Index, int NDIM> DEVICE Pixel<Index, NDIM> pixel(const Correlation<Index, NDIM>& p, Index column) {
    Pixel<Index, NDIM> result;
    result.exists = column < p.pixels;
    result.n = unravel<NDIM>(result.exists ? column : Index(0), p.extent, result.q);
    return result;
}
