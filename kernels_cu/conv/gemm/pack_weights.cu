// Weights (group, M, C, taps), in any strides, to (group, taps, C filled up with zeros, pitch) in the accumulator's
// type: one row of output channels per row of the implicit GEMM, padded with zeros to 16 bytes.
//
// A block turns a square of kSquare output channels x kSquare (channel, tap) pairs round in shared memory, so that it
// reads along the taps, which are contiguous in w, and writes along the output channels.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/tickets.cuh"
#include "conv/gemm/filter_rows.cuh"

template <class Index, int NDIM> struct PackParams {
    const void* w;
    void* packed;
    Index filters, channels, pitch; // M, C, of one group
    Index filled, rows;             // C with the zeros that follow, times taps
    Index w_group, w_filter, w_channel, w_stride[NDIM];
    Divider<Index> by_tap; // taps
    Divider<Index> taps[NDIM];
    Divider<int> m_squares, row_squares;
    Tickets tickets;
    FilterRows<Index, NDIM> of_filter; // rows of M that one filter has
};

// SEVERAL: filters have several rows of M.
template <class T, class Acc, class Index, int NDIM, bool SEVERAL> DEVICE void pack_weights(
    const PackParams<Index, NDIM>& p) {
    constexpr int kSquare = 32, kThreads = 256, kStep = kThreads / kSquare;
    __shared__ Acc square[kSquare][kSquare + 1];
    p.tickets.clear();
    int m_square, row_square;
    const int group = p.row_squares.split(p.m_squares.split(blockIdx.x, m_square), row_square);
    const int along = threadIdx.x % kSquare, across = threadIdx.x / kSquare;
    const T* w = static_cast<const T*>(p.w) + group * p.w_group;
    Acc* packed = static_cast<Acc*>(p.packed) + group * p.rows * p.pitch;
    const Index first_m = Index(m_square) * kSquare, first_pair = Index(row_square) * kSquare;

    // Pairs are numbered channel by channel here: taps are neighbours in w.
    Index tap_number, tap[NDIM];
    const Index channel = p.by_tap.split(first_pair + along, tap_number);
    unravel<NDIM>(tap_number, p.taps, tap);
    const Index offset = dot(tap, p.w_stride, channel * p.w_channel);
#pragma unroll
    for (int i = across; i < kSquare; i += kStep) {
        const Index m = first_m + i;
        if constexpr (SEVERAL) {
            Index own[NDIM];
            const Index filter = p.of_filter.find(m, tap, own);
            const bool found = channel < p.channels && inside(filter, p.filters);
            const Index place = dot(own, p.w_stride, channel * p.w_channel + filter * p.w_filter);
            square[i][along] = found ? widen(w[place]) : Acc(0);
        } else {
            const bool found = channel < p.channels && m < p.filters;
            square[i][along] = found ? widen(w[offset + m * p.w_filter]) : Acc(0);
        }
    }
    __syncthreads();
    const Index m = first_m + along;
#pragma unroll
    for (int i = across; i < kSquare; i += kStep) {
        const Index pair = first_pair + i;
        if (pair >= p.rows || m >= p.pitch) continue;
        Index tap_of_pair;
        const Index channel_of_pair = p.by_tap.split(pair, tap_of_pair);
        packed[(tap_of_pair * p.filled + channel_of_pair) * p.pitch + m] = square[along][i];
    }
}
