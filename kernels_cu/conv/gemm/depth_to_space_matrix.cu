// ConvTranspose whose kernel equals its stride, without dilation, as one plain GEMM on tensor cores, rearranged (depth
// to space, conv/gemm/depth_to_space.cuh). Both operands are matrices in memory: weights (C, M, taps) and the pixels of
// x are read in place, without packing (conv/gemm/matrix_product.cuh).
#include "conv/gemm/depth_to_space.cuh"
#include "conv/gemm/matrix_product.cuh"

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES>
DEVICE void conv_transpose_matrix(const DepthToSpaceParams<int, 3>& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    using Product = MatrixProduct<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, true, true>;
    make_blocks<Product, typename Product::T, typename Product::Acc>(p, shared);
}
