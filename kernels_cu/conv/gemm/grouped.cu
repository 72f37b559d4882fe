// Conv and ConvTranspose with few channels per group, on tensor cores. Several groups share one GEMM: the weights of a
// block of groups form a block-diagonal matrix, zero where a filter meets another group's channel. One launch; w is
// read unpacked.
//
// Block: some groups, BLOCK_M of their filters, and one tile after another of their outputs (a persistent loop). Warp:
// all BLOCK_M filters x WARP_N of the tile's columns.
//
//     once:      w -> shared fragments[tap][depth][m]      (block-diagonal, zeros elsewhere)
//     per tile:  x -> shared band, the tile's inputs with halo, each pixel once (conv/gemm/grouped_bands.cuh)
//                for each tap: ldmatrix from the band at the tap's offset, mma.sync with the fragments
//
//         channels of group   0 1 | 2 3
//         filters of group 0  w w | 0 0
//         filters of group 1  0 0 | w w
//
// Of g groups, 1 / g of the products are useful; the planner's model weighs that against tiles that are mostly empty.
// Bound by copying the band (instruction issue and shared-memory wavefronts), by the tensor cores, or by memory. Inputs
// are read once from global memory for all taps. Zero times an infinity of another group, or of the padding, is NaN:
// sums that are not finite are recomputed from the filter's own group (`repair`).
#include "conv/gemm/grouped_bands.cuh"
#include "conv/epilogue.cuh"
#include "conv/gemm/fragments.cuh"
#include "conv/phases.cuh"
#include "conv/wide_outputs.cuh"

// Where w lies in memory, and how filters and groups are numbered.
struct GroupedWeights {
    const void* w;
    int w_group, w_filter, w_channel, w_stride[3];
    Divider<int> kernel[3]; // kernel size
    Divider<int> filters;   // filters per group; those of the correlation are per block of groups
    Divider<int> groups;    // blocks of groups
    int outputs;            // widest stores that y allows: an `Outputs`
};

struct ConvGroupedParams {
    Correlation<int, 3> common;
    Taps<int, 3> taps;
    Bands bands;
    GroupedWeights weights;
};

struct ConvTransposeGroupedParams {
    ConvTransposeParams<int, 3> all;
    Bands bands;
    GroupedWeights weights;
};

