// Packs weights (group, M, C, taps), with any strides, for the FFMA kernels: to (group, taps, C padded, pitch) in the
// accumulator's type. One row of the GEMM becomes one row of output channels, zero-padded to 16 bytes.
//
// Block: transposes a square of kSquare output channels x kSquare (channel, tap) pairs in shared memory. It reads along
// the taps, which are contiguous in w, and writes along the output channels: both are coalesced. Bound by memory.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/tickets.cuh"
#include "conv/gemm/filter_rows.cuh"

// Strides count elements.
template <class Index, int NDIM> struct PackParams {
    const void* w;
    void* packed;
    Index filters, channels, pitch; // M, C of one group; elements of a packed row
    Index filled, rows;             // C padded; rows of the GEMM: C padded x taps
    Index w_group, w_filter, w_channel, w_stride[NDIM];
    Divider<Index> by_tap;               // number of taps
    Divider<Index> taps[NDIM];           // taps along each axis
    Divider<int> m_squares, row_squares; // blocks along M, along (channel, tap)
    Tickets tickets;                     // counters to set to zero for the next launch
    FilterRows<Index, NDIM> of_filter;   // rows of M per filter
};

// SEVERAL: filters have several rows of M (conv/gemm/filter_rows.cuh).
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

    // Pairs are numbered with the tap fastest here, as taps are adjacent in w.
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
