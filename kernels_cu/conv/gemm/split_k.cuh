// Split-K: several blocks share one tile; each sums its own slices of K, and the partial sums are added afterwards.
// Usually only tiles of the last, incomplete wave are divided; tiles that fill all multiprocessors are computed whole,
// by one block each. Calls whose bits must not depend on the batch divide all tiles alike.
//
//     block of a divided tile:  sums over its slices -> workspace (L2) -> ticket
//     last block to arrive:     workspace -> sums, in the order of the splits -> epilogue
//
// Partial sums are stored in the registers' order, 16 bytes of a thread next to those of its neighbour. The same thread
// of another block adds them, so no index arithmetic on outputs is needed. They are added in the order of the splits,
// not of arrival, so results are deterministic. The price is writing and reading the partial sums, mostly in L2.
//
// The last block is found by the tile's ticket (base/tickets.cuh), which an earlier launch has set to zero. If there is
// no earlier launch (weights already packed), a second launch adds the partial sums, with one block per divided tile.
#pragma once
#include "conv/gemm/implicit_gemm.cuh"
#include "base/tickets.cuh"

// How a launch divides its tiles.
struct Splits {
    enum Part { ALL, SUMS, TOTALS }; // what a launch does: everything, partial sums only, or the final additions only

    void* workspace;    // the tickets, then the sums as [divided tile][split][16-byte vector][thread]
    Divider<int> count; // splits per divided tile
    int whole;          // whole tiles, numbered before the divided ones
    int ticket_bytes;   // bytes of all tickets, a multiple of 16
    int part;           // a Part
};

// The partial sums of one divided tile in the workspace. SUMS: sums per thread.
template <class Acc, int SUMS, int THREADS> struct Parts {
    static constexpr int kVector = 16 / sizeof(Acc), kVectors = SUMS / kVector;
    // Vectors that a thread has in flight, of one or several splits: the block reads 32 KiB per L2 latency.
    static constexpr int kMost = 2048 / THREADS, kAtOnce = kVectors < kMost ? kVectors : kMost;
    static_assert(kVectors % kAtOnce == 0);

    Acc* first; // this thread's sums of the tile's first split

    DEVICE Parts(const Splits& splits, int tile) : Parts(splits, tile, thread_number()) {}
    // For tiles whose threads have their own numbering.
    DEVICE Parts(const Splits& splits, int tile, int thread)
        : first(reinterpret_cast<Acc*>(static_cast<char*>(splits.workspace) + splits.ticket_bytes)
                + (static_cast<long long>(tile) * splits.count.divisor * kVectors * THREADS + thread) * kVector) {}
    DEVICE Acc* of(int split) const { return first + static_cast<long long>(split) * (SUMS * THREADS); }
    // Stores this thread's sums as those of a split.
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
    // Adds this thread's sums of all splits, in order.
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

// Returns the tile of this block, and which split of it.
DEVICE int split_tile(const Splits& splits, int& split) {
    split = 0;
    if (splits.part == Splits::TOTALS) return splits.whole + block_number();
    const int number = block_number() - splits.whole;
    return splits.whole + (number < 0 ? number : splits.count.split(number, split));
}

// Sums over this block's share of the slices of K.
template <class Multiplier> DEVICE void accumulate_split(Multiplier& multiplier, int split, int splits) {
    const int slices = multiplier.slices(), each = (slices + splits - 1) / splits;
    const int before = each * split, left = slices - before;
    multiplier.skip(before);
    accumulate(multiplier, left < each ? left : each);
}

// Computes a tile's sums, or this block's part of them. Returns whether this block now holds the complete sums; then
// group, m_tile and n_tile are the tile's, and the multiplier is set to it. `position` decodes a tile's number;
// adjacent tiles are `columns` columns apart.
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

// Like `make_tile` (conv/gemm/implicit_gemm.cuh), for tiles that may be divided.
template <class T, class Acc, bool PHASED, class Multiplier, class Index, int NDIM, class Position>
DEVICE void make_split_tile(Multiplier& multiplier, const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps,
                            const Splits& splits, void* shared, Position&& position) {
    Index group, m_tile, n_tile;
    if (!make_sums<Acc>(multiplier, splits, Index(Multiplier::kBlockN), group, m_tile, n_tile, position)) return;
    const Epilogue<Multiplier, T, Acc, Index, NDIM, PHASED> epilogue{
        p, taps, multiplier, group, m_tile * Multiplier::kBlockM, n_tile * Multiplier::kBlockN};
    if (epilogue.write(shared)) epilogue.repair();
}
