// Loader of conv/wgmma/slices.cu: a stage holds one slice of K, of one tap and 128 bytes of channels: weights, then
// inputs.
//
// The producer thread issues two TMA copies per slice, as soon as a stage is empty. In im2col mode, one copy loads one
// tap's inputs for all pixels of the tile, across the ends of rows and images; out-of-bounds inputs become zero.
#pragma once
#include "conv/wgmma/items.cuh"
#include "conv/wgmma/ring.cuh"
#include "conv/wgmma/tiles.cuh"

// The producer thread, for x_map with AXES spatial axes. Axes of the structs beyond these have one element.
template <class Tile, int AXES, class Problem, class Stages>
DEVICE void fetch_pixels(const WgmmaParams<Problem>& p, const Taps<int, 3>* phases, Stages ring) {
    const Correlation<int, 3>& common = p.problem.common;
    const Loading& loading = p.loading;
    for (int number = block_number(); number < p.items; number += gridDim.x) {
        const Item item = item_of(p, phases, number);
        const Taps<int, 3>& taps = phases[item.phase];
        int q[3], at[AXES], offset[AXES];
        const int n = unravel<3>(item.n_tile * Tile::kBlockN, common.extent, q);
#pragma unroll
        for (int axis = 0; axis < AXES; ++axis)
            at[axis] = q[2 - axis] * common.stride[2 - axis] + loading.lower[2 - axis];
        SlicePlace<Tile::kBlockK> slice;
        slice.first(loading, taps.count, item.first_slice);
        for (int left = item.slices; left > 0; --left) {
#pragma unroll
            for (int axis = 0; axis < AXES; ++axis)
                offset[axis] =
                    taps.start[2 - axis] + slice.tap[2 - axis] * taps.advance[2 - axis] - loading.lower[2 - axis];
            ring.wait_empty();
            barrier_expect(ring.full(), Tile::kWeightBytes + Tile::kPixelBytes);
            copy_box(ring.address(), p.w_map, ring.full(), slice.channel,
                     loading.w_tap.quotient(tap_row(taps, slice.tap)), item.m_tile * Tile::kBlockM,
                     item.group * loading.parts + slice.w_part(loading));
            copy_pixels(ring.address() + Tile::kWeightBytes, p.x_map, ring.full(),
                        item.group * loading.x_group + slice.x_part() * loading.x_part + slice.channel, at, n, offset);
            slice.advance(loading, taps.count);
            ring.next();
        }
    }
}

// The ring of stages, with the interface that conv/wgmma/run.cuh describes.
template <class Tile, int STAGES> struct SliceFeed {
    using Stages = FixedStages<STAGES, Tile::kWeightBytes + Tile::kPixelBytes>;
    static constexpr int kBytes = Stages::kBytes + Stages::kBarrierBytes;

    Ring<Stages> ring;

    DEVICE SliceFeed(unsigned char* shared) : ring(shared, shared + Stages::kBytes) {}
    DEVICE void init(int readers) const { ring.init(readers); }
    template <class Problem> DEVICE void fetch(const WgmmaParams<Problem>& p, const Taps<int, 3>* phases) const {
        if (p.loading.axes == 1) fetch_pixels<Tile, 1>(p, phases, ring);
        else if (p.loading.axes == 2) fetch_pixels<Tile, 2>(p, phases, ring);
        else fetch_pixels<Tile, 3>(p, phases, ring);
    }
    // Consumers: multiplies the slices of an item. A stage is released when its products are complete, while those of
    // the next one run.
    DEVICE void multiply(Tile& tile, const Item& item, bool speaks) {
        for (int done = 0; done < item.slices; ++done) {
            const int count = steps_of<Tile::kSteps>(tile.loading, item.first_slice + done);
            ring.wait_full();
            tile.multiply(ring.address(), ring.address() + Tile::kWeightBytes, count);
            products_wait<1>();
            if (speaks && done > 0) barrier_arrive(ring.empty_before());
            ring.next();
        }
    }
    DEVICE void finish(const Item& item, bool speaks) const {
        if (speaks && item.slices > 0) barrier_arrive(ring.empty_before());
    }
    DEVICE void skip(const Item& item) { ring.skip(item.slices); }
};
