// Conv, and ConvTranspose by output phase, as an implicit GEMM by Hopper's wgmma, fed by TMA; M = output channels.
//
// A block stays on its multiprocessor and makes one tile after the other. Of its three warpgroups one fetches slices of K into
// a ring of stages (wgmma_load.cuh, wgmma_ring.cuh); two multiply them and write tiles (wgmma_tile.cuh): together, a half of the
// output channels each, or in turns, so that one multiplies while the other writes. Which tiles in which order is in
// wgmma_items.cuh; the epilogue is that of all kernels of the implicit GEMM.
#include "wgmma_items.cuh"
#include "wgmma_load.cuh"
#include "wgmma_outputs.cuh"
#include "wgmma_ring.cuh"
#include "wgmma_split.cuh"
#include "wgmma_tile.cuh"

// The order of two warpgroups that make a block's items in turns. A barrier's parity tells one round of the ring from the next,
// no more: whoever makes an item looks for its first slice when the one before has found its last.
template <bool TURNS> struct Turns {
    static constexpr int kNumber = 4;    // of the first warpgroup's barrier

    static __device__ __forceinline__ bool mine(int item) { return !TURNS || item % 2 == int(threadIdx.x / 128); }
    static __device__ __forceinline__ void begin(int item)
    {
        if (TURNS && item > 0) synchronise(kNumber + threadIdx.x / 128, 256);
    }
    static __device__ __forceinline__ void end(bool more)
    {
        if (TURNS && more) arrive_at(kNumber + (threadIdx.x / 128 ^ 1), 256);
    }
};

// What the two warpgroups that multiply do.
template <class Tile, bool PHASED, class Problem, class Stages>
__device__ __forceinline__ void make_tiles(const WgmmaParams<Problem>& p, const Taps<int, 3>* phases, Stages ring, void* pieces, void* answers)
{
    const Correlation<int, 3>& common = p.problem.common;
    using Order = Turns<Tile::kTurns>;
    const bool speaks = threadIdx.x % 32 == 0;     // for its warp, which waits for its own products
    int* answer = static_cast<int*>(answers) + (Tile::kTurns ? threadIdx.x / 128 * 2 : 0);
    Tile tile(common, p.loading);
    for (int number = block_number(), turn = 0; number < p.items; number += gridDim.x, ++turn) {
        const Item item = item_of(p, phases, number);
        if (!Order::mine(turn)) {
            ring.skip(item.slices);
            continue;
        }
        tile.clear();
        tile.settle();
        Order::begin(turn);
        for (int done = 0; done < item.slices; ++done) {
            ring.wait_full();
            products_begin();
            tile.multiply(ring.address());
            products_commit();
            products_wait<1>();
            if (speaks && done > 0) barrier_arrive(ring.empty_before());
            ring.next();
        }
        Order::end(number + int(gridDim.x) < p.items);
        products_wait<0>();
        tile.settle();
        if (speaks && item.slices > 0) barrier_arrive(ring.empty_before());
        if (!gather_splits(p.splits, item, tile, answer)) continue;
        tile.group = item.group;
        const Epilogue<Tile, typename Tile::T, typename Tile::Acc, int, 3, PHASED> epilogue{
            common, phases[item.phase], tile, item.group, item.m_tile * Tile::kBlockM, item.n_tile * Tile::kBlockN};
        if (write_tile(tile, epilogue, pieces)) epilogue.repair();
        __syncwarp();            // lanes have made different outputs again; products take whole warps
    }
}

// The whole kernel. Shared memory: the stages, pieces of y on their way, the ring's barriers, the tickets' answers.
template <class Tile, int STAGES, bool PHASED, class Problem>
__device__ __forceinline__ void run_wgmma(const WgmmaParams<Problem>& p, const Taps<int, 3>* phases, unsigned char* shared)
{
    using Stages = Ring<STAGES, Tile::kStageBytes>;
    unsigned char* const pieces = shared + Stages::kBytes;
    unsigned char* const barriers = pieces + Tile::kPieceBytes;
    const Stages ring(shared, barriers);
    if (threadIdx.x == 0) ring.init(Tile::kTurns ? 4 : 8);
    __syncthreads();
    if (threadIdx.x / 128 == 2) {
        give_registers<40>();
        if (threadIdx.x == 256) fetch_slices<Tile>(p, phases, ring);
    } else {
        take_registers<232>();
        make_tiles<Tile, PHASED>(p, phases, ring, pieces, barriers + Stages::kBarrierBytes);
    }
}

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int STAGES, bool TURNS>
__device__ __forceinline__ void conv_wgmma(const WgmmaParams<ConvParams<int, 3>>& p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    run_wgmma<WgmmaTile<Arithmetic, BLOCK_M, BLOCK_N, TURNS>, STAGES, false>(p, &p.problem.taps, shared);
}

// The taps of all phases stand in shared memory behind everything else.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int STAGES, bool TURNS>
__device__ __forceinline__ void conv_transpose_wgmma(const WgmmaParams<ConvTransposeParams<int, 3>>& p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    using Tile = WgmmaTile<Arithmetic, BLOCK_M, BLOCK_N, TURNS>;
    using Stages = Ring<STAGES, Tile::kStageBytes>;
    constexpr int kBefore = Stages::kBytes + Tile::kPieceBytes + Stages::kBarrierBytes + Tile::kAnswerBytes;
    Taps<int, 3>* phases = reinterpret_cast<Taps<int, 3>*>(shared + kBefore);
    if (threadIdx.x < p.problem.phases.divisor) fill_taps_of(p.problem, int(threadIdx.x), phases[threadIdx.x]);
    run_wgmma<Tile, STAGES, true>(p, phases, shared);
}
