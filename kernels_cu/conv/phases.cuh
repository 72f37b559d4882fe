// ConvTranspose as a gather, by output phase: no product with inserted zeros, no atomics.
//
// Input i reaches output o = i * s + t * d - pad through tap t. The outputs o = q * s + phase of one phase meet just
// the taps with (phase + pad - t * d) divisible by s, each at the input q + (phase + pad - t * d) / s: a correlation of
// stride 1. Its taps are t = first + j * s / gcd(s, d), or none, and input coordinates fall by d / gcd(s, d) each.
#pragma once
#include "conv/problem.cuh"

// One axis of the whole problem.
template <class Index> struct TransposedAxis {
    Index stride, pad, dilation, kernel;
    Index common;  // gcd(stride, dilation)
    Index inverse; // of dilation / common, modulo stride / common
    Index extent;  // of y
    Index row;     // rows of the packed weights from tap to tap
    Index y_stride;
    Divider<Index> phases; // min(stride, extent)
};

template <class Index, int NDIM> struct ConvTransposeParams {
    Correlation<Index, NDIM> common;
    TransposedAxis<Index> axes[NDIM];
    Divider<int> phases; // that blocks are numbered by
};

template <class Index> DEVICE Divider<Index> divider(Index divisor);
template <> DEVICE Divider<int> divider(int divisor) {
    const int shift = divisor <= 1 ? 0 : 32 - __clz(divisor - 1);
    const unsigned long long excess = (1ull << shift) - divisor;
    return {unsigned(divisor), unsigned((excess << 32) / divisor) + 1, unsigned(shift)};
}
template <> DEVICE Divider<long long> divider(long long divisor) { return {divisor}; }

// The phase with a rank in the order of work: those that meet the most taps come first, those that meet none come last.
// Where an axis has fewer outputs than phases, they keep their own order.
template <class Index> DEVICE Index phase_of_rank(const TransposedAxis<Index>& a, Index rank) {
    if (Index(a.phases.divisor) < a.stride) return rank;
    const Index period = a.stride / a.common, first = rank % period;
    const Index rest =
        Index(static_cast<long long>(first) * (a.dilation / a.common) % period) * a.common + rank / period;
    const Index phase = (rest - a.pad) % a.stride;
    return phase < 0 ? phase + a.stride : phase;
}

// Fills one axis of the taps that outputs of a phase meet; returns their number.
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

// Fills the taps that the outputs of one phase meet, which has a coordinate on each axis.
template <class Index, int NDIM>
DEVICE void fill_taps(const ConvTransposeParams<Index, NDIM>& p, const Index (&phase)[NDIM], Taps<Index, NDIM>& taps) {
    Index rows = p.common.channels;
    taps.first_row = taps.y_first = 0;
#pragma unroll
    for (int axis = 0; axis < NDIM; ++axis) rows *= phase_taps(p.axes[axis], phase[axis], axis, taps);
    taps.rows = rows;
}

// Fills the taps of the phase with a number in the order of work; the last axis counts fastest.
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

// Where a tile stands: its group, its number among the tiles along M and along N; returns its phase's number.
template <class Index, int NDIM>
DEVICE Index phase_tile(const ConvTransposeParams<Index, NDIM>& p, int tile, Index& group, Index& m_tile,
                        Index& n_tile) {
    int m, phase, n;
    group = p.common.n_tiles.split(p.phases.split(p.common.m_tiles.split(tile, m), phase), n);
    m_tile = m;
    n_tile = n;
    return phase;
}
