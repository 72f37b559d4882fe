// Main loop of implicit GEMM on tensor cores (mma.sync).
//
// Block: BLOCK_M x BLOCK_N outputs, slices of BLOCK_K rows of K, STAGES buffers. Warp: WARP_M x WARP_N sums, as 16 x 8
// fragments in registers.
//
//     packed weights (conv/gemm/pack_fragments.cu) --cp.async--> shared fragments --ld.shared, 16 bytes--> A  \
//                                                                                                      mma.sync
//     x, gathered (conv/gemm/slice_inputs.cuh) --cp.async--> shared, swizzled --ldmatrix--> B                 /
//
// Packed fragments are contiguous: a warp copies and loads 512 adjacent bytes at a time. Elements of 32 or 64 bits in
// NCHW are stored by rows of K instead. There a lane loads 16 bytes of a row at once, which are its pixels of kWide
// fragments. Fragment f holds pixels kWide * n + f of kWide * 8. Large tiles are bound by the tensor cores, small ones
// by instruction issue and shared-memory wavefronts, layers with few channels by memory.
#pragma once
#include "conv/gemm/fragments.cuh"
#include "conv/gemm/slice_inputs.cuh"

// See the top of this file. Filler: the loader of inputs. PHASED: as in conv/gemm/ffma.cuh.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, Gather GATHER,
          bool PHASED,
          class Filler = SliceInputs<typename Arithmetic::Element, BLOCK_N, BLOCK_K,
                                     BLOCK_M / WARP_M*(BLOCK_N / WARP_N) * 32, GATHER>>
struct Mma {
    using T = typename Arithmetic::Element;
    using Acc = typename Arithmetic::Acc;
    using Inputs = typename Arithmetic::Inputs;
    using Place = FragmentPlace<T>;

    static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N, kStages = STAGES;
    static constexpr int kParts = Arithmetic::kParts, kStep = Arithmetic::kStep;
    static constexpr int kWarpsM = BLOCK_M / WARP_M, kThreads = kWarpsM * (BLOCK_N / WARP_N) * 32;
    static constexpr int kFragmentsM = WARP_M / 16, kFragmentsN = WARP_N / 8;
    static constexpr int kDepths = BLOCK_K / Place::kDepth; // fragments along K per slice
    static constexpr int kFragmentBytes = 512 * kParts;
    // bytes of a slice's fragments of 16 output channels
    static constexpr int kWeightColumn = kDepths * kFragmentBytes;
    static constexpr int kWeightBytes = BLOCK_M / 16 * kWeightColumn;
    using Gathering = Filler;
    static constexpr bool kPixelwise = Gathering::kPixelwise;
    static constexpr int kStageBytes = kWeightBytes + Gathering::kBytes;
    // the buffers, and the table of pixels; the table of rows of K follows
    static constexpr int kSharedBytes = STAGES * kStageBytes + Gathering::kTableBytes;
    static_assert(kStageBytes % 128 == 0);

    // For the epilogue: chunks of 16 x 32. A lane holds pairs of kWide adjacent sums of a row.
    static constexpr int kWide = kPixelwise || sizeof(T) == 2 ? 1 : 16 / sizeof(T);
    static constexpr int kRows = 16, kColumns = 32, kPitch = kColumns + (kWide == 1 ? 8 : 16 / int(sizeof(Acc)));
    static constexpr int kChunksM = kFragmentsM, kChunksN = WARP_N / kColumns;
    static constexpr bool kExact = Arithmetic::kExact, kClips = true;
    static_assert(kRows * kPitch * sizeof(Acc) * (kThreads / 32) <= STAGES * kStageBytes); // the epilogue's pieces

    const Correlation<int, 3>& p;
    const Taps<int, 3>& taps;
    const unsigned char* weights;      // packed weights of this block's group
    const unsigned char* next_weights; // this thread's source in the next slice
    int along;                         // bytes of packed weights before the block's first output channel
    // shared-memory addresses: the buffers; this thread's destination of weights; its sources of both operands
    unsigned buffers, filled, a_place, b_place;
    Gathering inputs;
    int left; // slices to multiply before the last one of the current tap
    Acc sums[kFragmentsM][kFragmentsN][4];

