// Gradient of Conv's weights, and the parameters that its kernels share:
//
//     dw[m, c, t] = sum over images n and outputs q of dy[n, m, q] * x[n, c, q * stride - pad + t * dilation]
//
// where out-of-bounds inputs are skipped. As a GEMM per group: M = filters, N = columns (channel, tap) with the tap
// fastest, K = output pixels (n, q1 … qn). K is long and the result small, so K is divided into parts (split-K). Each
// block stores its sums in the workspace, and passes/add_up.cu adds the parts in order.
#pragma once
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"

// Parameters. Strides count elements.
template <class Index, int NDIM> struct WeightGradParams {
    const void* x;           // (N, group, C, D1 … Dn)
    const void* dy;          // (N, group, M, Q1 … Qn)
    void* sums;              // (part, group, M, C, taps), in the accumulator's type
    Index filters, channels; // per group
    Index columns;           // channels times taps
    Index pixels;            // K
    Index each;              // pixels per part
    Index all;               // sums per part
    Index x_batch, x_channel, x_extent[NDIM], x_stride[NDIM];
    Index dy_batch, dy_channel, dy_stride[NDIM];
    Index stride[NDIM], pad[NDIM], dilation[NDIM];
    Divider<Index> extent[NDIM];           // outputs along each axis
    Divider<Index> count[NDIM];            // taps along each axis
    Divider<int> groups, m_tiles, n_tiles; // groups; tiles along M and N
};

// One row of K: an output pixel. Offsets of its tap 0 in x and of itself in dy; input coordinates of tap 0.
template <class Index, int NDIM> struct Output {
    Index in_x, in_dy, origin[NDIM]; // origin: input coordinates of tap 0
    bool exists;

    // Decodes output pixel `number`; it does not exist from `limit` on.
    DEVICE void find(const WeightGradParams<Index, NDIM>& p, Index number, Index limit) {
        exists = number < limit;
        Index q[NDIM];
        const Index n = unravel<NDIM>(exists ? number : Index(0), p.extent, q);
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) origin[axis] = q[axis] * p.stride[axis] - p.pad[axis];
        in_x = dot(origin, p.x_stride, n * p.x_batch);
        in_dy = dot(q, p.dy_stride, n * p.dy_batch);
    }
};

// One column: a channel and a tap.
template <class Index, int NDIM> struct Column {
    Index in_x, away[NDIM]; // displacement from channel 0 and tap 0: in x, in coordinates
    bool exists;

    // Decodes a column's number.
    DEVICE void find(const WeightGradParams<Index, NDIM>& p, Index number) {
        exists = number < p.columns;
        Index tap[NDIM];
        const Index channel = unravel<NDIM>(exists ? number : Index(0), p.count, tap);
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) away[axis] = tap[axis] * p.dilation[axis];
        in_x = dot(away, p.x_stride, channel * p.x_channel);
    }
    // Whether the input of (output pixel, column) is valid.
    DEVICE bool meets(const WeightGradParams<Index, NDIM>& p, const Output<Index, NDIM>& output) const {
        bool found = exists && output.exists;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis)
            found = found && inside(output.origin[axis] + away[axis], p.x_extent[axis]);
        return found;
    }
};

// A block's part of K, its group and its tile.
template <class Index> struct WeightGradTile { Index part, group, m_tile, n_tile; };

template <class Index, int NDIM> DEVICE WeightGradTile<Index> tile_of_block(const WeightGradParams<Index, NDIM>& p) {
    int m_tile, n_tile, group;
    const int part = p.groups.split(p.n_tiles.split(p.m_tiles.split(block_number(), m_tile), n_tile), group);
    return {part, group, m_tile, n_tile};
}
