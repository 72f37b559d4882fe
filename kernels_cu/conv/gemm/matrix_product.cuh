// Main loop of a plain GEMM on tensor cores, for Conv of kernel size 1 and ConvTranspose whose kernel is its stride.
// Weights are (M, K), or (K, M) if WEIGHT_ROWS; inputs are (K, pixels). Both are copied from where they are; nothing is
// packed.
//
//     w --cp.async--> shared (MatrixColumns or MatrixRows)  --ldmatrix-->  A fragments  \
//                                                                                        mma.sync -> sums
//     x --cp.async--> shared (MatrixRows or SliceInputs)    --ldmatrix-->  B fragments  /
//
// Of Correlation, `pitch` is the distance in w between adjacent filters (WEIGHT_ROWS: channels) in bytes, and
// `all_rows` the number of these per group. 16-bit fragments are loaded by ldmatrix, transposed if K is not contiguous.
// Weights in float32 are also loaded by ldmatrix, as pairs of 16 bits, unless they need transposing, which ldmatrix
// cannot do for them. With few channels or filters the kernel is bound by memory, otherwise by the tensor cores.
#pragma once
#include "conv/gemm/matrix_inputs.cuh"
#include "conv/gemm/mma.cuh"

// Selects one of two types.
template <bool FIRST, class One, class Other> struct Either { using Type = One; };
template <class One, class Other> struct Either<false, One, Other> { using Type = Other; };

// How inputs are loaded: as rows of a matrix (NCHW), or pixel by pixel where channels are contiguous (NHWC).
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, bool INPUT_ROWS>
using InputsOfOneTap = typename Either<
    INPUT_ROWS, MatrixInputs<typename Arithmetic::Element, BLOCK_N, BLOCK_K, BLOCK_M / WARP_M*(BLOCK_N / WARP_N) * 32>,
    SliceInputs<typename Arithmetic::Element, BLOCK_N, BLOCK_K, BLOCK_M / WARP_M*(BLOCK_N / WARP_N) * 32,
                Gather::kVector>>::Type;

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, bool INPUT_ROWS>
using MatrixMma = Mma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, Gather::kVector, false,
                      InputsOfOneTap<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, INPUT_ROWS>>;

// See the top of this file. It replaces the loaders and the operand loads of Mma.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, bool INPUT_ROWS,
          bool WEIGHT_ROWS>
struct MatrixProduct : MatrixMma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, INPUT_ROWS> {
    using Base = MatrixMma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, INPUT_ROWS>;
    using Base::a_place, Base::b_place, Base::buffers, Base::inputs, Base::kFragmentsM, Base::kFragmentsN, Base::kParts,
        Base::kThreads, Base::lane, Base::p, Base::sums, Base::taps, Base::warp_m, Base::warp_n;
    using typename Base::T, typename Base::Acc, typename Base::Inputs, typename Base::Place, typename Base::Gathering;
    using Rows = MatrixRows<T, BLOCK_M, BLOCK_K, kThreads>;
    using Weights = typename Either<WEIGHT_ROWS, Rows, MatrixColumns<T, BLOCK_M, BLOCK_K, kThreads>>::Type;

    static constexpr int kStageBytes = (Gathering::kBytes + Weights::kBytes + 127) / 128 * 128;
    static constexpr int kTable = Gathering::kTableBytes;
    // space for the epilogue of conv/gemm/depth_to_space.cuh
    static constexpr int kTileBytes = BLOCK_M * (BLOCK_N * sizeof(Acc) + 64);
    static constexpr int kBuffers = STAGES * kStageBytes;
    static constexpr int kSharedBytes = WEIGHT_ROWS && kTileBytes > kBuffers + kTable ? kTileBytes : kBuffers + kTable;
    static_assert(Base::kRows * Base::kPitch * sizeof(Acc) * (kThreads / 32) <= kBuffers
                  && Gathering::kBytes % 128 == 0);
    static_assert(Base::kStep == 1);

    const T* w;     // first weight of this block's group
    int m0, w_step; // w_step: elements of w between filters (WEIGHT_ROWS: channels)
    Weights copied;

    DEVICE MatrixProduct(const Correlation<int, 3>& p, const Taps<int, 3>& taps, void* memory)
        : Base(p, taps, memory, static_cast<unsigned char*>(memory) + kBuffers) {}

