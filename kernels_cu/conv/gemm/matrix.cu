// Conv of kernel size 1 (stride 1, no padding) as one plain GEMM on tensor cores: w (M, C) times x, which is (C,
// pixels) per image (NCHW) or (pixels, C) (NHWC). Both are read in place, without packing
// (conv/gemm/matrix_product.cuh).
//
// Correlation::weights is w itself. Adjacent blocks share a tile of pixels: they read the same inputs, and w stays in
// L2. Bound by the tensor cores, or by memory with few channels or filters.
#include "conv/gemm/implicit_gemm.cuh"
#include "conv/gemm/matrix_product.cuh"

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, bool INPUT_ROWS>
DEVICE void conv_matrix(const ConvParams<int, 3>& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    using Product = MatrixProduct<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, INPUT_ROWS, false>;
    make_tile<typename Product::T, typename Product::Acc>(Product(p.common, p.taps, shared), p.common, p.taps, shared);
}
