// Conv as conv/wgmma/slices.cu makes it, but with strips of x that several taps share (conv/wgmma/strips.cuh): fewer
// passes through the L2 cache, and x need not have its channels innermost.
#include "conv/wgmma/run.cuh"
#include "conv/wgmma/strips.cuh"

// Shared memory: the strips, the stages of weights, the barriers of both, pieces of y on their way, answers.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int STAGES, int STRIP_BYTES, bool TURNS, int SLICE, bool ROWS>
DEVICE void conv_wgmma_strips(const WgmmaStripsParams& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    using Tile = StripTile<Arithmetic, BLOCK_M, BLOCK_N, TURNS, SLICE, ROWS>;
    using Feed = StripFeed<Tile, STAGES, STRIP_BYTES>;
    run_wgmma<Tile, false>(p, &p.problem.taps, Feed(shared, p.strips), shared + Feed::kBytes);
}
