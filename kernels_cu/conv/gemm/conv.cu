// Conv as an implicit GEMM, for every rank from three on, stride, dilation, padding and group.
//
// A block makes one tile of output channels x pixels of one group (conv/gemm/implicit_gemm.cuh). Tiles run over M
// first: neighbouring blocks read the same activations, and the packed weights, small, stay in the L2 cache.
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/implicit_gemm.cuh"
#include "conv/gemm/mma.cuh"

template <class T, class Acc, class Multiplier, class Index, int NDIM>
DEVICE void convolve(const ConvParams<Index, NDIM>& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    make_tile<T, Acc>(Multiplier(p.common, p.taps, shared), p.common, p.taps, shared);
}

template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          bool UNIFORM_TAP>
DEVICE void conv_ffma(const ConvParams<Index, NDIM>& p) {
    convolve<T, Acc, Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, UNIFORM_TAP, false>>(p);
}

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, Gather GATHER>
DEVICE void conv_mma(const ConvParams<int, 3>& p) {
    using Multiplier = Mma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, GATHER, false>;
    convolve<typename Arithmetic::Element, typename Arithmetic::Acc, Multiplier>(p);
}
