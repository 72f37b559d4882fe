// Tile and loader of conv/wgmma/strips.cu. A strip holds the inputs of a tile for one slice of channels, one tap along
// D and W, and all taps along H. The tile's columns are stacked in rows, so the next tap along H reads the same strip
// from one row further down. Only the start address of the wgmma operand changes.
//
//     strip (TMA)    row 0   -> tap 0 of output row 0
//                    row 1   -> tap 1 of output row 0, tap 0 of output row 1
//                    row 2   -> tap 2 of output row 0, tap 1 of output row 1, ...
//
// Weights go through a ring of their own, one tap at a time. If all of K fits, they are loaded once and stay
// (resident).
//
// Two kinds of strips:
// - Rows (NCHW, 16 bits): pieces of 64 pixels of a row x a slice's channels, one TMA copy each. The columns of a tile
//   are such rows, stacked along H, or successive parts of one row.
// - Patches (NHWC): one TMA copy per strip; the tile's rows have 16 pixels.
#pragma once
#include "conv/wgmma/ring.cuh"
#include "conv/wgmma/tiles.cuh"

// WgmmaTile with columns stacked in rows of kRow pixels.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, bool TURNS, int SLICE, bool ROWS>
struct StripTile : WgmmaTile<Arithmetic, BLOCK_M, BLOCK_N, TURNS, SLICE, ROWS> {
    using Base = WgmmaTile<Arithmetic, BLOCK_M, BLOCK_N, TURNS, SLICE, ROWS>;
    static constexpr int kRow = ROWS ? 64 : 16; // pixels per row of the tile
    static constexpr bool kFromRows = ROWS;
    static constexpr int kPieceOfStrip = 64 * SLICE; // bytes
    static constexpr int kAxesInOrder = 1;

    const Strips& strips;
    Pixel<int, 3> first; // the tile's first output

    DEVICE StripTile(const WgmmaStripsParams& p) : Base(p), strips(p.strips) {}
    DEVICE void stand_at(const WgmmaStripsParams& p, const Item& item) {
        Base::stand_at(p, item);
        first = first_column(strips, item.n_tile);
    }
    DEVICE Pixel<int, 3> pixel(int column) const {
        const int row = column % BLOCK_N / kRow;
        return further(this->p, first, row * strips.column_h, row * strips.column_w + column % kRow);
    }
};

// The rings of strips and of weights, with the interface that conv/wgmma/run.cuh describes.
template <class Tile, int STAGES, int STRIP_BYTES> struct StripFeed : StripRings<Tile, STAGES, STRIP_BYTES> {
    using Rings = StripRings<Tile, STAGES, STRIP_BYTES>;
    using Rings::w, Rings::x;

    int inner, shift;
    bool resident;

    DEVICE StripFeed(unsigned char* shared, const Strips& strips)
        : Rings(shared, strips), inner(strips.inner), shift(strips.shift), resident(strips.resident) {}
    DEVICE void fetch(const WgmmaStripsParams& p, const Taps<int, 3>* phases);
    // Consumers: multiplies the strips of an item, tap by tap.
    DEVICE void multiply(Tile& tile, const Item& item, bool speaks) {
        if (resident) w.rewind();
        for (int done = 0; done < item.slices; ++done) {
            const int count = steps_of<Tile::kSteps>(tile.loading, item.first_slice + done);
            x.wait_full();
            for (int tap = 0; tap < inner; ++tap) {
                w.wait_full();
                tile.multiply(w.address(), x.address() + tap * shift, count);
                products_wait<1>();
                if (speaks && !resident && done + tap > 0) barrier_arrive(w.empty_before());
                if (speaks && done > 0 && tap == 0) barrier_arrive(x.empty_before());
                w.next();
            }
            x.next();
        }
    }
    DEVICE void finish(const Item& item, bool speaks) const {
        if (!speaks || item.slices == 0) return;
        if (!resident) barrier_arrive(w.empty_before());
        barrier_arrive(x.empty_before());
    }
    DEVICE void skip(const Item& item) {
        x.skip(item.slices);
        if (!resident) w.skip(item.slices * inner);
    }
};

// The producer thread: loads the strips and weights of all of the block's items, in order.
template <class Tile, int STAGES, int STRIP_BYTES>
DEVICE void StripFeed<Tile, STAGES, STRIP_BYTES>::fetch(const WgmmaStripsParams& p, const Taps<int, 3>* phases) {
    const Correlation<int, 3>& common = p.problem.common;
    const Loading& loading = p.loading;
    const Strips& strips = p.strips;
    const Taps<int, 3>& taps = *phases;
    for (int number = block_number(); number < p.items; number += gridDim.x) {
        const Item item = item_of(p, phases, number);
        const Pixel<int, 3> first = first_column(strips, item.n_tile);
        SlicePlace<Tile::kBlockK> slice;
        slice.first(loading, strips.taps, item.first_slice);
        for (int left = item.slices; left > 0; --left) {
            int at[3];
#pragma unroll
            for (int axis = 0; axis < 3; ++axis)
                at[axis] =
                    first.q[axis] * common.stride[axis] + taps.start[axis] + slice.tap[axis] * taps.advance[axis];
            const int channel = item.group * loading.x_group + slice.x_part() * loading.x_part + slice.channel;
            x.wait_empty();
            barrier_expect(x.full(), strips.bytes);
            if constexpr (Tile::kFromRows) {
                for (int piece = 0; piece < strips.pieces; ++piece)
                    copy_box(x.address() + piece * Tile::kPieceOfStrip, p.x_map, x.full(),
                             at[2] + piece * strips.piece_w, at[1] + piece * strips.piece_h, at[0], channel, first.n);
            } else {
                copy_box(x.address(), p.x_map, x.full(), channel, at[2], at[1], at[0], first.n);
            }
            x.next();
            int tap[3] = {slice.tap[0], slice.tap[1], slice.tap[2]};
            const int missing = resident && number >= int(gridDim.x) ? 0 : inner;
            for (int each = 0; each < missing; ++each, ++tap[1]) {
                w.wait_empty();
                barrier_expect(w.full(), Tile::kWeightBytes);
                copy_box(w.address(), p.w_map, w.full(), slice.channel, loading.w_tap.quotient(tap_row(taps, tap)),
                         item.m_tile * Tile::kBlockM, item.group * loading.parts + slice.w_part(loading));
                w.next();
            }
            slice.advance(loading, strips.taps);
        }
    }
}
