// Ring of pipeline stages in shared memory, between the producer warp (TMA) and the consumer warpgroups. Each stage has
// two mbarriers: "full" (its copies have arrived) and "empty" (all consumers have read it). The order of stages
// continues across all tiles of a block.
#pragma once
#include "base/hopper.cuh"
#include "base/ptx.cuh"

// Number and size of the stages: compile-time constants, or launch parameters.
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

// One thread's view of a ring. Producer and consumers each advance their own copy, in the same order.
template <class Stages> struct Ring : Stages {
    using Stages::count;
    using Stages::size;

    unsigned stages, barriers; // shared-memory addresses; all full barriers come before all empty ones
    int stage;                 // the next stage, and the parity of the number of completed rounds
    unsigned parity;

    DEVICE Ring(const void* stages, const void* barriers, const Stages& sizes = {})
        : Stages(sizes), stages(shared_address(stages)), barriers(shared_address(barriers)), stage(0), parity(0) {}
    // Initialises the barriers, by one thread before anything else. `readers`: arrivals that mark a stage as read.
    // Stages must begin at a multiple of 1024 bytes, since swizzling depends on address bits; anything else would give
    // wrong results.
    DEVICE void init(int readers) const {
        unsigned first = stages;
        keep(first); // otherwise the compiler assumes the declared alignment and drops the test
        if (first % 1024 != 0) __trap();
        for (int i = 0; i < count(); ++i) {
            barrier_init(barriers + i * 8, 1);
            barrier_init(barriers + (count() + i) * 8, readers);
        }
        barrier_fence();
    }
    // Address and barriers of the next stage.
    DEVICE unsigned address() const { return stages + stage * size(); }
    DEVICE unsigned full() const { return barriers + stage * 8; }
    DEVICE unsigned empty() const { return full() + count() * 8; }
    // The empty barrier of the previous stage.
    DEVICE unsigned empty_before() const { return stage == 0 ? empty() + (count() - 1) * 8 : empty() - 8; }
    DEVICE void wait_full() const { barrier_wait(full(), parity); }
    DEVICE void wait_empty() const { barrier_wait(empty(), parity ^ 1); }

    // Advances by one stage.
    DEVICE void next() {
        if (++stage < count()) return;
        stage = 0;
        parity ^= 1;
    }
    // Returns to the first stage in its first round.
    DEVICE void rewind() {
        stage = 0;
        parity = 0;
    }
    // Advances past stages that another warpgroup consumes.
    DEVICE void skip(int number) {
        const int passed = stage + number;
        stage = passed % count();
        parity ^= passed / count() & 1;
    }
};

// The ring of strips and the ring of weights. Shared memory: the stages of both, then the barriers of both.
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
