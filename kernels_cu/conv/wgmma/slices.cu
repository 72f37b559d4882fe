// Conv, and ConvTranspose by output phase, as implicit GEMM on Hopper's wgmma, fed by TMA in im2col mode, with output
// channels as M. For sm_90a only, from 32 output channels per group; x must be channels last (or is copied so first).
//
// conv/wgmma/run.cuh is the persistent, warp-specialised driver. Per slice of K (one tap x 128 bytes of channels), one
// TMA copy loads the weights, another the inputs, pixel by pixel of the output (conv/wgmma/slices.cuh). Every tap loads
// its inputs again, so by the planner's model L2 traffic bounds the kernel, not the tensor cores.
#include "conv/wgmma/run.cuh"
#include "conv/wgmma/slices.cuh"

// Shared memory: stages and their barriers, the epilogue's pieces, the answers of tickets.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int STAGES, bool TURNS>
DEVICE void conv_wgmma(const WgmmaParams<ConvParams<int, 3>>& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    using Tile = WgmmaTile<Arithmetic, BLOCK_M, BLOCK_N, TURNS>;
    using Feed = SliceFeed<Tile, STAGES>;
    run_wgmma<Tile, false>(p, &p.problem.taps, Feed(shared), shared + Feed::kBytes);
}

// The taps of all phases are in shared memory, after everything else.
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
