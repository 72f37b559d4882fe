// ConvTranspose by output phase with split-K: like conv/gemm/conv_transpose.cu, but several blocks share a tile, each
// summing a part of its phase's (tap, channel) rows. Chosen when there are too few tiles for the multiprocessors.
//
// conv/gemm/split_k.cuh divides K and adds the partial sums.
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/mma.cuh"
#include "conv/phases.cuh"
#include "conv/gemm/split_k.cuh"

template <class Index, int NDIM> struct ConvTransposeSplitParams : ConvTransposeParams<Index, NDIM> { Splits splits; };

// Derives the taps of this block's phase, then runs its part of a tile with the given main loop.
template <class T, class Acc, class Multiplier, class Index, int NDIM>
DEVICE void make_phase_split(const ConvTransposeSplitParams<Index, NDIM>& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    Taps<Index, NDIM>& taps = *reinterpret_cast<Taps<Index, NDIM>*>(shared + Multiplier::kSharedBytes);
    const auto position = [&](int tile, Index& group, Index& m_tile, Index& n_tile) {
        return phase_tile<Index, NDIM>(p, tile, group, m_tile, n_tile);
    };
    if (threadIdx.x == 0) {
        int split;
        Index group, m_tile, n_tile;
        fill_taps_of<Index, NDIM>(p, position(split_tile(p.splits, split), group, m_tile, n_tile), taps);
    }
    __syncthreads();
    Multiplier multiplier(p.common, taps, shared);
    make_split_tile<T, Acc, true>(multiplier, p.common, taps, p.splits, shared, position);
}

template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          bool UNIFORM_TAP>
DEVICE void conv_transpose_split_ffma(const ConvTransposeSplitParams<Index, NDIM>& p) {
    make_phase_split<T, Acc,
                     Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, UNIFORM_TAP, true>>(p);
}

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, Gather GATHER>
DEVICE void conv_transpose_split_mma(const ConvTransposeSplitParams<int, 3>& p) {
    using Multiplier = Mma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, GATHER, true>;
    make_phase_split<typename Arithmetic::Element, typename Arithmetic::Acc, Multiplier>(p);
}
