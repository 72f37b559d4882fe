// Block-level driver of implicit GEMM (conv/problem.cuh): the software-pipelined loop over K, then the epilogue.
//
// Block: BLOCK_M output channels x BLOCK_N pixels, with all sums in registers. K is processed in slices of BLOCK_K
// rows. kStages buffers in shared memory form a multistage pipeline: kStages - 1 slices are in flight (cp.async) while
// one is multiplied. There is one barrier per slice.
//
//     prologue:   fetch slices 0 ... kStages - 2
//     main loop:  wait for slice i; barrier; fetch slice i + kStages - 1; multiply slice i
//     epilogue:   registers -> shared -> y (conv/epilogue.cuh)
//
// The Multiplier (ffma.cuh, mma.cuh, ... of this folder) says what a slice contains and how it is multiplied; address
// arithmetic is in conv/gather.cuh. The main loop needs
//
//     kStages         number of buffers
//     slices()        number of slices of K
//     fetch(stage)    starts to load the next slice into a buffer
//     deposit(stage)  stores what the last fetch left in registers (dtypes without cp.async)
//     multiply(stage) multiplies a buffer's slice
#pragma once
#include "conv/epilogue.cuh"
#include "base/ptx.cuh"

// Computes the sums over `slices` slices, from the multiplier's current one on.
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
        __syncthreads(); // the slice has arrived, and no thread still reads the buffer to fill next
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

// Computes one tile. `position` sets the tile's group and its number along M and N. It is called a second time after
// the main loop, so that the numbers need no registers in between.
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
// The same for tiles that are numbered along M first.
template <class T, class Acc, class Multiplier, class Index, int NDIM>
DEVICE void make_tile(Multiplier&& multiplier, const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps,
                      void* shared) {
    make_tile<T, Acc, false>(
        static_cast<Multiplier&&>(multiplier), p, taps, shared,
        [&](Index& group, Index& m_tile, Index& n_tile) { tile_of(p, block_number(), group, m_tile, n_tile); });
}
