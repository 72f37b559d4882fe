// Split K where a block makes one item after the other: consumers leave their sums and go on; whoever arrives last at a
// tile's ticket adds them up, in the order of the splits, and writes the tile (conv/gemm/split_k.cuh).
#pragma once
#include "base/hopper.cuh"
#include "conv/wgmma/items.cuh"

// What the consumers of a block, or of each of its warpgroups, are in turn: which threads share a tile's sums.
template <bool TURNS> struct Together {
    static constexpr int kThreads = TURNS ? 128 : 256;

    static DEVICE int thread() { return thread_number() % kThreads; }
    static DEVICE void wait() { synchronise(TURNS ? 2 + thread_number() / kThreads : 1, kThreads); }
};

// Whether all other blocks had arrived at the ticket before these threads, who all have written; then what the others
// wrote is known. `answer` is a place in shared memory for one number.
template <bool TURNS> DEVICE bool last_of_these(int* ticket, int all, int* answer) {
    using These = Together<TURNS>;
    These::wait(); // all have written, and have read the last answer
    if (These::thread() == 0) {
        __threadfence();
        *answer = atomicAdd(ticket, 1) == all - 1;
        __threadfence();
    }
    These::wait();
    return *answer != 0;
}

// Of a divided tile: leaves these threads' sums for the others, or takes those of all. Returns whether these write the
// tile.
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
