// Split-K for persistent blocks: consumers store the partial sums of a divided tile and go on with their next item.
// Whoever arrives last at the tile's ticket adds all of them, in the order of the splits, and writes the tile
// (conv/gemm/split_k.cuh).
#pragma once
#include "base/hopper.cuh"
#include "conv/wgmma/items.cuh"

// The threads that share a tile's sums: both consumer warpgroups, or, if these take turns, one of them.
template <bool TURNS> struct Together {
    static constexpr int kThreads = TURNS ? 128 : 256;

    static DEVICE int thread() { return thread_number() % kThreads; }
    static DEVICE void wait() { synchronise(TURNS ? 2 + thread_number() / kThreads : 1, kThreads); }
};

// Like last_to_arrive (base/tickets.cuh), for these threads only. Returns whether all other blocks have arrived before;
// their writes are then visible. `answer`: an int in shared memory.
template <bool TURNS> DEVICE bool last_of_these(int* ticket, int all, int* answer) {
    using These = Together<TURNS>;
    These::wait(); // all have written their sums, and have read the previous answer
    if (These::thread() == 0) {
        __threadfence();
        *answer = atomicAdd(ticket, 1) == all - 1;
        __threadfence();
    }
    These::wait();
    return *answer != 0;
}

// For a divided tile: stores this item's partial sums, or adds those of all splits. Returns whether these threads now
// hold the complete sums and write the tile.
template <class Tile> DEVICE bool gather_splits(const Splits& splits, const Item& item, Tile& tile, int* answer) {
    const int divided = item.tile - splits.whole;
    if (divided < 0) return true;
    using These = Together<Tile::kTurns>;
    constexpr int kSums = sizeof(tile.sums) / sizeof(float);
    float (&sums)[kSums] = reinterpret_cast<float (&)[kSums]>(tile.sums);
    const int count = int(splits.count.divisor);
    const Parts<float, kSums, These::kThreads> parts(splits, divided, These::thread());
    if (splits.part != Splits::TOTALS) {
        parts.leave(item.split, sums);
        if (splits.part == Splits::SUMS) return false;
        if (!last_of_these<Tile::kTurns>(static_cast<int*>(splits.workspace) + divided, count, answer)) return false;
    }
    parts.add_up(count, sums);
    return true;
}
