// Block-level driver of the wgmma kernels: persistent, warp-specialised, fed by TMA.
//
// A block processes one work item after another (conv/wgmma/items.cuh). Of its three warpgroups, one thread of the
// third is the producer: it loads slices of K into a ring of stages. The other two are consumers: they multiply and
// write tiles, either cooperatively (half of the output channels each) or in turns ("ping-pong": one multiplies while
// the other writes).
//
//     producer:    wait empty[s] -> TMA into stage s (arrives at full[s])
//     consumers:   wait full[s] -> wgmma from stage s -> arrive at empty[s]; after the last slice: epilogue
//
// The producer's warpgroup gives up registers (setmaxnreg 40), and the consumers take them (232). The epilogue is that
// of all implicit-GEMM kernels (conv/epilogue.cuh, conv/wgmma/outputs.cuh).
//
// A Feed, which owns the rings, provides
//
//     init(readers)                  initialises the barriers, by one thread, first of all
//     fetch(p, phases)               the producer: loads everything for the block's items
//     multiply(tile, item, speaks)   starts the products of an item; on return all stages but the last have been read
//     finish(item, speaks)           releases the last stage
//     skip(item)                     advances past an item of the other warpgroup
#pragma once
#include "conv/wgmma/items.cuh"
#include "conv/wgmma/outputs.cuh"
#include "conv/wgmma/split.cuh"
#include "conv/wgmma/tiles.cuh"

// The order of two consumer warpgroups that take turns. A barrier's parity distinguishes successive rounds of a ring
// only, so a warpgroup may wait for its first slice only after the other one has seen its last.
template <bool TURNS> struct Turns {
    static constexpr int kNumber = 4; // named barrier of the first warpgroup; the second one's is next

    static DEVICE bool mine(int item) { return !TURNS || item % 2 == int(threadIdx.x / 128); }
    static DEVICE void begin(int item) {
        if (TURNS && item > 0) synchronise(kNumber + threadIdx.x / 128, 256);
    }
    static DEVICE void end(bool more) {
        if (TURNS && more) arrive_at(kNumber + (threadIdx.x / 128 ^ 1), 256);
    }
};

// The consumers: multiply and write every item of this block.
template <class Tile, bool PHASED, class Params, class Feed>
DEVICE void make_tiles(const Params& p, const Taps<int, 3>* phases, Feed feed, void* pieces, void* answers) {
    using Order = Turns<Tile::kTurns>;
    const bool speaks = threadIdx.x % 32 == 0; // arrives for its warp, whose lanes all wait for the products
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
        __syncwarp(); // lanes have repaired different outputs; wgmma needs converged warps
    }
}

// The whole kernel. `rest`: shared memory after the feed's, for the epilogue's pieces, then the answers of tickets.
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