    DEVICE Mma(const Correlation<int, 3>& p, const Taps<int, 3>& taps, void* memory)
        : Mma(p, taps, memory, static_cast<unsigned char*>(memory) + STAGES * kStageBytes) {}
    DEVICE Mma(const Correlation<int, 3>& p, const Taps<int, 3>& taps, void* memory, void* tables)
        : p(p), taps(taps), buffers(shared_address(memory)), inputs(p, taps, tables) {}
    // Selects the tile's group and first output channel.
    DEVICE void stand(int group, int first_m) {
        along = first_m / 16 * kWeightColumn;
        weights = static_cast<const unsigned char*>(p.weights) + group * (p.all_rows * p.pitch);
        inputs.stand(group);
    }
    // Prepares for the first slice.
    DEVICE void start(int column0) {
        inputs.start(column0, slices(), buffers);
        next_weights = slice_of(PHASED ? taps.first_row : 0);
        left = slices_of_tap() - 1;
        filled = buffers + Gathering::kBytes + first_weight();
        a_place = buffers + Gathering::kBytes + warp_m() * kFragmentsM * kWeightColumn + lane() * 16;
        const int n = warp_n() * WARP_N;
        b_place = buffers + place_of_inputs(n);
        keep(filled);
        keep(a_place);
        keep(b_place);
        clear(sums);
    }
    // Offset of this lane's first inputs in a slice. For ldmatrix, lanes address the chunks of two fragments: the first
    // and second chunk of eight pixels, then those of the next eight. ldmatrix gives 4 bytes to each lane, so 8-byte
    // elements are loaded one by one instead.
    DEVICE int place_of_inputs(int n) const {
        if constexpr (kPixelwise && sizeof(T) == 8)
            return Gathering::chunk(n + lane() / 4, lane() % 4 / 2) + lane() % 2 * 8;
        else if constexpr (kPixelwise) return Gathering::chunk(n + lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);
        else return lane() % 4 * Gathering::kPitch + n * sizeof(T) + lane() / 4 * 16;
    }
    // Prepares for slice number `slices` instead of the first (split-K).
    DEVICE void skip(int slices) {
        inputs.skip(slices);
        left = slices_of_tap() - 1 - slices % slices_of_tap();
        next_weights = slice_of(PHASED ? tap_row(taps, inputs.next.tap) + inputs.next.channel : slices * BLOCK_K);
    }
    DEVICE int slices() const {
        if constexpr (!Gathering::kUniformTap) return (taps.rows + BLOCK_K - 1) / BLOCK_K;
        return p.by_channel.quotient(taps.rows) * slices_of_tap();
    }
    DEVICE int slices_of_tap() const { return (p.channels + BLOCK_K - 1) / BLOCK_K; }

    // ---- loading a slice: global -> shared

    // A warp copies adjacent bytes of weights. Offsets are relative to the middle of its share, since the immediate
    // offset of a copy instruction has few bits.
    static constexpr int kWarpWeights = kWeightBytes / (kThreads / 32), kMiddle = kWarpWeights / 1024 * 512;
    static_assert(kWarpWeights % 512 == 0 || kWarpWeights == 256);
    DEVICE int first_weight() const { return threadIdx.x / 32 * kWarpWeights + lane() * 16 + kMiddle; }
    // This thread's source of packed weights, in the slice that begins at this row of the GEMM.
    DEVICE const unsigned char* slice_of(int row) const {
        return weights + (row / BLOCK_K * p.pitch + along + first_weight());
    }
    DEVICE void fetch(int stage) {
        fetch_weights(filled + stage * kStageBytes);
        const bool begins = inputs.fetch(stage * kStageBytes);
        if (PHASED && begins) next_weights = slice_of(tap_row(taps, inputs.next.tap));
    }
    // Copies this warp's share of the slice's fragments, and advances to the next slice.
    DEVICE void fetch_weights(unsigned target) {
        if (kWarpWeights >= 512 || lane() * 16 < kWarpWeights) {
#pragma unroll
            for (int i = -kMiddle; i < kWarpWeights - kMiddle; i += 512)
                copy_async<16>(target + i, next_weights + i, 16);
        }
        next_weights += p.pitch;
    }
    DEVICE void deposit(int stage) const { inputs.deposit(stage * kStageBytes); }

    // ---- multiplying a slice

    DEVICE int lane() const { return threadIdx.x % 32; }
    DEVICE int warp_m() const { return threadIdx.x / 32 % kWarpsM; }
    DEVICE int warp_n() const { return threadIdx.x / 32 / kWarpsM; }

