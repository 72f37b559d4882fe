// Conv in float32 (TF32 or 3xTF32) on Hopper's wgmma with pixels as M: operand A, the pixels, comes from registers,
// where it is rounded or split. So x needs no converted copy: TMA loads strips of x as it is (conv/wgmma/pixels.cuh).
// Also ConvTranspose of stride 1. Weights are packed, already rounded or in two parts.
//
// conv/wgmma/run.cuh is the persistent, warp-specialised driver. Bound by the tensor cores, by reading pixels and
// weights in shared memory, or by L2 traffic.
#include "conv/wgmma/pixels.cuh"
#include "conv/wgmma/run.cuh"

// Shared memory: strips, stages of weights, the barriers of both, the answers of tickets.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int STAGES, int STRIP_BYTES, bool ROWS>
DEVICE void conv_wgmma_pixels(const WgmmaPixelsParams& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    using Tile = PixelTile<Arithmetic, BLOCK_M, BLOCK_N, ROWS>;
    using Feed = PixelFeed<Tile, STAGES, STRIP_BYTES>;
    run_wgmma<Tile, false>(p, &p.problem.taps, Feed(shared, p), shared + Feed::kBytes);
}
