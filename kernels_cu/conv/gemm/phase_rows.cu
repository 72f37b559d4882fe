// ConvTranspose with strides and few output channels, as one GEMM over all phases: M = (output channel, phase). One
// phase alone would leave most of a tile empty; here the tile is full, and each input is loaded once for all phases.
//
// The main loops are ffma.cuh and mma.cuh, the epilogue is conv/gemm/depth_to_space.cuh. Phases that have a tap fewer
// than others multiply a zero weight for it. If tiles are few, blocks share a tile's K (split-K,
// conv/gemm/split_k.cuh).
#include "conv/gemm/depth_to_space.cuh"
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/mma.cuh"
#include "conv/gemm/split_k.cuh"

struct PhaseRowsParams : DepthToSpaceParams<int, 3> { Splits splits; };

// One block: sums (or its split of them), then the epilogue in the last block of the tile.
template <class Multiplier, class T, class Acc> DEVICE void make_phases(const PhaseRowsParams& p,
                                                                        unsigned char* shared) {
    using Writer = DepthToSpace<Multiplier, T, Acc, int, 3, true>;
    Multiplier multiplier(p.common, p.taps, shared);
    int group, m_tile, n_tile;
    const auto position = [&](int tile, int& group, int& m_tile, int& n_tile) {
        tile_of(p.common, tile, group, m_tile, n_tile);
    };
    if (!make_sums<Acc>(multiplier, p.splits, Multiplier::kBlockN, group, m_tile, n_tile, position)) return;
    const Writer writer = writer_at<Writer, Multiplier>(p, shared, group, m_tile, n_tile);
    writer.fill();
    writer.write(multiplier, shared);
}

template <class T, class Acc, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N, bool UNIFORM_TAP>
DEVICE void conv_transpose_phase_rows_ffma(const PhaseRowsParams& p) {
    extern __shared__ __align__(16) unsigned char shared[];
    using Multiplier = Ffma<T, Acc, int, 3, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, UNIFORM_TAP, false>;
    make_phases<Multiplier, T, Acc>(p, shared);
}

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, Gather GATHER>
DEVICE void conv_transpose_phase_rows_mma(const PhaseRowsParams& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    using Multiplier = Mma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, GATHER, false>;
    make_phases<Multiplier, typename Multiplier::T, typename Multiplier::Acc>(p, shared);
}