// One block. `Arithmetic` is from conv/gemm/fragments.cuh.
template <class Arithmetic, int BLOCK_M, int WARP_N, int WARPS> struct Grouped {
    using T = typename Arithmetic::Element;
    using Acc = typename Arithmetic::Acc;
    using Inputs = typename Arithmetic::Inputs;
    using Place = FragmentPlace<T>;
    struct Tap { int weights, inputs; }; // a tap's offset in w, in elements; in the band, in bytes

    static constexpr int kThreads = WARPS * 32, kBlockM = BLOCK_M, kBlockN = WARPS * WARP_N;
    static constexpr int kFragmentsM = BLOCK_M / 16, kFragmentsN = WARP_N / 8;
    static constexpr int kParts = Arithmetic::kParts, kFragmentBytes = 512 * kParts;
    static constexpr int kGap = 16; // padding in bytes between the fragments of adjacent taps, against bank conflicts
    static constexpr int kAtOnce = 2, kTapsAtOnce = 9; // weights that a thread loads ahead: channels, taps

    // For the epilogue (conv/epilogue.cuh).
    using Wide = WideOutputs<T, WARP_N>;
    static constexpr int kRows = 16, kColumns = 32, kPitch = kColumns + 8;
    static constexpr int kChunksM = kFragmentsM, kChunksN = WARP_N / kColumns;
    static constexpr bool kClips = true, kExact = false; // zeros of other groups may turn sums into NaN as well

    const Correlation<int, 3>& p;
    const Taps<int, 3>& taps;
    const GroupedWeights& weights;
    unsigned fragments; // shared-memory address, after the table of taps
    const Tap* table;
    const T* w; // weights of the block's first group
    int m0, tap_count, tap_bytes;
    Band<T, kThreads> band;
    Acc sums[kFragmentsM][kFragmentsN][4];

    // Shared memory: table of taps, fragments, band.
    DEVICE Grouped(const Correlation<int, 3>& p, const Taps<int, 3>& taps, const Bands& bands,
                   const GroupedWeights& weights, unsigned char* memory)
        : p(p), taps(taps), weights(weights), table(reinterpret_cast<const Tap*>(memory)), band(p, taps, bands, 0) {
        const int most = int(weights.kernel[0].divisor * weights.kernel[1].divisor * weights.kernel[2].divisor);
        tap_count = p.by_channel.quotient(taps.rows);
        tap_bytes = bands.depths * kFragmentsM * kFragmentBytes + kGap;
        fragments = shared_address(memory) + (most * int(sizeof(Tap)) + 15) / 16 * 16;
        band.memory = fragments + most * tap_bytes;
    }
    // Selects a block of groups and its filters from first_m on.
    DEVICE void stand(int group, int first_m) {
        const int first_group = group * groups();
        m0 = first_m;
        w = static_cast<const T*>(weights.w) + first_group * weights.w_group;
        band.stand(first_group);
    }
    // Groups per block.
    DEVICE int groups() const { return weights.filters.quotient(p.filters); }

    // ---- weights

    // Fills the table of taps.
    DEVICE void fill_table() const {
        for (int number = threadIdx.x; number < tap_count; number += kThreads) {
            int tap[3];
            unravel<3>(number, taps.count, tap);
            Tap& entry = const_cast<Tap*>(table)[number];
            entry.weights = of_tap(tap_row(taps, tap));
            entry.inputs = band.away(tap);
        }
    }
    // Offset in w of the tap of a row of the GEMM, in elements.
    DEVICE int of_tap(int row) const {
        int tap[3];
        unravel<3>(p.by_channel.quotient(row), weights.kernel, tap);
        return dot(tap, weights.w_stride);
    }
    // Offset in w of filter m of the block, in elements.
    DEVICE int of_filter(int m) const {
        int filter;
        const int group = weights.filters.split(m, filter);
        return group * weights.w_group + filter * weights.w_filter;
    }
    DEVICE void clear_fragments() const {
        for (int at = threadIdx.x * 16; at < tap_count * tap_bytes; at += kThreads * 16)
            store_shared(fragments + at, make_uint4(0, 0, 0, 0));
    }
    // Stores the weights as fragments. A thread handles one channel of one filter at a time, with all its taps, which
    // are adjacent in w.
    DEVICE void fill_fragments() const {
        const int count = BLOCK_M * p.channels;
#pragma unroll 1
        for (int i = threadIdx.x; i < count; i += kAtOnce * kThreads) {
            const T* source[kAtOnce];
            unsigned target[kAtOnce];
            bool exists[kAtOnce];
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k)
                exists[k] = find_weight(i + k * kThreads, source[k], target[k]) && i + k * kThreads < count;
#pragma unroll 1
            for (int first = 0; first < tap_count; first += kTapsAtOnce) fill_taps(first, source, target, exists);
        }
    }
    // Finds the first tap of one (filter, channel): its address in w and its place among the fragments. Returns whether
    // the filter exists.
    DEVICE bool find_weight(int number, const T*& source, unsigned& target) const {
        int channel;
        const int row = p.by_channel.split(number, channel), m = m0 + row;
        const int k = weights.filters.quotient(m) * p.channels + channel;
        source = w + (of_filter(m) + channel * weights.w_channel);
        target = fragments + (k / Place::kDepth * kFragmentsM + row / 16) * kFragmentBytes
               + Place::number(row % 16, k % Place::kDepth) * int(sizeof(T));
        return m < p.filters;
    }
    // Copies kTapsAtOnce taps from tap `first` on, with all loads in flight at once.
    DEVICE void fill_taps(int first, const T* const (&source)[kAtOnce], const unsigned (&target)[kAtOnce],
                          const bool (&exists)[kAtOnce]) const {
        T values[kAtOnce][kTapsAtOnce];
#pragma unroll
        for (int i = 0; i < kTapsAtOnce; ++i) {
            const int away = first + i < tap_count ? table[first + i].weights : 0;
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k)
                if (exists[k]) values[k][i] = source[k][away];
        }
