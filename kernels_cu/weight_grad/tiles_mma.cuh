// Main loop of weight_grad/tiles.cu on tensor cores (mma.sync): filters are M, columns are N, output pixels are K.
//
// Slices stored by filters (PixelSlices) are read by ldmatrix, float64 element by element. Slices stored by pixels
// (ChannelSlices) are read by transposing ldmatrix if elements have 16 bits. From wider ones, a lane loads 16 bytes,
// which are adjacent rows of kWide half-fragments: half-fragment h has rows kWide * r + h. Columns likewise.
#pragma once
#include "conv/gemm/fragments.cuh"
#include "weight_grad/tiles_slices.cuh"

// See the top of this file. Slices: the loader, PixelSlices or ChannelSlices.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES,
          template <class, int, int, int, int, int> class Slices>
struct WeightGradMma {
    using T = typename Arithmetic::Element;
    using Acc = typename Arithmetic::Acc;
    using Inputs = typename Arithmetic::Inputs;
    static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N, kStages = STAGES, kSlice = BLOCK_K;
    static constexpr int kParts = Arithmetic::kParts, kStep = Arithmetic::kStep;
    static constexpr int kWarpsM = BLOCK_M / WARP_M, kThreads = kWarpsM * (BLOCK_N / WARP_N) * 32;
    static constexpr int kFragmentsM = WARP_M / 16, kFragmentsN = WARP_N / 8, kDepth = 32 / sizeof(T);
    static constexpr int kOfRows = 2, kOfColumns = 2; // sums per lane in a fragment: rows, columns
    using Filler = Slices<T, BLOCK_M, BLOCK_N, BLOCK_K, kThreads, STAGES>;
    using Tables = WeightGradTables<BLOCK_N, BLOCK_K, STAGES>;
    static constexpr bool kPixelwise = Filler::kPixelwise, kExact = Arithmetic::kExact;
    static constexpr int kWide = kPixelwise && sizeof(T) > 2 ? 16 / sizeof(T) : 1;
    static constexpr int kSharedBytes = STAGES * Filler::kBytes + sizeof(Tables);
    static_assert(Filler::kBytes % 128 == 0);

    Filler slices;
    Acc sums[kFragmentsM][kFragmentsN][4];

    DEVICE int lane() const { return threadIdx.x % 32; }
    DEVICE int first_row() const { return threadIdx.x / 32 % kWarpsM * WARP_M; }
    DEVICE int first_column() const { return threadIdx.x / 32 / kWarpsM * WARP_N; }
    // Row or column of a sum in the warp's tile. `number` counts half-fragments of rows, or fragments of columns.
    static DEVICE int spread(int number, int at) { return number / kWide * 8 * kWide + at * kWide + number % kWide; }
    DEVICE int row(int i, int element) const { return first_row() + spread(i * 2 + element / 2, lane() / 4); }
    DEVICE int column(int j, int element) const { return first_column() + spread(j, lane() % 4 * 2 + element % 2); }

    DEVICE void fetch(int stage) { slices.fetch(stage); }
    DEVICE void deposit(int stage) const { slices.deposit(stage); }
    // Multiplies one slice, kStep fragments along K at a time.
    DEVICE void multiply(int stage) {
        const unsigned rows = slices.buffers + stage * Filler::kBytes, columns = rows + Filler::kBytesM;
#pragma unroll
        for (int depth = 0; depth < BLOCK_K / kDepth; depth += kStep) {
            uint4 a[kFragmentsM][kStep][kParts];
            Inputs b[kFragmentsN][kStep];
#pragma unroll
            for (int k = 0; k < kStep; ++k) {
                load_rows(rows, (depth + k) * kDepth, k, a);
                load_columns(columns, (depth + k) * kDepth, k, b);
            }
#pragma unroll
            for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
                for (int j = 0; j < kFragmentsN; ++j) Arithmetic::multiply(sums[i][j], a[i], b[j]);
        }
        slices.find(stage); // prepares the pixels of the slice that will reuse this buffer
    }

    // ---- loading fragments, from pixel `k` of a slice on

