// Main loop of weight_grad/tiles.cu by FFMA, in float32. A thread computes 8 filters x 8 columns.
//
// From slices stored by filters (PixelSlices), a thread loads four pixels at once; its filters are kAlongM apart, its
// columns kAlongN. From slices stored by pixels (ChannelSlices), it loads four adjacent filters or columns at once, in
// two chunks.
#pragma once
#include "weight_grad/tiles_slices.cuh"

// See the top of this file. Slices: the loader, PixelSlices or ChannelSlices.
template <int BLOCK_M, int BLOCK_N, int BLOCK_K, int STAGES, template <class, int, int, int, int, int> class Slices>
struct WeightGradFfma {
    using T = float;
    using Acc = float;
    static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N, kStages = STAGES, kSlice = BLOCK_K;
    static constexpr int kFragmentsM = 8, kFragmentsN = 8, kOfRows = 1, kOfColumns = 1;
    // threads along M, along N
    static constexpr int kAlongM = BLOCK_M / 8, kAlongN = BLOCK_N / 8, kThreads = kAlongM * kAlongN;
    using Filler = Slices<T, BLOCK_M, BLOCK_N, BLOCK_K, kThreads, STAGES>;
    using Tables = WeightGradTables<BLOCK_N, BLOCK_K, STAGES>;
    static constexpr bool kExact = true;
    static constexpr int kLanesM = 4, kLanesN = 8; // lanes of a warp along M and N

    Filler slices;
    float sums[8][8][1];

    DEVICE int thread_m() const {
        return threadIdx.x / 32 % (kAlongM / kLanesM) * kLanesM + threadIdx.x % 32 / kLanesN;
    }
    DEVICE int thread_n() const { return threadIdx.x / 32 / (kAlongM / kLanesM) * kLanesN + threadIdx.x % kLanesN; }
    DEVICE int row(int i, int) const {
        return Filler::kPixelwise ? i / 4 * (BLOCK_M / 2) + thread_m() * 4 + i % 4 : thread_m() + i * kAlongM;
    }
    DEVICE int column(int j, int) const {
        return Filler::kPixelwise ? j / 4 * (BLOCK_N / 2) + thread_n() * 4 + j % 4 : thread_n() + j * kAlongN;
    }
    DEVICE void fetch(int stage) { slices.fetch(stage); }
    DEVICE void deposit(int) const {}
    struct Four { float values[4]; };
    static DEVICE Four load(unsigned address) {
        const uint4 v = load_shared(address);
        return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
    }
    DEVICE void multiply(int stage) {
        const unsigned rows = slices.buffers + stage * Filler::kBytes, columns = rows + Filler::kBytesM;
        if constexpr (Filler::kPixelwise) multiply_pixels(rows, columns);
        else multiply_filters(rows, columns);
        slices.find(stage); // prepares the pixels of the slice that will reuse this buffer
    }
    // Multiplies a slice that is stored by pixels.
    DEVICE void multiply_pixels(unsigned rows, unsigned columns) {
        const unsigned left = rows + thread_m() * 16, right = columns + thread_n() * 16;
#pragma unroll 4
        for (int k = 0; k < BLOCK_K; ++k) {
            Four of_rows[2], of_columns[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                of_rows[half] = load(left + k * Filler::template kPitch<BLOCK_M> + half * BLOCK_M / 2 * 4);
                of_columns[half] = load(right + k * Filler::template kPitch<BLOCK_N> + half * BLOCK_N / 2 * 4);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    sums[i][j][0] =
                        multiply_add(of_rows[i / 4].values[i % 4], of_columns[j / 4].values[j % 4], sums[i][j][0]);
        }
    }
    // Multiplies a slice that is stored by filters and columns, four pixels at a time.
    DEVICE void multiply_filters(unsigned rows, unsigned columns) {
#pragma unroll 1
        for (int k = 0; k < BLOCK_K; k += 4) {
            const unsigned left = rows + Filler::place(thread_m(), k / 4),
                           right = columns + Filler::place(thread_n(), k / 4);
            static_assert(kAlongM % 8 == 0 && kAlongN % 8 == 0); // so that all rows of a thread have the same swizzle
            Four of_columns[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) of_columns[j] = load(right + j * kAlongN * Filler::kPitch);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const Four of_row = load(left + i * kAlongM * Filler::kPitch);
#pragma unroll
                for (int j = 0; j < 8; ++j)
#pragma unroll
                    for (int v = 0; v < 4; ++v)
                        sums[i][j][0] = multiply_add(of_row.values[v], of_columns[j].values[v], sums[i][j][0]);
            }
        }
    }
};
