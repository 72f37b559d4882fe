// What a block makes one after the other: tiles, or several blocks' shares of a tile's K. And the slices of K of each.
//
// Tiles are counted with those along M fastest, then phases, those that meet the most taps first, then columns, then
// groups: blocks that run at the same time read the same inputs. Shares of a tile follow each other, after all tiles
// that stay whole.
#pragma once
#include "conv/wgmma/params.cuh"

struct Item {
    int group, m_tile, n_tile, phase;
    int tile;                // among all of the launch
    int split;               // which share of it
    int first_slice, slices; // of K; or strips
};

// How often a slice's numbers are multiplied: once, or, if each is the sum of two, three times.
DEVICE int products(const Loading& loading) { return loading.parts == 2 ? 3 : 1; }

// Slices of K of all of a tile; or strips, each of which several slices share.
template <class Problem> DEVICE int all_slices(const WgmmaParams<Problem>& p, const Taps<int, 3>& taps) {
    return p.problem.common.by_channel.quotient(taps.rows) * int(p.loading.channel_slices.divisor)
         * products(p.loading);
}
template <class AnyStrips> DEVICE int all_slices(const StripsParams<AnyStrips>& p, const Taps<int, 3>&) {
    const Divider<int>(&taps)[3] = p.strips.taps;
    const int strips = int(taps[0].divisor * taps[1].divisor * taps[2].divisor * p.loading.channel_slices.divisor);
    return AnyStrips::kApart ? strips * products(p.loading) : strips;
}

// Where a tile stands.
DEVICE void place(const ConvParams<int, 3>& p, int tile, Item& item) {
    item.group = p.common.n_tiles.split(p.common.m_tiles.split(tile, item.m_tile), item.n_tile);
    item.phase = 0;
}
DEVICE void place(const ConvTransposeParams<int, 3>& p, int tile, Item& item) {
    item.phase = phase_tile(p, tile, item.group, item.m_tile, item.n_tile);
}

// The item with a number. A launch that adds up what another one has left has one a divided tile, without slices.
template <class Params> DEVICE Item item_of(const Params& p, const Taps<int, 3>* phases, int number) {
    Item item;
    item.split = 0;
    const bool totals = p.splits.part == Splits::TOTALS;
    const int past = totals ? number : number - p.splits.whole; // those that stay whole
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

// The output of a tile's first column, where tiles are counted as those of strips are.
template <class AnyStrips> DEVICE Pixel<int, 3> first_column(const AnyStrips& strips, int n_tile) {
    Pixel<int, 3> found;
    found.n = unravel<3>(n_tile, strips.extent, found.q);
    found.q[1] *= strips.rows;
    found.q[2] *= strips.columns;
    found.exists = true;
    return found;
}

// A column so far from it, which need not exist.
DEVICE Pixel<int, 3> further(const Correlation<int, 3>& p, Pixel<int, 3> first, int h, int w) {
    first.q[1] += h;
    first.q[2] += w;
    first.exists = first.q[1] < int(p.extent[1].divisor) && first.q[2] < int(p.extent[2].divisor);
    return first;
}

// Where a slice of K stands: its tap and its first channel. Of numbers in two parts, every slice comes three times:
// with the small parts first, for the sums to lose as little as they can; or, not APART, once, for all products.
template <int BLOCK_K, bool APART = true> struct SlicePlace {
    int tap[3], channel, product;

    DEVICE void first(const Loading& loading, const Divider<int> (&taps)[3], int slice) {
        const int times = APART ? products(loading) : 1, all = int(loading.channel_slices.divisor);
        const int place = slice / times, number = place / all;
        product = slice - place * times;
        channel = (place - number * all) * BLOCK_K;
        unravel<3>(number, taps, tap);
    }
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
    // Which part of the weights and of the inputs: small times large, large times small, large times large.
    DEVICE int w_part(const Loading& loading) const { return loading.parts == 2 && product == 0; }
    DEVICE int x_part() const { return product == 1; }
};

// The steps of a slice with a number, 32 bytes along K each, that have channels: the last slice of a tap may be filled
// in part. What stands behind these is never multiplied. APART as above.
template <int ALL, bool APART = true> DEVICE int steps_of(const Loading& loading, int slice) {
    const int place = APART && loading.parts == 2 ? slice / 3 : slice;
    int number; // of a tap's slices
    loading.channel_slices.split(place, number);
    return number + 1 < int(loading.channel_slices.divisor) ? ALL : loading.last_steps;
}