    static DEVICE void prepare(const uint4& words, uint4 (&parts)[kParts]) {
        if constexpr (sizeof(T) == 8) parts[0] = words;
        else Arithmetic::prepare(words, parts);
    }
    // Loads all fragments of filters (operand A).
    DEVICE void load_rows(unsigned memory, int k, int step, uint4 (&a)[kFragmentsM][kStep][kParts]) const {
        if constexpr (kWide > 1) {
            load_neighbours_of_rows(memory, k, step, a);
        } else {
#pragma unroll
            for (int i = 0; i < kFragmentsM; ++i) prepare(row_fragment(memory, first_row() + i * 16, k), a[i][step]);
        }
    }
    // Loads one fragment of filters, from row m of the tile on.
    DEVICE uint4 row_fragment(unsigned memory, int m, int k) const {
        const int half = lane() / 8 % 2 * 8, upper = lane() / 16;
        if constexpr (kPixelwise) {
            unsigned words[4];
            load_transposed_matrices(
                words, memory + Filler::template place<BLOCK_M>(k + upper * 8 + lane() % 8, (m + half) / 8));
            return make_uint4(words[0], words[1], words[2], words[3]);
        } else if constexpr (sizeof(T) == 8) {
            const uint2 low = load_pair(memory + Filler::place_of(m + lane() / 4, k + lane() % 4));
            const uint2 high = load_pair(memory + Filler::place_of(m + 8 + lane() / 4, k + lane() % 4));
            return make_uint4(low.x, low.y, high.x, high.y);
        } else {
            unsigned words[4];
            load_matrices(words, memory + Filler::place(m + half + lane() % 8, k * int(sizeof(T)) / 16 + upper));
            return make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
    // Loads all fragments of columns (operand B).
    DEVICE void load_columns(unsigned memory, int k, int step, Inputs (&b)[kFragmentsN][kStep]) const {
        if constexpr (kWide > 1) {
            load_neighbours_of_columns(memory, k, step, b);
        } else if constexpr (sizeof(T) == 8) {
#pragma unroll
            for (int j = 0; j < kFragmentsN; ++j) {
                const uint2 words =
                    load_pair(memory + Filler::place_of(first_column() + j * 8 + lane() / 4, k + lane() % 4));
                b[j][step] = {__hiloint2double(words.y, words.x)};
            }
        } else {
#pragma unroll
            for (int j = 0; j < kFragmentsN; j += 2) {
                unsigned words[4];
                const int n = first_column() + j * 8 + lane() / 16 * 8, half = lane() / 8 % 2;
                if constexpr (kPixelwise)
                    load_transposed_matrices(
                        words, memory + Filler::template place<BLOCK_N>(k + half * 8 + lane() % 8, n / 8));
                else load_matrices(words, memory + Filler::place(n + lane() % 8, k * int(sizeof(T)) / 16 + half));
                prepare_pair<Arithmetic>(words, b, j, step);
            }
        }
    }
    // Load kWide half-fragments (fragments of columns) at once. For 32-bit elements, the second half of K is four
    // pixels further.
    DEVICE void load_neighbours_of_rows(unsigned memory, int k, int step,
                                        uint4 (&a)[kFragmentsM][kStep][kParts]) const {
        const unsigned source = memory + (k + lane() % 4) * Filler::template kPitch<BLOCK_M>
                              + (first_row() + lane() / 4 * kWide) * int(sizeof(T));
#pragma unroll
        for (int i = 0; i < kFragmentsM; i += kWide / 2) {
            const uint4 low = load_shared(source + i * 16 * int(sizeof(T)));
            if constexpr (sizeof(T) == 8) {
                prepare(low, a[i][step]);
            } else {
                const uint4 high = load_shared(source + i * 16 * int(sizeof(T)) + 4 * Filler::template kPitch<BLOCK_M>);
                prepare(make_uint4(low.x, low.y, high.x, high.y), a[i][step]);
                prepare(make_uint4(low.z, low.w, high.z, high.w), a[i + 1][step]);
            }
        }
    }
    DEVICE void load_neighbours_of_columns(unsigned memory, int k, int step, Inputs (&b)[kFragmentsN][kStep]) const {
        const unsigned source = memory + (k + lane() % 4) * Filler::template kPitch<BLOCK_N>
                              + (first_column() + lane() / 4 * kWide) * int(sizeof(T));
#pragma unroll
        for (int j = 0; j < kFragmentsN; j += kWide)
            load_neighbours<Arithmetic>(source + j * 8 * int(sizeof(T)), Filler::template kPitch<BLOCK_N>, b, j, step);
    }
    static DEVICE uint2 load_pair(unsigned address) {
        uint2 v;
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
        return v;
    }
};
