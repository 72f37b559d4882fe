// Layout of M for kernels that give each filter several rows, so that few filters fill a tile: M = (filter, row). Rows
// are the phases of a ConvTranspose, or runs of taps of a Conv.
//
// Tap t of row r is tap r * row_step + t * tap_step of the kernel, or zero if there is no such tap. For phases,
// row_step is 1 and tap_step is the number of phases. Tiles of M hold whole filters; the remaining rows of a tile are
// zero.
#pragma once
#include "base/geometry.cuh"

// See the top of this file.
template <class Index, int NDIM> struct FilterRows {
    Divider<Index> rows[NDIM];            // rows per filter along each axis
    Index row_step[NDIM], tap_step[NDIM]; // taps of the kernel between adjacent rows, between adjacent taps of a row
    Index kernel[NDIM];                   // kernel size
    Divider<Index> tile_rows;             // rows of M per tile
    Index tile_filters;                   // filters per tile

    // Returns the filter of a row of M, and in `own` the kernel's tap for tap `tap` of that row. Returns a negative
    // number if there is none: the weight is zero.
    DEVICE Index find(Index row, const Index (&tap)[NDIM], Index (&own)[NDIM]) const {
        Index of_tile, number[NDIM];
        const Index tile = tile_rows.split(row, of_tile), filter = unravel<NDIM>(of_tile, rows, number);
        bool found = filter < tile_filters;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) {
            own[axis] = number[axis] * row_step[axis] + tap[axis] * tap_step[axis];
            found = found && own[axis] < kernel[axis];
        }
        return found ? tile * tile_filters + filter : Index(-1);
    }
};