#pragma unroll
        for (int i = 0; i < kTapsAtOnce; ++i) {
            if (first + i >= tap_count) break;
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k)
#pragma unroll
                for (int part = 0; part < kParts; ++part)
                    if (exists[k])
                        store_shared(target[k] + (first + i) * tap_bytes + part * 512,
                                     Arithmetic::part(values[k][i], part));
        }
    }

    // ---- multiplying

    DEVICE int lane() const { return threadIdx.x % 32; }
    DEVICE int first_column() const { return threadIdx.x / 32 * WARP_N; }

    // Multiplies all taps of the current tile.
    DEVICE void multiply() {
        clear(sums);
        const Bands& bands = band.bands;
        const int columns = int(bands.tile[0].divisor * bands.tile[1].divisor * bands.tile[2].divisor);
        if (first_column() >= columns) return;
        unsigned places[kFragmentsN / 2],
            a_place = fragments + lane() * 16; // lanes address chunks as in conv/gemm/mma.cuh
#pragma unroll
        for (int j = 0; j < kFragmentsN / 2; ++j)
            places[j] = band.place(first_column() + j * 16 + lane() / 16 * 8 + lane() % 8) + lane() / 8 % 2 * 16;
#pragma unroll 1
        for (int tap = 0; tap < tap_count; ++tap) {
            const int away = table[tap].inputs;
#pragma unroll 1
            for (int depth = 0; depth < bands.depths; ++depth) {
                multiply_depth(a_place, places, away + depth * 32);
                a_place += kFragmentsM * kFragmentBytes;
            }
            a_place += kGap;
        }
    }
    // One tap, one fragment along K.
    DEVICE void multiply_depth(unsigned a_place, const unsigned (&places)[kFragmentsN / 2], int away) {
        uint4 a[kFragmentsM][1][kParts];
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
            for (int part = 0; part < kParts; ++part)
                a[i][0][part] = load_shared(a_place + i * kFragmentBytes + part * 512);
#pragma unroll
        for (int j = 0; j < kFragmentsN; j += 2) {
            unsigned words[4];
            load_matrices(words, places[j / 2] + away);
            const Inputs low[1] = {Arithmetic::prepare(words[0], words[1])},
                         high[1] = {Arithmetic::prepare(words[2], words[3])};
#pragma unroll
            for (int i = 0; i < kFragmentsM; ++i) {
                Arithmetic::multiply(sums[i][j], a[i], low);
                Arithmetic::multiply(sums[i][j + 1], a[i], high);
            }
        }
    }

    // ---- interface for the epilogue (conv/epilogue.cuh)

    DEVICE Pixel<int, 3> pixel(int column) const { return band.pixel(column); }
    DEVICE int chunk_row(int i) const { return i * kRows; }
    DEVICE int chunk_column(int j) const { return first_column() + j * kColumns; }
    // Stores chunk (i, j) of this warp's sums to the piece.
    DEVICE void put(Acc* piece, int i, int j) const {
        Acc* mine = piece + lane() / 4 * kPitch + lane() % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int f = 0; f < 4; ++f) {
                const Acc pair[2] = {sums[i][j * 4 + f][half * 2], sums[i][j * 4 + f][half * 2 + 1]};
                store_shared(mine + half * 8 * kPitch + f * 8, pair);
            }
    }
    DEVICE Acc weight(int row, int m) const {
        int channel;
        p.by_channel.split(row, channel);
        return widen(w[of_filter(m) + channel * weights.w_channel + of_tap(row)]);
    }
};

// Offset in x of the first channel of filter m's own group.
template <class Arithmetic, int BLOCK_M, int WARP_N, int WARPS>
DEVICE int first_input(const Grouped<Arithmetic, BLOCK_M, WARP_N, WARPS>& grouped, const Correlation<int, 3>& p,
                       int group, int m) {
    return (group * grouped.groups() + grouped.weights.filters.quotient(m)) * p.channels * p.x_channel;
}

// Activates four sums at a time; with more at once, registers spill.
DEVICE void activate(const Finish& finish, float (&sums)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) sums[k] = activated(finish, sums[k]);
}

