// One tile of the implicit GEMM of conv/problem.cuh, for the whole block.
//
// A block makes BLOCK_M output channels x BLOCK_N pixels, its threads' sums in registers. K runs in slices of BLOCK_K
// through a pipeline of kStages stages in shared memory: asynchronous copies prefetch slices while earlier ones are
// multiplied. What a slice looks like, how it is filled and how it is multiplied is the multiplier's
// (conv/gemm/ffma.cuh); where its operands stand in memory is in conv/gather.cuh; the epilogue is conv/epilogue.cuh. Of
// a multiplier the main loop needs
//
//     kStages
//     slices()        how many slices K has
//     fetch(stage)    starts to fill a stage with the next slice
//     deposit(stage)  fills in what the last fetch left in registers
//     multiply(stage)
#pragma once
#include "conv/epilogue.cuh"
#include "base/ptx.cuh"

template <class Multiplier> DEVICE void accumulate(Multiplier& multiplier, int slices) {
    constexpr int kStages = Multiplier::kStages;
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
        if (stage < slices) {
            multiplier.fetch(stage);
            multiplier.deposit(stage);
        }
        copy_async_commit();
    }
    int stage = 0;
    for (int left = slices; left > 0; --left) {
        copy_async_wait<kStages - 2>();
        __syncthreads(); // the slice has arrived for all threads, and all have left the buffer that is filled next
        const int filled = kStages == 2 ? stage ^ 1 : stage == 0 ? kStages - 1 : stage - 1;
        const bool more = left > kStages - 1;
        if (more) multiplier.fetch(filled);
        copy_async_commit();
        multiplier.multiply(stage);
        if (more) multiplier.deposit(filled);
        stage = kStages == 2 ? filled : stage + 1 == kStages ? 0 : stage + 1;
    }
    copy_async_wait<0>();
    __syncthreads(); // the buffers are free for the epilogue
}

// Makes the tile at which `position` puts the block: its group, and its number among the tiles along M and along N. It
// is asked again after the main loop.
template <class T, class Acc, bool PHASED, class Multiplier, class Index, int NDIM, class Position>
DEVICE void make_tile(Multiplier&& multiplier, const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps,
                      void* shared, Position&& position) {
    Index group, m_tile, n_tile;
    position(group, m_tile, n_tile);
    multiplier.stand(group, m_tile * Multiplier::kBlockM);
    multiplier.start(n_tile * Multiplier::kBlockN);
    accumulate(multiplier, multiplier.slices());
    position(group, m_tile, n_tile);
    multiplier.stand(group, m_tile * Multiplier::kBlockM);
    const Epilogue<Multiplier, T, Acc, Index, NDIM, PHASED> epilogue{
        p, taps, multiplier, group, m_tile * Multiplier::kBlockM, n_tile * Multiplier::kBlockN};
    if (epilogue.write(shared)) epilogue.repair();
}
// The same where tiles run over M first.
template <class T, class Acc, class Multiplier, class Index, int NDIM>
DEVICE void make_tile(Multiplier&& multiplier, const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps,
                      void* shared) {
    make_tile<T, Acc, false>(
        static_cast<Multiplier&&>(multiplier), p, taps, shared,
        [&](Index& group, Index& m_tile, Index& n_tile) { tile_of(p, block_number(), group, m_tile, n_tile); });
}
