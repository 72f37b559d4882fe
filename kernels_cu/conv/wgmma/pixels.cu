// Conv of float32 in TF32, or in 3xTF32, by Hopper's wgmma: x is fetched by TMA as it is and comes to the tensor cores
// through registers, with pixels for rows of products (conv/wgmma/pixels.cuh); weights come rounded, or in two parts.
#include "conv/wgmma/pixels.cuh"
#include "conv/wgmma/run.cuh"

// Shared memory: the strips, the stages of weights, the barriers of both, the tickets' answers.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int STAGES, int STRIP_BYTES, bool ROWS>
DEVICE void conv_wgmma_pixels(const WgmmaPixelsParams& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    using Tile = PixelTile<Arithmetic, BLOCK_M, BLOCK_N, ROWS>;
    using Feed = PixelFeed<Tile, STAGES, STRIP_BYTES>;
    run_wgmma<Tile, false>(p, &p.problem.taps, Feed(shared, p), shared + Feed::kBytes);
}