// Writes the tile by vectorised stores (conv/wide_outputs.cuh); only without a residual. Returns whether any thread of
// the warp wrote a non-finite sum.
template <class Multiplier, class Writer>
DEVICE bool write_wide(const Multiplier& grouped, const Writer& epilogue, void* pieces) {
    using T = typename Multiplier::T;
    using Wide = typename Multiplier::Wide;
    const bool pairs = grouped.weights.outputs == int(Outputs::kPairs);
    unsigned char* piece = static_cast<unsigned char*>(pieces) + threadIdx.x / 32 * Wide::kBytes;
    constexpr int kOffsets = Multiplier::kChunksN;
    int offsets[kOffsets];
#pragma unroll
    for (int i = 0; i < (pairs ? 1 : kOffsets); ++i) {
        const int column = grouped.first_column() + (pairs ? Wide::column() : grouped.lane() + i * 32);
        if (!epilogue.locate(grouped.pixel(column), offsets[i])) offsets[i] = -1;
    }
    float spoilt = 0; // becomes NaN if any sum is not finite
#pragma unroll
    for (int i = 0; i < Multiplier::kFragmentsM; ++i) {
        const int m = epilogue.m0 + i * 16, row = m + grouped.lane() / 4, limit = grouped.p.filters - m;
        if (limit <= 0) break;
        const float bias[2] = {row < grouped.p.filters ? epilogue.bias(row) : 0.f,
                               row + 8 < grouped.p.filters ? epilogue.bias(row + 8) : 0.f};
        float sums[Multiplier::kFragmentsN][4];
#pragma unroll
        for (int j = 0; j < Multiplier::kFragmentsN; ++j) {
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                sums[j][k] = nan_unless_finite(grouped.sums[i][j][k] + bias[k / 2]); // NaN marks sums to recompute
                spoilt = __fmaf_rn(sums[j][k], 0.f, spoilt);
            }
            if (grouped.p.finish.acts != 0) activate(grouped.p.finish, sums[j]);
        }
        T* y = epilogue.output() + m * grouped.p.y_channel;
        if (pairs) Wide::put_pairs(piece, sums);
        else Wide::put_chunks(piece, sums);
        __syncwarp();
        if (pairs) Wide::write_pairs(piece, y + offsets[0], offsets[0] >= 0, grouped.p.y_channel, limit);
        else Wide::write_chunks(piece, y, offsets);
        __syncwarp();
    }
    return __any_sync(0xffffffff, spoilt != 0);
}

// Computes the tiles first, first + step, ...
template <bool PHASED, class Multiplier>
DEVICE void make_tiles(Multiplier&& grouped, int group, int m0, int first, int step, unsigned char* shared) {
    using T = typename Multiplier::T;
    void* pieces = shared + (grouped.band.memory - shared_address(shared));
    const bool wide = grouped.weights.outputs != int(Outputs::kSingle)
                   && reinterpret_cast<unsigned long long>(grouped.p.y) % 16 == 0
                   && grouped.p.finish.residual == nullptr;
    grouped.stand(group, m0);
    grouped.band.start(first); // copies continue while the fragments are built
    grouped.fill_table();
    grouped.clear_fragments();
    __syncthreads();
    grouped.fill_fragments();
#pragma unroll 1
    for (int tile = first; tile < grouped.band.tiles(); tile += step) {
        copy_async_wait<0>();
        __syncthreads(); // the band has arrived for all threads, and the fragments are complete
        grouped.multiply();
        __syncthreads(); // all threads have finished reading the band
        keep(group);     // hides both from the compiler: values derived from them need no registers in the main loop
        keep(m0);
        const Epilogue<Multiplier, T, typename Multiplier::Acc, int, 3, PHASED> epilogue{
            grouped.p, grouped.taps, grouped, group, m0, 0};
        if (wide ? write_wide(grouped, epilogue, pieces) : epilogue.write(pieces)) epilogue.repair();
        __syncthreads(); // the epilogue's pieces, which overlap the band, are free
        grouped.band.start(tile + step);
    }
}

// A block computes every n_tiles-th tile of its groups and filters, from `first` on.
template <class Arithmetic, int BLOCK_M, int WARP_N, int WARPS> DEVICE void conv_grouped(const ConvGroupedParams& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    int m_tile, group;
    const int first = p.weights.groups.split(p.common.m_tiles.split(block_number(), m_tile), group);
    make_tiles<false>(Grouped<Arithmetic, BLOCK_M, WARP_N, WARPS>(p.common, p.taps, p.bands, p.weights, shared), group,
                      m_tile * BLOCK_M, first, int(p.common.n_tiles.divisor), shared);
}

// A block computes tiles of a single phase (conv/phases.cuh).
template <class Arithmetic, int BLOCK_M, int WARP_N, int WARPS>
DEVICE void conv_transpose_grouped(const ConvTransposeGroupedParams& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int kTapsBytes = (sizeof(Taps<int, 3>) + 15) / 16 * 16;
    Taps<int, 3>& taps = *reinterpret_cast<Taps<int, 3>*>(shared);
    const Correlation<int, 3>& common = p.all.common;
    int m_tile, group, phase;
    const int first =
        p.weights.groups.split(p.all.phases.split(common.m_tiles.split(block_number(), m_tile), phase), group);
    if (threadIdx.x == 0) fill_taps_of(p.all, phase, taps);
    __syncthreads();
    make_tiles<true>(Grouped<Arithmetic, BLOCK_M, WARP_N, WARPS>(common, taps, p.bands, p.weights, shared + kTapsBytes),
                     group, m_tile * BLOCK_M, first, int(common.n_tiles.divisor), shared + kTapsBytes);
}
