// Slices of K of convolution by wgmma: of one tap and 128 bytes of channels, weights and inputs in one stage.
#pragma once
#include "conv/wgmma/load.cuh"
#include "conv/wgmma/tiles.cuh"

template <class Tile, int STAGES> struct SliceFeed {
    using Stages = FixedStages<STAGES, Tile::kWeightBytes + Tile::kPixelBytes>;
    static constexpr int kBytes = Stages::kBytes + Stages::kBarrierBytes;

    Ring<Stages> ring;

    __device__ __forceinline__ SliceFeed(unsigned char* shared) : ring(shared, shared + Stages::kBytes) {}
    __device__ __forceinline__ void init(int readers) const { ring.init(readers); }
    template <class Problem> __device__ __forceinline__ void fetch(const WgmmaParams<Problem>& p, const Taps<int, 3>* phases) const
    {
        fetch_slices<Tile>(p, phases, ring);
    }
    __device__ __forceinline__ void multiply(Tile& tile, const Item& item, bool speaks)
    {
        for (int done = 0; done < item.slices; ++done) {
            ring.wait_full();
            products_begin();
            tile.multiply(ring.address(), ring.address() + Tile::kWeightBytes);
            products_commit();
            products_wait<1>();
            if (speaks && done > 0) barrier_arrive(ring.empty_before());
            ring.next();
        }
    }
    __device__ __forceinline__ void finish(const Item& item, bool speaks) const
    {
        if (speaks && item.slices > 0) barrier_arrive(ring.empty_before());
    }
    __device__ __forceinline__ void skip(const Item& item) { ring.skip(item.slices); }
};
