// Conv on Hopper's wgmma with strips of x that several taps share: each strip is loaded once for all taps along H,
// which saves L2 traffic compared to conv/wgmma/slices.cu. For stride 1 along W, also ConvTranspose of stride 1; 16-bit
// x may stay in NCHW.
//
// conv/wgmma/run.cuh is the persistent, warp-specialised driver, conv/wgmma/strips.cuh the loader. Bound by the tensor
// cores or by L2 traffic.
#include "conv/wgmma/run.cuh"
#include "conv/wgmma/strips.cuh"

// Shared memory: strips, stages of weights, the barriers of both, the epilogue's pieces, the answers of tickets.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int STAGES, int STRIP_BYTES, bool TURNS, int SLICE, bool ROWS>
DEVICE void conv_wgmma_strips(const WgmmaStripsParams& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    using Tile = StripTile<Arithmetic, BLOCK_M, BLOCK_N, TURNS, SLICE, ROWS>;
    using Feed = StripFeed<Tile, STAGES, STRIP_BYTES>;
    run_wgmma<Tile, false>(p, &p.problem.taps, Feed(shared, p.strips), shared + Feed::kBytes);
}
