// Rows of M where a filter has several: M = (filter, phase), and tap t of a phase is tap phase + t * phases of the
// kernel, zero where there is none. These are phases of ConvTranspose, or all taps along an axis. Tiles of M may have
// whole filters, and zeros behind them.
#pragma once
#include "base/geometry.cuh"

template <class Index, int NDIM> struct FilterRows {
    Divider<Index> phases[NDIM]; // 1 where a filter has one row
    Index kernel[NDIM];          // taps along each axis
    Divider<Index> tile_rows;    // rows of a tile, which has
    Index tile_filters;          // so many filters

    // The filter that a row is of, and the tap of the kernel that one of its phase's is; negative where it has none.
    DEVICE Index find(Index row, const Index (&tap)[NDIM], Index (&own)[NDIM]) const {
        Index of_tile, phase[NDIM];
        const Index tile = tile_rows.split(row, of_tile), filter = unravel<NDIM>(of_tile, phases, phase);
        bool found = filter < tile_filters;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) {
            own[axis] = phase[axis] + tap[axis] * Index(phases[axis].divisor);
            found = found && own[axis] < kernel[axis];
        }
        return found ? tile * tile_filters + filter : Index(-1);
    }
};
