// Split K: several blocks make one tile, each from its own slices of K, and the sums are added up afterwards. Tiles
// that fill all multiprocessors, as often as they do, stay whole: one block makes each, and only the rest is divided.
//
// Sums lie in the workspace as threads have them in registers, 16 bytes of a thread next to those of its neighbour: who
// adds them up is the same thread of another block, whatever it is that the multiplier lets it make. They are added in
// the order of the splits: results do not depend on which block is the last.
//
// The last block of a tile to arrive adds its sums up. It knows that it is the last by the tile's ticket
// (base/tickets.cuh), which an earlier launch has set to zero. Without an earlier launch there are no tickets: then a
// second launch, with one block for each divided tile, adds up what the first one left.
#pragma once
#include "conv/gemm/implicit_gemm.cuh"
#include "base/tickets.cuh"

struct Splits {
    enum Part { ALL, SUMS, TOTALS }; // what a launch makes

    void* workspace;    // the tickets, then the sums: divided tile, split, 16 bytes, thread
    Divider<int> count; // splits of a divided tile
    int whole;          // tiles before these
    int ticket_bytes;   // of all tickets, a multiple of 16
    int part;
};

// One divided tile's sums in the workspace.
template <class Acc, int SUMS, int THREADS> struct Parts {
    static constexpr int kVector = 16 / sizeof(Acc), kVectors = SUMS / kVector;
    // Of a thread, under way at once, for a block to read 32 KiB while the L2 cache takes to answer: of one split or of
    // several.
    static constexpr int kMost = 2048 / THREADS, kAtOnce = kVectors < kMost ? kVectors : kMost;
    static_assert(kVectors % kAtOnce == 0);

    Acc* first; // this thread's, of the tile's first split

    DEVICE Parts(const Splits& splits, int tile) : Parts(splits, tile, thread_number()) {}
    // Of a block's threads that make a tile together, with their own numbers.
    DEVICE Parts(const Splits& splits, int tile, int thread)
        : first(reinterpret_cast<Acc*>(static_cast<char*>(splits.workspace) + splits.ticket_bytes)
                + (static_cast<long long>(tile) * splits.count.divisor * kVectors * THREADS + thread) * kVector) {}
    DEVICE Acc* of(int split) const { return first + static_cast<long long>(split) * (SUMS * THREADS); }
    DEVICE void leave(int split, const Acc (&sums)[SUMS]) const {
        Acc* target = of(split);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            Acc part[kVector];
#pragma unroll
            for (int k = 0; k < kVector; ++k) part[k] = sums[i * kVector + k];
            store_l2(target + i * (THREADS * kVector), part);
        }
    }
    DEVICE void add_up(int splits, Acc (&sums)[SUMS]) const {
        clear(sums);
#pragma unroll(kMost / kAtOnce)
        for (int split = 0; split < splits; ++split) {
            const Acc* source = of(split);
#pragma unroll
            for (int begin = 0; begin < kVectors; begin += kAtOnce) {
                Acc parts[kAtOnce][kVector];
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) load_l2(source + (begin + i) * (THREADS * kVector), parts[i]);
#pragma unroll
                for (int i = 0; i < kAtOnce * kVector; ++i)
                    sums[begin * kVector + i] += parts[i / kVector][i % kVector];
            }
        }
    }
};

// The tile that a block is at, and which of its splits.
DEVICE int split_tile(const Splits& splits, int& split) {
    split = 0;
    if (splits.part == Splits::TOTALS) return splits.whole + block_number();
    const int number = block_number() - splits.whole;
    return splits.whole + (number < 0 ? number : splits.count.split(number, split));
}

// Sums over this block's slices of K: of one of the splits.
template <class Multiplier> DEVICE void accumulate_split(Multiplier& multiplier, int split, int splits) {
    const int slices = multiplier.slices(), each = (slices + splits - 1) / splits;
    const int before = each * split, left = slices - before;
    multiplier.skip(before);
    accumulate(multiplier, left < each ? left : each);
}

// Makes the sums of a tile, or this block's part of them. Returns whether this block then has all of them; the
// multiplier stands at the tile, and these are the tile's numbers. `position` gets the numbers of a tile, which begins
// so many `columns` after the one before it.
template <class Acc, class Multiplier, class Index, class Position>
DEVICE bool make_sums(Multiplier& multiplier, const Splits& splits, Index columns, Index& group, Index& m_tile,
                      Index& n_tile, Position&& position) {
    constexpr int kSums = sizeof(multiplier.sums) / sizeof(Acc);
    Acc(&sums)[kSums] = reinterpret_cast<Acc(&)[kSums]>(multiplier.sums);
    const int count = int(splits.count.divisor);
    int split;
    if (splits.part != Splits::TOTALS) {
        const int at = split_tile(splits, split);
        position(at, group, m_tile, n_tile);
        multiplier.stand(group, m_tile * Multiplier::kBlockM);
        multiplier.start(n_tile * columns);
        accumulate_split(multiplier, split, at < splits.whole ? 1 : count);
    }
    const int tile = split_tile(splits, split), divided = tile - splits.whole;
    if (divided >= 0) {
        const Parts<Acc, kSums, Multiplier::kThreads> parts(splits, divided);
        if (splits.part != Splits::TOTALS) {
            parts.leave(split, sums);
            if (splits.part == Splits::SUMS || !last_to_arrive(static_cast<int*>(splits.workspace) + divided, count))
                return false;
        }
        parts.add_up(count, sums);
    }
    position(tile, group, m_tile, n_tile);
    multiplier.stand(group, m_tile * Multiplier::kBlockM);
    return true;
}

// Makes a tile as `make_tile` does, or this block's part of it. `position` gets the tile's number.
template <class T, class Acc, bool PHASED, class Multiplier, class Index, int NDIM, class Position>
DEVICE void make_split_tile(Multiplier& multiplier, const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps,
                            const Splits& splits, void* shared, Position&& position) {
    Index group, m_tile, n_tile;
    if (!make_sums<Acc>(multiplier, splits, Index(Multiplier::kBlockN), group, m_tile, n_tile, position)) return;
    const Epilogue<Multiplier, T, Acc, Index, NDIM, PHASED> epilogue{
        p, taps, multiplier, group, m_tile * Multiplier::kBlockM, n_tile * Multiplier::kBlockN};
    if (epilogue.write(shared)) epilogue.repair();
}
