// ConvTranspose with a stride along W: a block makes all phases along W of its pixels (conv/gemm/interleaved.cuh), and
// one of the phases along the other axes, of which those with the most taps come first.
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/interleaved.cuh"

template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          bool UNIFORM_TAP>
__device__ __forceinline__ void conv_transpose_interleaved(const ConvTransposeParams<Index, NDIM>& p)
{
    using Multiplier = Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, UNIFORM_TAP, true>;
    extern __shared__ __align__(128) unsigned char shared[];
    make_interleaved<Multiplier, T, Acc>(p, shared, [&](Index& group, Index& m_tile, Index& n_tile) {
        return phase_tile(p, block_number(), group, m_tile, n_tile);
    });
}
