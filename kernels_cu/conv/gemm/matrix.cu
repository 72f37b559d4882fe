// Conv of one tap on tensor cores, as the matrix product that it is (conv/gemm/matrix_product.cuh): w (M, C) times x,
// which is (C, pixels), image by image, or (pixels, C), in one launch.
//
// The weights of the correlation are w itself. Blocks of one tile of pixels are neighbours: they read the same inputs,
// and w, small, stays in the L2 cache.
#include "conv/gemm/implicit_gemm.cuh"
#include "conv/gemm/matrix_product.cuh"

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, bool INPUT_ROWS>
DEVICE void conv_matrix(const ConvParams<int, 3>& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    using Product = MatrixProduct<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, INPUT_ROWS, false>;
    make_tile<typename Product::T, typename Product::Acc>(Product(p.common, p.taps, shared), p.common, p.taps, shared);
}
