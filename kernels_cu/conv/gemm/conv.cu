// Conv as implicit GEMM, by FFMA or on tensor cores: the general kernels, for any rank (FFMA), stride, dilation,
// padding and group. One block computes one tile of output channels x pixels of one group; no im2col matrix is stored.
//
// M = output channels, N = output pixels, K = (tap, channel); see conv/problem.cuh. The tile loop is in
// conv/gemm/implicit_gemm.cuh, the main loops in ffma.cuh and mma.cuh of this folder, the epilogue in
// conv/epilogue.cuh. Tiles are numbered along M first: adjacent blocks read the same activations, and the packed
// weights stay in L2.
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/implicit_gemm.cuh"
#include "conv/gemm/mma.cuh"

// Runs a block's tile with the given main loop.
template <class T, class Acc, class Multiplier, class Index, int NDIM>
DEVICE void convolve(const ConvParams<Index, NDIM>& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    make_tile<T, Acc>(Multiplier(p.common, p.taps, shared), p.common, p.taps, shared);
}

// Float32, float64 and 16-bit elements by FFMA.
template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          bool UNIFORM_TAP>
DEVICE void conv_ffma(const ConvParams<Index, NDIM>& p) {
    convolve<T, Acc, Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, UNIFORM_TAP, false>>(p);
}

// Tensor cores (mma.sync).
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, Gather GATHER>
DEVICE void conv_mma(const ConvParams<int, 3>& p) {
    using Multiplier = Mma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, GATHER, false>;
    convolve<typename Arithmetic::Element, typename Arithmetic::Acc, Multiplier>(p);
}
