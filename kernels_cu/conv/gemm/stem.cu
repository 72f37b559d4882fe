// Conv of few input channels and many filters, as the first layers of networks are.
//
// All inputs that a block's outputs meet, a band of every channel, come into shared memory once (conv/gemm/stem.cuh);
// the multipliers take them straight from there, whichever taps they stand for. The block makes its output channels in
// passes over the same band; weights, packed, go through buffers slice by slice.
#include "conv/gemm/implicit_gemm.cuh"
#include "conv/gemm/stem_ffma.cuh"
#include "conv/gemm/stem_mma.cuh"

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
        __syncthreads(); // the buffers are free, also of the pass before
        multiplier.stand(group, m0);
        multiplier.start();
        accumulate(multiplier, multiplier.slices());
        const Epilogue<Multiplier, T, typename Multiplier::Acc, int, 4, false> epilogue{p.common, p.taps, multiplier,
                                                                                        group,    m0,     0};
        const bool suspect = multiplier.write(epilogue, shared);
        __syncwarp(); // lanes repair what others of their warp wrote
        if (__any_sync(0xffffffff, suspect)) epilogue.repair();
    }
}

template <int CHUNK> DEVICE void conv_stem(const StemParams& p) { make_stem<StemFfma<CHUNK>>(p); }

template <class Arithmetic, int BLOCK_M> DEVICE void conv_stem_mma(const StemParams& p) {
    make_stem<StemMma<Arithmetic, BLOCK_M>>(p);
}