    // Fragments along K of a tap's last slice that hold any channels. The remaining ones are zeros and are skipped.
    DEVICE int last_depths() const { return ((p.channels - 1) % BLOCK_K + Place::kDepth) / Place::kDepth; }
    // Multiplies one slice; of a tap's last slice, only the fragments along K that hold channels.
    DEVICE void multiply(int stage) {
        const unsigned a_stage = a_place + stage * kStageBytes, b_stage = b_place + stage * kStageBytes;
        if constexpr (Gathering::kUniformTap && kDepths > kStep) {
            if (--left < 0) {
                left = slices_of_tap() - 1;
                if (last_depths() < kDepths) {
#pragma unroll 1
                    for (int depth = 0; depth < last_depths(); depth += kStep) multiply_depth(a_stage, b_stage, depth);
                    return;
                }
            }
        }
#pragma unroll
        for (int depth = 0; depth < kDepths; depth += kStep) multiply_depth(a_stage, b_stage, depth);
    }
    // Multiplies kStep fragments along K.
    DEVICE void multiply_depth(unsigned a_stage, unsigned b_stage, int depth) {
        uint4 a[kFragmentsM][kStep][kParts];
        Inputs b[kFragmentsN][kStep];
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
            for (int k = 0; k < kStep; ++k)
#pragma unroll
                for (int part = 0; part < kParts; ++part)
                    a[i][k][part] =
                        load_shared(a_stage + i * kWeightColumn + (depth + k) * kFragmentBytes + part * 512);
        if constexpr (kPixelwise && sizeof(T) == 8) load_doubles(b_stage ^ depth * 32, b);
        else if constexpr (kPixelwise) load_pixels(b_stage ^ depth * 32, b);
        else load_rows(b_stage + depth * Place::kDepth * Gathering::kPitch, b);
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
            for (int j = 0; j < kFragmentsN; ++j) Arithmetic::multiply(sums[i][j], a[i], b[j]);
    }
    // Load fragments of inputs: by ldmatrix (pixelwise), element by element (pixelwise, 8 bytes), or from rows of K.
    DEVICE void load_pixels(unsigned address, Inputs (&b)[kFragmentsN][kStep]) const {
#pragma unroll
        for (int j = 0; j < kFragmentsN; j += 2) {
            unsigned words[4];
            load_matrices(words, address + j * 8 * Gathering::kPitch);
            prepare_pair<Arithmetic>(words, b, j, 0);
        }
    }
    DEVICE void load_doubles(unsigned address, Inputs (&b)[kFragmentsN][kStep]) const {
#pragma unroll
        for (int k = 0; k < kStep; ++k)
#pragma unroll
            for (int j = 0; j < kFragmentsN; ++j)
                load_shared((address ^ k * 32) + j * 8 * Gathering::kPitch, b[j][k].value);
    }
    DEVICE void load_rows(unsigned address, Inputs (&b)[kFragmentsN][kStep]) const {
#pragma unroll
        for (int j = 0; j < kFragmentsN; j += kWide)
#pragma unroll
            for (int k = 0; k < kStep; ++k)
                load_neighbours<Arithmetic>(address + k * Place::kDepth * Gathering::kPitch + j * 8 * int(sizeof(T)),
                                            Gathering::kPitch, b, j, k);
    }

    // ---- interface for the epilogue (conv/epilogue.cuh)

    // Whether none of this thread's sums needs recomputation: none is NaN, or, with rounded factors, all are finite.
    DEVICE bool sound() const {
        bool found = true;
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
            for (int j = 0; j < kFragmentsN; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const Acc sum = sums[i][j][e];
                    found = found && (kExact ? sum == sum : is_finite(sum));
                }
        return found;
    }

    DEVICE Pixel<int, 3> pixel(int column) const { return ::pixel(p, column); }
    DEVICE int chunk_row(int i) const { return warp_m() * WARP_M + i * kRows; }
    DEVICE int chunk_column(int j) const { return warp_n() * WARP_N + j * kColumns; }
    // Stores chunk (i, j) of this warp's sums to the piece.
    DEVICE void put(Acc* piece, int i, int j, int pitch = kPitch) const {
        Acc* mine = piece + lane() / 4 * pitch + lane() % 4 * 2 * kWide;
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int f = 0; f < 4; f += kWide) {
                const auto& part = sums[i];
                Acc* target = mine + half * 8 * pitch + f * 8;
                if constexpr (kWide == 1) {
                    const Acc pair[2] = {part[j * 4 + f][half * 2], part[j * 4 + f][half * 2 + 1]};
                    store_shared(target, pair);
                } else {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        Acc neighbours[kWide];
#pragma unroll
                        for (int k = 0; k < kWide; ++k) neighbours[k] = part[j * 4 + f + k][half * 2 + e];
                        store_shared(target + e * kWide, neighbours);
                    }
                }
            }
    }
    DEVICE Acc weight(int row, int m) const { return packed_weight<Arithmetic, BLOCK_K>(weights, p.pitch, row, m); }
};
