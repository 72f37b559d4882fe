// Stages of shared memory through which slices of K, or strips, pass from the warp that fetches to the warpgroups that
// multiply, in one order for all tiles that a block makes. Of each stage a barrier tells when it is full, and another
// when it is empty again.
#pragma once
#include "base/hopper.cuh"
#include "base/ptx.cuh"

// How many stages there are, and how large: known to the compiler, or to the launch alone.
template <int STAGES, int STAGE_BYTES> struct FixedStages {
    static constexpr int kBytes = STAGES * STAGE_BYTES, kBarrierBytes = 2 * 8 * STAGES;

    static DEVICE int count() { return STAGES; }
    static DEVICE int size() { return STAGE_BYTES; }
};
struct CountedStages {
    int stages, bytes;

    DEVICE int count() const { return stages; }
    DEVICE int size() const { return bytes; }
};

template <class Stages> struct Ring : Stages {
    using Stages::count;
    using Stages::size;

    unsigned stages, barriers; // in shared memory: first all that say full, then those that say empty
    int stage;                 // the position: which stage is next, and the parity of the times that all were passed
    unsigned parity;

    DEVICE Ring(const void* stages, const void* barriers, const Stages& sizes = {})
        : Stages(sizes), stages(shared_address(stages)), barriers(shared_address(barriers)), stage(0), parity(0) {}
    // By one thread, before all others; `readers` arrive where a stage has been read. Stages begin at a multiple of
    // 1024 bytes: anywhere else, copies and products would swizzle by other bits of the address, and results be wrong.
    DEVICE void init(int readers) const {
        unsigned first = stages;
        keep(first); // or the compiler takes the declared alignment for granted
        if (first % 1024 != 0) __trap();
        for (int i = 0; i < count(); ++i) {
            barrier_init(barriers + i * 8, 1);
            barrier_init(barriers + (count() + i) * 8, readers);
        }
        barrier_fence();
    }
    DEVICE unsigned address() const { return stages + stage * size(); }
    DEVICE unsigned full() const { return barriers + stage * 8; }
    DEVICE unsigned empty() const { return full() + count() * 8; }
    // The barrier of the stage before this one.
    DEVICE unsigned empty_before() const { return stage == 0 ? empty() + (count() - 1) * 8 : empty() - 8; }
    DEVICE void wait_full() const { barrier_wait(full(), parity); }
    DEVICE void wait_empty() const { barrier_wait(empty(), parity ^ 1); }

    DEVICE void next() {
        if (++stage < count()) return;
        stage = 0;
        parity ^= 1;
    }
    // Back to the first stage, as it was filled first.
    DEVICE void rewind() {
        stage = 0;
        parity = 0;
    }
    // Leaves out those that others read.
    DEVICE void skip(int number) {
        const int passed = stage + number;
        stage = passed % count();
        parity ^= passed / count() & 1;
    }
};

// The rings of strips and of weights; in shared memory both, then the barriers of both.
template <class Tile, int STAGES, int STRIP_BYTES> struct StripRings {
    using Stages = FixedStages<STAGES, Tile::kWeightBytes>;
    static constexpr int kAllStages = STRIP_BYTES + Stages::kBytes,
                         kStripBarriers = 16 * (STRIP_BYTES / Tile::kPixelBytes);
    static constexpr int kBytes = kAllStages + kStripBarriers + Stages::kBarrierBytes;

    Ring<CountedStages> x;
    Ring<Stages> w;

    template <class AnyStrips>
    DEVICE StripRings(unsigned char* shared, const AnyStrips& strips)
        : x(shared, shared + kAllStages, CountedStages{strips.stages, strips.bytes}),
          w(shared + STRIP_BYTES, shared + kAllStages + kStripBarriers) {}
    DEVICE void init(int readers) const {
        x.init(readers);
        w.init(readers);
    }
};
