// ConvTranspose as implicit GEMM, by FFMA or on tensor cores: the general kernels, for any rank (FFMA), stride,
// dilation, padding and group. Each output phase is a Conv of stride 1 (conv/phases.cuh); all phases run in one launch.
//
// One block computes one tile of one phase (conv/gemm/implicit_gemm.cuh). Its first thread derives the phase's taps,
// which the block keeps in shared memory. Phases of the same pixels are adjacent blocks, so they share inputs in L2.
// Phases with the most taps come first, so that the launch ends with the shortest blocks.
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/implicit_gemm.cuh"
#include "conv/gemm/mma.cuh"
#include "conv/phases.cuh"

// Derives the taps of this block's phase, then runs its tile with the given main loop.
template <class T, class Acc, class Multiplier, class Index, int NDIM>
DEVICE void make_phase(const ConvTransposeParams<Index, NDIM>& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    Taps<Index, NDIM>& taps = *reinterpret_cast<Taps<Index, NDIM>*>(shared + Multiplier::kSharedBytes);
    const auto position = [&](Index& group, Index& m_tile, Index& n_tile) {
        return phase_tile(p, block_number(), group, m_tile, n_tile);
    };
    if (threadIdx.x == 0) {
        Index group, m_tile, n_tile;
        fill_taps_of(p, position(group, m_tile, n_tile), taps);
    }
    __syncthreads();
    make_tile<T, Acc, true>(Multiplier(p.common, taps, shared), p.common, taps, shared, position);
}

template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          bool UNIFORM_TAP>
DEVICE void conv_transpose_ffma(const ConvTransposeParams<Index, NDIM>& p) {
    make_phase<T, Acc, Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, UNIFORM_TAP, true>>(p);
}

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, Gather GATHER>
DEVICE void conv_transpose_mma(const ConvTransposeParams<int, 3>& p) {
    using Multiplier = Mma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, GATHER, true>;
    make_phase<typename Arithmetic::Element, typename Arithmetic::Acc, Multiplier>(p);
}
