// ConvTranspose as a gather, one output phase at a time: no zeros are inserted into x, and no atomics are needed.
//
// Input i contributes to output o = i * s + t * d - pad through tap t (stride s, dilation d). The outputs with equal
// remainder, o = q * s + phase, form a phase. They use exactly the taps for which (phase + pad - t * d) is divisible by
// s. Tap t reads input q + (phase + pad - t * d) / s. So each phase is a correlation of stride 1 with a subset of the
// taps:
//
//     t = first + j * s / gcd(s, d),  and each next tap reads d / gcd(s, d) inputs further to the left
//
//     s = 2, k = 3, d = 1, pad = 0:   phase 0 uses taps 0 and 2, phase 1 uses tap 1
//
// A phase may have no taps at all; its outputs are the bias.
#pragma once
#include "conv/problem.cuh"

// One axis of a ConvTranspose, over all its phases.
template <class Index> struct TransposedAxis {
    Index stride, pad, dilation, kernel;
    Index common;  // gcd(stride, dilation)
    Index inverse; // inverse of dilation / common, modulo stride / common
    Index extent;  // extent of y
    Index row;     // rows of the packed weights between adjacent taps
    Index y_stride;
    Divider<Index> phases; // number of phases: min(stride, extent)
};

template <class Index, int NDIM> struct ConvTransposeParams {
    Correlation<Index, NDIM> common;
    TransposedAxis<Index> axes[NDIM];
    Divider<int> phases; // product over the axes; part of the block's number
};

// Prepares a divisor on the device, as gpuconv/cuda/build/params.py does on the host.
template <class Index> DEVICE Divider<Index> divider(Index divisor);
template <> DEVICE Divider<int> divider(int divisor) {
    const int shift = divisor <= 1 ? 0 : 32 - __clz(divisor - 1);
    const unsigned long long excess = (1ull << shift) - divisor;
    return {unsigned(divisor), unsigned((excess << 32) / divisor) + 1, unsigned(shift)};
}
template <> DEVICE Divider<long long> divider(long long divisor) { return {divisor}; }

// Returns the phase at a rank of the launch order. Phases with the most taps come first, so that the longest blocks do
// not run last; phases without taps come last. An axis with fewer outputs than phases keeps the natural order.
template <class Index> DEVICE Index phase_of_rank(const TransposedAxis<Index>& a, Index rank) {
    if (Index(a.phases.divisor) < a.stride) return rank;
    const Index period = a.stride / a.common, first = rank % period;
    const Index rest =
        Index(static_cast<long long>(first) * (a.dilation / a.common) % period) * a.common + rank / period;
    const Index phase = (rest - a.pad) % a.stride;
    return phase < 0 ? phase + a.stride : phase;
}

// Fills in one axis of `taps` for a phase. Returns the number of taps along this axis, which may be 0.
template <class Index, int NDIM>
DEVICE Index phase_taps(const TransposedAxis<Index>& a, Index phase, int axis, Taps<Index, NDIM>& taps) {
    const Index sum = phase + a.pad, rest = sum % a.stride, period = a.stride / a.common;
    const bool meets = rest % a.common == 0;
    const Index first = Index(static_cast<long long>(rest / a.common) * a.inverse % period);
    const Index count = meets && first < a.kernel ? (a.kernel - 1 - first) / period + 1 : 0;
    taps.count[axis] = divider(count == 0 ? Index(1) : count);
    taps.start[axis] = (sum - first * a.dilation) / a.stride;
    taps.advance[axis] = -(a.dilation / a.common);
    taps.row[axis] = period * a.row;
    taps.limit[axis] = (a.extent - phase - 1) / a.stride + 1;
    taps.first_row += first * a.row;
    taps.y_first += phase * a.y_stride;
    return count;
}

// Fills in `taps` for the phase with these coordinates.
template <class Index, int NDIM>
DEVICE void fill_taps(const ConvTransposeParams<Index, NDIM>& p, const Index (&phase)[NDIM], Taps<Index, NDIM>& taps) {
    Index rows = p.common.channels;
    taps.first_row = taps.y_first = 0;
#pragma unroll
    for (int axis = 0; axis < NDIM; ++axis) rows *= phase_taps(p.axes[axis], phase[axis], axis, taps);
    taps.rows = rows;
}

// Fills in `taps` for the phase with a number in launch order; the last axis varies fastest.
template <class Index, int NDIM>
DEVICE void fill_taps_of(const ConvTransposeParams<Index, NDIM>& p, Index number, Taps<Index, NDIM>& taps) {
    Index phase[NDIM];
#pragma unroll
    for (int axis = NDIM - 1; axis >= 0; --axis) {
        Index rank;
        number = p.axes[axis].phases.split(number, rank);
        phase[axis] = phase_of_rank(p.axes[axis], rank);
    }
    fill_taps(p, phase, taps);
}

// Splits a block's number into its group and its tile along M and N. Returns its phase's number in launch order. M
// varies fastest, then the phase, then N.
template <class Index, int NDIM>
DEVICE Index phase_tile(const ConvTransposeParams<Index, NDIM>& p, int tile, Index& group, Index& m_tile,
                        Index& n_tile) {
    int m, phase, n;
    group = p.common.n_tiles.split(p.phases.split(p.common.m_tiles.split(tile, m), phase), n);
    m_tile = m;
    n_tile = n;
    return phase;
}
