// ConvTranspose whose kernel is its stride, without dilation, on tensor cores (conv/gemm/depth_to_space.cuh): weights
// (C, M, taps) and inputs are matrices that are read as they lie in memory (conv/gemm/matrix_product.cuh).
#include "conv/gemm/depth_to_space.cuh"
#include "conv/gemm/matrix_product.cuh"

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES>
DEVICE void conv_transpose_matrix(const DepthToSpaceParams<int, 3>& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    using Product = MatrixProduct<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, true, true>;
    make_blocks<Product, typename Product::T, typename Product::Acc>(p, shared);
}
