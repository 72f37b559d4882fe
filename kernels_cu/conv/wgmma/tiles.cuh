// The tile of a consumer warpgroup, with output channels as M. It multiplies slices of K in shared memory, and has the
// Multiplier interface of conv/epilogue.cuh; conv/wgmma/outputs.cuh writes its chunks.
//
// Two warpgroups compute the two halves of a tile's output channels together or, with TURNS, whole tiles alternately.
// SLICE: bytes of K per slice. CROSSWISE: inputs have pixels innermost in shared memory (MN-major), else channels
// (K-major).
#pragma once
#include "conv/epilogue.cuh"
#include "base/ptx.cuh"
#include "conv/wgmma/wgmma.cuh"
#include "conv/wgmma/items.cuh"
#include "conv/wgmma/sums.cuh"

// See the top of this file.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, bool TURNS, int SLICE = 128, bool CROSSWISE = false>
struct WgmmaTile : WgmmaSums<typename Arithmetic::Element, (TURNS ? BLOCK_M : BLOCK_M / 2) / 64, BLOCK_N> {
    using T = typename Arithmetic::Element;
    using Acc = typename Arithmetic::Acc;
    using Base = WgmmaSums<T, (TURNS ? BLOCK_M : BLOCK_M / 2) / 64, BLOCK_N>;
    using Base::group;
    using Base::sums;

    static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
    static constexpr int kBlockK = SLICE / int(sizeof(T)); // elements of K per slice
    static constexpr int kSteps = SLICE / 32;
    static constexpr bool kTurns = TURNS, kExact = Arithmetic::kExact, kClips = true;
    static constexpr int kWeightBytes = BLOCK_M * SLICE, kPixelBytes = BLOCK_N * SLICE;
    static constexpr int kRowsOfGroup = TURNS ? BLOCK_M : BLOCK_M / 2;
    static constexpr int kRows = 16, kColumns = 32, kPitch = kColumns + 8;
    static constexpr int kAxesInOrder =
        3; // innermost axes along which successive columns of the tile are successive in y
    static constexpr int kChunksM = kRowsOfGroup / 64, kChunksN = BLOCK_N / kColumns;
    static constexpr int kPieceBytes = 8 * kRows * kPitch * sizeof(Acc),
                         kAnswerBytes = 16; // bytes of all pieces; of both answers
    static_assert(kRowsOfGroup % 64 == 0 && BLOCK_N == 256);

    template <class Params> DEVICE WgmmaTile(const Params& p) : Base(p) {}

    // Starts to multiply `steps` steps (32 bytes along K each) of a slice: a whole slice as one batch, fewer steps one
    // by one.
    DEVICE void multiply(unsigned weights, unsigned pixels, int steps) {
        constexpr int kStep = (CROSSWISE ? 32 / int(sizeof(T)) * 128 : 32) / 16;
        unsigned long long a = rows_along_k<SLICE>(weights + warpgroup() * (kRowsOfGroup * SLICE));
        unsigned long long b = CROSSWISE ? rows_across_k<64 * SLICE>(pixels) : rows_along_k<SLICE>(pixels);
        if (steps == kSteps) {
            products_begin();
#pragma unroll
            for (int k = 0; k < kSteps; ++k) multiply_step(a + k * 2, b + k * kStep);
            products_commit();
        } else {
#pragma unroll 1
            for (int k = 0; k < steps; ++k) {
                products_begin();
                multiply_step(a, b);
                products_commit();
                a += 2;
                b += kStep;
            }
        }
    }
    DEVICE void multiply_step(unsigned long long a, unsigned long long b) {
#pragma unroll
        for (int i = 0; i < kChunksM; ++i)
            Arithmetic::template multiply<CROSSWISE>(sums[i], a + i * (64 * SLICE / 16), b);
    }

    // ---- interface for the epilogue (conv/epilogue.cuh)

    template <class Params> DEVICE void stand_at(const Params&, const Item& item) { group = item.group; }
    // Which half of the tile's output channels this thread has.
    static DEVICE int warpgroup() { return TURNS ? 0 : threadIdx.x / 128; }
    DEVICE Pixel<int, 3> pixel(int column) const { return ::pixel(this->p, column); }
    static DEVICE int chunk_row(int i) { return warpgroup() * kRowsOfGroup + i * 64 + threadIdx.x / 32 % 4 * kRows; }
    static DEVICE int chunk_column(int j) { return j * kColumns; }
};
