// A block's whole tile of sums in shared memory, for kernels whose outputs are sums of several rows, or whose rows are
// scattered in y (tap_rows.cu, depth_to_space.cuh of this folder).
//
// Before anything is written, sums that zeros turned into NaN are recomputed there. The zeros may be padding, or
// weights of taps that do not exist. As in conv/epilogue.cuh, candidates are sums that are NaN; if the multiplier
// rounds or splits its factors, all that are not finite.
#pragma once
#include "conv/gather.cuh"
#include "conv/gemm/implicit_gemm.cuh"

// Whether a sum needs no recomputation.
template <class Multiplier, class Acc> DEVICE bool sound(Acc sum) {
    return Multiplier::kExact ? sum == sum : is_finite(sum);
}

// Stores all sums to shared memory, row by row, `pitch` elements apart.
template <class Multiplier, class Acc> DEVICE void lay_out(const Multiplier& multiplier, Acc* sums, int pitch) {
#pragma unroll
    for (int i = 0; i < Multiplier::kChunksM; ++i)
#pragma unroll
        for (int j = 0; j < Multiplier::kChunksN; ++j)
            multiplier.put(sums + multiplier.chunk_row(i) * pitch + multiplier.chunk_column(j), i, j, pitch);
}

// Group, first row and first column of a tile.
template <class Index> struct TilePlace { Index group, m0, column0; };

// Recomputes bad sums over the valid taps for which `exists(row, tap)`, product by product. It synchronises the block
// before and after, so all sums are in place for all threads.
template <class T, class Multiplier, class Acc, class Index, int NDIM, class Exists>
DEVICE void repair(const Multiplier& multiplier, const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps,
                   const TilePlace<Index>& tile, Acc* sums, int pitch, Exists&& exists) {
    constexpr int kBlockN = Multiplier::kBlockN;
    if (__syncthreads_and(multiplier.sound())) return;
    const T* x = static_cast<const T*>(p.x) + tile.group * p.channels * p.x_channel;
#pragma unroll 1
    for (int i = threadIdx.x; i < Multiplier::kBlockM * kBlockN; i += Multiplier::kThreads) {
        const Index m = tile.m0 + i / kBlockN;
        Acc& target = sums[i / kBlockN * pitch + i % kBlockN];
        const Pixel<Index, NDIM> at = pixel(p, tile.column0 + i % kBlockN);
        if (!at.exists || m >= p.filters || sound<Multiplier>(target)) continue;
        Window<Index, NDIM> window;
        window.place(p, taps, at);
        Acc sum = 0;
#pragma unroll 1
        for (Index k = 0; k < taps.rows && sum == sum; ++k) { // stops at the first NaN
            Index channel, tap[NDIM], offset;
            split_row(p, taps, k, tap, channel);
            if (window.find(p, taps, tap, offset) && exists(i / kBlockN, tap))
                sum = multiply_add(multiplier.weight(tap_row(taps, tap) + channel, m),
                                   widen(x[offset + channel * p.x_channel]), sum);
        }
        target = sum;
    }
    __syncthreads();
}
