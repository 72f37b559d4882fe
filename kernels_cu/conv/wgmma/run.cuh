// What the blocks of convolution by wgmma do, however slices of K come to them.
//
// A block stays on its multiprocessor and makes one tile after the other. Of its three warpgroups one fetches; two
// multiply and write tiles (conv/wgmma/tiles.cuh): together, a half of the output channels each, or in turns, so that
// one multiplies while the other writes. Which tiles in which order is in conv/wgmma/items.cuh; the epilogue is that of
// all kernels of the implicit GEMM.
//
// Of a Feed, which has the rings, the block needs
//
//     init(readers)                  by one thread, before all others
//     fetch(p, phases)               by one thread: everything that the block's items need
//     multiply(tile, item, speaks)   starts the products of an item; all but the last stage have been read
//     finish(item, speaks)           the last one too
//     skip(item)                     another warpgroup's item
#pragma once
#include "conv/wgmma/items.cuh"
#include "conv/wgmma/outputs.cuh"
#include "conv/wgmma/split.cuh"
#include "conv/wgmma/tiles.cuh"

// The order of two warpgroups that make a block's items in turns. A barrier's parity tells one round of a ring from the
// next, no more: whoever makes an item looks for its first slice when the one before has found its last.
template <bool TURNS> struct Turns {
    static constexpr int kNumber = 4; // of the first warpgroup's barrier

    static DEVICE bool mine(int item) { return !TURNS || item % 2 == int(threadIdx.x / 128); }
    static DEVICE void begin(int item) {
        if (TURNS && item > 0) synchronise(kNumber + threadIdx.x / 128, 256);
    }
    static DEVICE void end(bool more) {
        if (TURNS && more) arrive_at(kNumber + (threadIdx.x / 128 ^ 1), 256);
    }
};

// What the two warpgroups that multiply do.
template <class Tile, bool PHASED, class Params, class Feed>
DEVICE void make_tiles(const Params& p, const Taps<int, 3>* phases, Feed feed, void* pieces, void* answers) {
    using Order = Turns<Tile::kTurns>;
    const bool speaks = threadIdx.x % 32 == 0; // for its warp, which waits for its own products
    int* answer = static_cast<int*>(answers) + (Tile::kTurns ? threadIdx.x / 128 * 2 : 0);
    Tile tile(p);
    for (int number = block_number(), turn = 0; number < p.items; number += gridDim.x, ++turn) {
        const Item item = item_of(p, phases, number);
        if (!Order::mine(turn)) {
            feed.skip(item);
            continue;
        }
        clear(tile.sums);
        tile.settle();
        Order::begin(turn);
        feed.multiply(tile, item, speaks);
        Order::end(number + int(gridDim.x) < p.items);
        products_wait<0>();
        tile.settle();
        feed.finish(item, speaks);
        if (!gather_splits(p.splits, item, tile, answer)) continue;
        tile.stand_at(p, item);
        const Epilogue<Tile, typename Tile::T, typename Tile::Acc, int, 3, PHASED> epilogue{
            p.problem.common, phases[item.phase],          tile,
            item.group,       item.m_tile * Tile::kBlockM, item.n_tile * Tile::kBlockN};
        if (write_tile(tile, epilogue, pieces)) epilogue.repair();
        __syncwarp(); // lanes have made different outputs again; products take whole warps
    }
}

// The whole kernel. `rest` is shared memory behind the feed's: pieces of y on their way, then the tickets' answers.
template <class Tile, bool PHASED, class Params, class Feed>
DEVICE void run_wgmma(const Params& p, const Taps<int, 3>* phases, Feed feed, unsigned char* rest) {
    if (threadIdx.x == 0) feed.init(Tile::kTurns ? 4 : 8);
    if (threadIdx.x == 256) {
        prefetch_map(p.x_map);
        prefetch_map(p.w_map);
    }
    __syncthreads();
    if (threadIdx.x / 128 == 2) {
        give_registers<40>();
        if (threadIdx.x == 256) feed.fetch(p, phases);
    } else {
        take_registers<232>();
        make_tiles<Tile, PHASED>(p, phases, feed, rest, rest + Tile::kPieceBytes);
    }
}
