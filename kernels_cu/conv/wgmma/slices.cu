// Conv, and ConvTranspose by output phase, as an implicit GEMM by Hopper's wgmma, fed by TMA; M = output channels.
//
// What blocks do is in conv/wgmma/run.cuh. One copy brings a slice's weights, another its inputs, pixel after pixel of
// the output, into a ring of stages (conv/wgmma/slices.cuh, conv/wgmma/ring.cuh).
#include "conv/wgmma/run.cuh"
#include "conv/wgmma/slices.cuh"

// Shared memory: the stages and their barriers, pieces of y on their way, the tickets' answers.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int STAGES, bool TURNS>
DEVICE void conv_wgmma(const WgmmaParams<ConvParams<int, 3>>& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    using Tile = WgmmaTile<Arithmetic, BLOCK_M, BLOCK_N, TURNS>;
    using Feed = SliceFeed<Tile, STAGES>;
    run_wgmma<Tile, false>(p, &p.problem.taps, Feed(shared), shared + Feed::kBytes);
}

// The taps of all phases stand in shared memory behind everything else.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int STAGES, bool TURNS>
DEVICE void conv_transpose_wgmma(const WgmmaParams<ConvTransposeParams<int, 3>>& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    using Tile = WgmmaTile<Arithmetic, BLOCK_M, BLOCK_N, TURNS>;
    using Feed = SliceFeed<Tile, STAGES>;
    Taps<int, 3>* phases =
        reinterpret_cast<Taps<int, 3>*>(shared + Feed::kBytes + Tile::kPieceBytes + Tile::kAnswerBytes);
    if (threadIdx.x < p.problem.phases.divisor) fill_taps_of(p.problem, int(threadIdx.x), phases[threadIdx.x]);
    run_wgmma<Tile, true>(p, phases, Feed(shared), shared + Feed::kBytes);
}
