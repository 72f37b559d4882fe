// Rows of M where a filter has several: M = (filter, row), and tap t of row r is tap r * row_step + t * tap_step of the
// kernel, zero where there is none. These are phases of ConvTranspose, whose taps lie as far apart as there are phases,
// or runs of taps along an axis. Tiles of M may have whole filters, and zeros behind them.
#pragma once
#include "base/geometry.cuh"

template <class Index, int NDIM> struct FilterRows {
    Divider<Index> rows[NDIM];            // along each axis; 1 where a filter has one
    Index row_step[NDIM], tap_step[NDIM]; // taps of the kernel from row to row, from tap to tap
    Index kernel[NDIM];                   // taps along each axis
    Divider<Index> tile_rows;             // rows of a tile, which has
    Index tile_filters;                   // so many filters

    // The filter that a row is of, and the tap of the kernel that one of its own is; negative where it has none.
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
