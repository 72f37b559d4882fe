// Conv as the implicit GEMM of conv_implicit_gemm.cu where there are too few tiles for the multiprocessors: several blocks
// make one (include/split_k.cuh). Blocks of one tile run next to each other.
#include "ffma.cuh"
#include "split_k.cuh"

template <class Index, int NDIM> struct ConvSplitParams {
    Correlation<Index, NDIM> common;
    Taps<Index, NDIM> taps;
    Splits splits;
};

template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N>
__device__ __forceinline__ void conv_split(const ConvSplitParams<Index, NDIM>& p)
{
    extern __shared__ __align__(16) unsigned char shared[];
    using Multiplier = Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, true, false>;
    const auto position = [&](int tile, Index& group, Index& m_tile, Index& n_tile) {
        int m, n;
        group = p.common.n_tiles.split(p.common.m_tiles.split(tile, m), n);
        m_tile = m;
        n_tile = n;
    };
    Multiplier multiplier(p.common, p.taps, shared);
    make_split_tile<T, Acc, false>(multiplier, p.common, p.taps, p.splits, shared, position);
}
