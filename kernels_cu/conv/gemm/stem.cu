// Conv with few input channels per group (1 to 15) and many filters, such as the first layer (stem) of a network, by
// FFMA or on tensor cores. A block stages all inputs of its outputs (a band of every channel) in shared memory once,
// for all taps.
//
// Block: 256 adjacent output pixels x BLOCK_M output channels, in several passes over the same band if there are more
// channels.
//
//     x -> shared band (conv/gemm/stem.cuh), once
//     packed weights -> shared, slice by slice, in a pipeline of 3 stages
//     band[pixel's offset + tap's offset from a table] x weights -> registers -> y
//
// No gather is needed in the main loop: the input of (pixel, k) is at the sum of two precomputed offsets. Bound by
// FFMA, by instruction issue on tensor cores, or by writing y.
#include "conv/gemm/implicit_gemm.cuh"
#include "conv/gemm/stem_ffma.cuh"
#include "conv/gemm/stem_mma.cuh"

// One block: fills band and table, then runs the passes.
template <class Multiplier> DEVICE void make_stem(const StemParams& p) {
    using T = typename Multiplier::T;
    using Box = typename Multiplier::Box;
    extern __shared__ __align__(128) unsigned char shared[];
    int m, n;
    const int group = p.common.n_tiles.split(p.common.m_tiles.split(block_number(), m), n);
    const Box box(p, n);
    Multiplier multiplier(p, box, shared);
    box.fill_band(shared + Multiplier::kBufferBytes, static_cast<const T*>(p.common.x) + group * p.common.x_channel);
    box.fill_table(reinterpret_cast<int*>(shared + Multiplier::kBufferBytes + p.band_bytes), Multiplier::entries(p));
#pragma unroll 1
    for (int pass = 0; pass < p.passes; ++pass) {
        const int m0 = (m * p.passes + pass) * Multiplier::kBlockM;
        if (m0 >= p.common.filters) break;
        __syncthreads(); // the buffers are free, also of the previous pass
        multiplier.stand(group, m0);
        multiplier.start();
        accumulate(multiplier, multiplier.slices());
        const Epilogue<Multiplier, T, typename Multiplier::Acc, int, 4, false> epilogue{p.common, p.taps, multiplier,
                                                                                        group,    m0,     0};
        const bool suspect = multiplier.write(epilogue, shared);
        __syncwarp(); // a lane repairs outputs that other lanes of its warp wrote
        if (__any_sync(0xffffffff, suspect)) epilogue.repair();
    }
}

template <int CHUNK> DEVICE void conv_stem(const StemParams& p) { make_stem<StemFfma<CHUNK>>(p); }

template <class Arithmetic, int BLOCK_M> DEVICE void conv_stem_mma(const StemParams& p) {
    make_stem<StemMma<Arithmetic, BLOCK_M>>(p);
}
