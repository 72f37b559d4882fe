// Work items of the persistent wgmma kernels: an item is a whole tile, or one split of a divided tile (split-K). It
// covers a range of slices of K.
//
// Tiles are numbered along M first, then by phase (those with the most taps first), then along N, then by group. So
// blocks that run at the same time read the same inputs. The splits of a tile are successive, after all whole tiles.
#pragma once
#include "conv/wgmma/params.cuh"

struct Item {
    int group, m_tile, n_tile, phase;
    int tile;                // the tile's number in the launch
    int split;               // which split of it
    int first_slice, slices; // its range of slices of K (of strips, in the strip kernels)
};

// Passes over each slice: 1, or 3 if numbers have two parts (3xTF32).
DEVICE int products(const Loading& loading) { return loading.parts == 2 ? 3 : 1; }

// All slices of K of a tile; in the strip kernels all strips, each of which serves several taps.
template <class Problem> DEVICE int all_slices(const WgmmaParams<Problem>& p, const Taps<int, 3>& taps) {
    return p.problem.common.by_channel.quotient(taps.rows) * int(p.loading.channel_slices.divisor)
         * products(p.loading);
}
template <class AnyStrips> DEVICE int all_slices(const StripsParams<AnyStrips>& p, const Taps<int, 3>&) {
    const Divider<int>(&taps)[3] = p.strips.taps;
    const int strips = int(taps[0].divisor * taps[1].divisor * taps[2].divisor * p.loading.channel_slices.divisor);
    return AnyStrips::kApart ? strips * products(p.loading) : strips;
}

// Decodes a tile's number into group, position along M and N, and phase.
DEVICE void place(const ConvParams<int, 3>& p, int tile, Item& item) {
    item.group = p.common.n_tiles.split(p.common.m_tiles.split(tile, item.m_tile), item.n_tile);
    item.phase = 0;
}
DEVICE void place(const ConvTransposeParams<int, 3>& p, int tile, Item& item) {
    item.phase = phase_tile(p, tile, item.group, item.m_tile, item.n_tile);
}

// Decodes an item's number. A launch that only adds partial sums (Splits::TOTALS) has one item per divided tile, with
// no slices.
template <class Params> DEVICE Item item_of(const Params& p, const Taps<int, 3>* phases, int number) {
    Item item;
    item.split = 0;
    const bool totals = p.splits.part == Splits::TOTALS;
    const int past = totals ? number : number - p.splits.whole; // the item's number, not counting whole tiles
    const bool divided = past >= 0;
    item.tile = p.splits.whole + (totals || !divided ? past : p.splits.count.split(past, item.split));
    place(p.problem, item.tile, item);
    const int all = totals ? 0 : all_slices(p, phases[item.phase]);
    const int count = divided ? int(p.splits.count.divisor) : 1,
              each = divided ? p.splits.count.quotient(all + count - 1) : all;
    item.first_slice = each * item.split;
    item.slices = max(0, min(each, all - item.first_slice));
    return item;
}

// The output of a tile's first column, where tiles are boxes along the axes of y (strip kernels).
template <class AnyStrips> DEVICE Pixel<int, 3> first_column(const AnyStrips& strips, int n_tile) {
    Pixel<int, 3> found;
    found.n = unravel<3>(n_tile, strips.extent, found.q);
    found.q[1] *= strips.rows;
    found.q[2] *= strips.columns;
    found.exists = true;
    return found;
}

// The output (h, w) further on than `first`; it may not exist.
DEVICE Pixel<int, 3> further(const Correlation<int, 3>& p, Pixel<int, 3> first, int h, int w) {
    first.q[1] += h;
    first.q[2] += w;
    first.exists = first.q[1] < int(p.extent[1].divisor) && first.q[2] < int(p.extent[2].divisor);
    return first;
}

// Walks over slices of K: tap, first channel, product. With APART, each slice of two-part numbers (3xTF32) comes three
// times, small parts first, so that the sums lose as little as possible; otherwise once, for all products.
template <int BLOCK_K, bool APART = true> struct SlicePlace {
    int tap[3], channel, product;

    // Goes to slice number `slice`.
    DEVICE void first(const Loading& loading, const Divider<int> (&taps)[3], int slice) {
        const int times = APART ? products(loading) : 1, all = int(loading.channel_slices.divisor);
        const int place = slice / times, number = place / all;
        product = slice - place * times;
        channel = (place - number * all) * BLOCK_K;
        unravel<3>(number, taps, tap);
    }
    // Goes to the next slice.
    DEVICE void advance(const Loading& loading, const Divider<int> (&taps)[3]) {
        if (APART && ++product < products(loading)) return;
        product = 0;
        channel += BLOCK_K;
        if (channel < int(loading.channel_slices.divisor) * BLOCK_K) return;
        channel = 0;
        bool carry = true;
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) {
            tap[axis] += carry;
            carry = carry && tap[axis] == int(taps[axis].divisor);
            if (carry) tap[axis] = 0;
        }
    }
    // The part of weights and of inputs (0: large, 1: small). The order is small * large, large * small, large * large.
    DEVICE int w_part(const Loading& loading) const { return loading.parts == 2 && product == 0; }
    DEVICE int x_part() const { return product == 1; }
};

// Returns how many steps (32 bytes along K) of a slice hold channels. A tap's last slice may be partly empty; its empty
// steps are never multiplied. APART as above.
template <int ALL, bool APART = true> DEVICE int steps_of(const Loading& loading, int slice) {
    const int place = APART && loading.parts == 2 ? slice / 3 : slice;
    int number; // the slice's number within its tap
    loading.channel_slices.split(place, number);
    return number + 1 < int(loading.channel_slices.divisor) ? ALL : loading.last_steps;
}
