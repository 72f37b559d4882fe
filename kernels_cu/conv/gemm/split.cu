// Conv as implicit GEMM with split-K: like conv/gemm/conv.cu, but several blocks share a tile, each summing a part of
// K. Chosen when there are too few tiles for the multiprocessors, or for the last wave of blocks.
//
// conv/gemm/split_k.cuh divides K and adds the partial sums. The blocks of one tile are adjacent.
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/mma.cuh"
#include "conv/gemm/split_k.cuh"

template <class Index, int NDIM> struct ConvSplitParams {
    Correlation<Index, NDIM> common;
    Taps<Index, NDIM> taps;
    Splits splits;
};

// Runs a block's part of a tile with the given main loop.
template <class T, class Acc, class Multiplier, class Index, int NDIM>
DEVICE void convolve_split(const ConvSplitParams<Index, NDIM>& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    const auto position = [&](int tile, Index& group, Index& m_tile, Index& n_tile) {
        tile_of(p.common, tile, group, m_tile, n_tile);
    };
    Multiplier multiplier(p.common, p.taps, shared);
    make_split_tile<T, Acc, false>(multiplier, p.common, p.taps, p.splits, shared, position);
}

template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          bool UNIFORM_TAP>
DEVICE void conv_split_ffma(const ConvSplitParams<Index, NDIM>& p) {
    convolve_split<T, Acc,
                   Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, UNIFORM_TAP, false>>(p);
}

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, Gather GATHER>
DEVICE void conv_split_mma(const ConvSplitParams<int, 3>& p) {
    using Multiplier = Mma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, GATHER, false>;
    convolve_split<typename Arithmetic::Element, typename Arithmetic::Acc, Multiplier>(p);
}
