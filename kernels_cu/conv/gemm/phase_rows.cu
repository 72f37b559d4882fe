// ConvTranspose with strides, all phases as rows of one GEMM (conv/gemm/depth_to_space.cuh): an input is fetched once
// for all phases that it has a tap in. For few output channels, of which one phase alone fills no tile.
#include "conv/gemm/depth_to_space.cuh"
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/mma.cuh"

template <class T, class Acc, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N, bool UNIFORM_TAP>
DEVICE void conv_transpose_phase_rows_ffma(const DepthToSpaceParams<int, 3>& p) {
    extern __shared__ __align__(16) unsigned char shared[];
    using Multiplier = Ffma<T, Acc, int, 3, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, UNIFORM_TAP, false>;
    make_blocks<Multiplier, T, Acc, true>(p, shared);
}

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, Gather GATHER>
DEVICE void conv_transpose_phase_rows_mma(const DepthToSpaceParams<int, 3>& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    using Multiplier = Mma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, GATHER, false>;
    make_blocks<Multiplier, typename Multiplier::T, typename Multiplier::Acc, true>(p, shared);
}