    DEVICE void stand(int group, int first_m) {
        m0 = first_m;
        w_step = p.pitch / int(sizeof(T));
        w = static_cast<const T*>(p.weights) + group * (p.all_rows * w_step);
        inputs.stand(group);
    }
    // Prepares for the first slice.
    DEVICE void start(int column0) {
        inputs.start(column0, slices(), buffers);
        start_weights(buffers + Gathering::kBytes);
        b_place = buffers + place_of_inputs(warp_n() * WARP_N);
        a_place = buffers + Gathering::kBytes + place_of_weights(warp_m() * WARP_M);
        keep(a_place);
        keep(b_place);
        clear(sums);
    }
    // Prepares the loader of weights; `target` is its place in the first buffer.
    DEVICE void start_weights(unsigned target) {
        if constexpr (WEIGHT_ROWS) {
            const int width = copied_at_once(w, (p.filters | w_step) * int(sizeof(T))), m = m0 + Rows::column(width);
            copied.start(w + m, m < p.filters, w_step, taps.rows, width, target);
        } else {
            copied.start(w + m0 * w_step, w_step, taps.rows, p.filters - m0, target);
        }
    }
    DEVICE int slices() const { return (taps.rows + BLOCK_K - 1) / BLOCK_K; }
    DEVICE void fetch(int stage) {
        inputs.fetch(stage * kStageBytes);
        copied.fetch(stage * kStageBytes);
    }
    DEVICE void deposit(int) const {}

    // ---- multiplying a slice

    // Offset of this lane's first elements in a slice. With ldmatrix, it is the row whose address the lane provides.
    DEVICE int place_of_inputs(int n) const {
        if constexpr (INPUT_ROWS && sizeof(T) == 2)
            return lane() % 16 * Gathering::kPitch + (n + lane() / 16 * 8) * sizeof(T);
        else return Base::place_of_inputs(n);
    }
    DEVICE int place_of_weights(int m) const {
        if constexpr (!WEIGHT_ROWS) return Weights::chunk(m + lane() % 16, lane() / 16);
        else if constexpr (sizeof(T) == 2)
            return (lane() / 16 * 8 + lane() % 8) * Weights::kPitch + (m + lane() / 8 % 2 * 8) * sizeof(T);
        else return lane() % 4 * Weights::kPitch + (m + lane() / 4) * sizeof(T);
    }
    // Multiplies one slice.
    DEVICE void multiply(int stage) {
        const unsigned a_stage = a_place + stage * kStageBytes, b_stage = b_place + stage * kStageBytes;
#pragma unroll
        for (int depth = 0; depth < Base::kDepths; ++depth) {
            uint4 a[kFragmentsM][1][kParts];
            Inputs b[kFragmentsN][1];
#pragma unroll
            for (int i = 0; i < kFragmentsM; ++i) Arithmetic::prepare(weights_of(a_stage, depth, i), a[i][0]);
            const unsigned rows = b_stage + depth * Place::kDepth * Gathering::kPitch;
            if constexpr (Base::kPixelwise) Base::load_pixels(b_stage ^ depth * 32, b);
            else if constexpr (sizeof(T) == 2) load_transposed(rows, b);
            else Base::load_rows(rows, b);
#pragma unroll
            for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
                for (int j = 0; j < kFragmentsN; ++j) Arithmetic::multiply(sums[i][j], a[i], b[j]);
        }
    }
    // Loads the fragment of weights number i, at `depth` fragments along K.
    DEVICE uint4 weights_of(unsigned stage, int depth, int i) const {
        unsigned words[4];
        const unsigned row = stage + depth * Place::kDepth * Weights::kPitch + i * 16 * int(sizeof(T));
        if constexpr (!WEIGHT_ROWS) {
            load_matrices(words, (stage ^ depth * 32) + i * 16 * Weights::kPitch);
        } else if constexpr (sizeof(T) == 2) {
            load_transposed_matrices(words, row);
        } else {
#pragma unroll
            for (int k = 0; k < 4; ++k)
                words[k] = load_word(row + k / 2 * 4 * Weights::kPitch + k % 2 * 8 * int(sizeof(T)));
        }
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
    // Loads fragments of inputs from rows of K, by transposing ldmatrix.
    DEVICE void load_transposed(unsigned address, Inputs (&b)[kFragmentsN][1]) const {
#pragma unroll
        for (int j = 0; j < kFragmentsN; j += 2) {
            unsigned words[4];
            load_transposed_matrices(words, address + j * 8 * int(sizeof(T)));
            prepare_pair<Arithmetic>(words, b, j, 0);
        }
    }

    // ---- interface for the epilogue (conv/epilogue.cuh)

    DEVICE Acc weight(int row, int m) const {
        const T value = w[WEIGHT_ROWS ? row * w_step + m : m * w_step + row];
        return widen(kParts == 1 ? Arithmetic::part(value, 0) : value);
    }
};
