// The implicit GEMM's slices of K by FFMA, the cores' own multipliers.
//
// A thread makes THREAD_M x THREAD_N outputs in registers. Weights come packed with the channel m innermost, 16 bytes a
// copy; activations are gathered straight from NCHW, one element a copy and one pixel column a thread, so that a warp's
// loads of 32 neighbours of a row are coalesced. 16-bit elements are too small for asynchronous copies: they pass
// through registers, where they are widened.
//
// A thread's rows and columns come in chunks of 16 bytes that lie BLOCK_M / kChunksM and BLOCK_N / kChunksN apart: a
// warp's threads, 4 x 8 of them, read neighbouring 16 bytes of shared memory without a bank conflict.
#pragma once
#include "conv/gather.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"

// UNIFORM_TAP: BLOCK_K divides C, so that all rows of a slice have one tap. PHASED: the block meets but some of the
// taps and makes but some of the outputs (ConvTranspose); otherwise row k of the packed weights is row k of the GEMM.
// WEIGHT_PITCH: elements of shared memory from one row of weights to the next.
template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          bool UNIFORM_TAP, bool PHASED, int WEIGHT_PITCH = BLOCK_M>
struct Ffma {
    static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
    static constexpr int kThreads = (BLOCK_M / THREAD_M) * (BLOCK_N / THREAD_N);
    static constexpr int kStages = 3;
    static constexpr int kVector = 16 / sizeof(Acc);
    static constexpr int kChunksM = THREAD_M / kVector, kChunksN = THREAD_N / kVector;
    static constexpr int kLanesM = 4, kLanesN = 8; // of a warp
    static constexpr int kWarpsM = BLOCK_M / THREAD_M / kLanesM;
    static constexpr int kRows = kLanesM * kVector, kColumns = kLanesN * kVector, kPitch = kColumns;
    static constexpr int kStageElements = BLOCK_K * (WEIGHT_PITCH + BLOCK_N);
    static constexpr int kSharedBytes = kStages * kStageElements * sizeof(Acc);
    static constexpr int kGathers = BLOCK_K * BLOCK_N / kThreads; // elements of x that a thread moves per slice
    static constexpr int kGatherStep = kThreads / BLOCK_N;        // rows between two of them
    static constexpr int kWeightVectors = BLOCK_K * BLOCK_M / kVector;
    static constexpr bool kAsync = sizeof(T) == sizeof(Acc);
    static constexpr bool kExact = true, kClips = true;
    static_assert(kThreads % BLOCK_N == 0 && BLOCK_K % kGatherStep == 0 && BLOCK_M % (kLanesM * THREAD_M) == 0);
    static_assert(kRows * kPitch * (kThreads / 32) <= kStages * kStageElements); // the epilogue's pieces

    using Vector = Elements<Acc, kVector>;

    const Correlation<Index, NDIM>& p;
    const Taps<Index, NDIM>& taps;
    Acc* shared;
    const T* x; // of this block's group
    const Acc* weights;
    Index m0;

    Window<Index, NDIM> window; // of the gathering thread's pixel
    Cursor<Index, NDIM> next;   // of the slice to be fetched next, or
    Index next_k;               // its first row
    T gathered[kAsync ? 1 : kGathers];
    Acc sums[THREAD_M][THREAD_N];

    DEVICE Ffma(const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps, void* shared)
        : p(p), taps(taps), shared(static_cast<Acc*>(shared)) {}
    DEVICE void stand(Index group, Index first_m) {
        m0 = first_m;
        x = static_cast<const T*>(p.x) + group * p.channels * p.x_channel;
        weights = static_cast<const Acc*>(p.weights) + group * p.all_rows * p.pitch;
    }
    DEVICE void start(Index column0) {
        window.place(p, taps, pixel(column0 + Index(threadIdx.x) % BLOCK_N));
        next.start();
        next_k = 0;
        clear(sums);
    }
    // Goes to another slice than the first.
    DEVICE void skip(int slices) {
        next_k = Index(slices) * BLOCK_K;
        split_row(p, taps, next_k, next.tap, next.channel);
    }
    DEVICE int slices() const { return int((taps.rows + BLOCK_K - 1) / BLOCK_K); }

    // ---- fetching a slice

    DEVICE Index weight_row(Index k) const {
        if constexpr (!PHASED) return k;
        Index channel, tap[NDIM];
        split_row(p, taps, k, tap, channel);
        return tap_row(taps, tap) + channel;
    }
    DEVICE Acc* weight_stage(int stage) const { return shared + stage * kStageElements; }
    DEVICE Acc* input_stage(int stage) const { return weight_stage(stage) + BLOCK_K * WEIGHT_PITCH; }

    DEVICE void move(int which, unsigned target, const T* source, bool found) {
        if constexpr (kAsync) copy_async<sizeof(T)>(target, source, found ? sizeof(T) : 0);
        else gathered[which] = found ? *source : T(0.f);
    }
    DEVICE void fetch(int stage) {
        const int row = threadIdx.x / BLOCK_N;
        const unsigned target = shared_address(input_stage(stage) + row * BLOCK_N + threadIdx.x % BLOCK_N);
        if constexpr (UNIFORM_TAP) {
            Index offset;
            const bool found = window.find(p, taps, next.tap, offset);
            fetch_weights(stage, tap_row(taps, next.tap) + next.channel);
            const T* source = x + offset + (next.channel + row) * p.x_channel;
#pragma unroll
            for (int i = 0; i < kGathers; ++i) {
                move(i, target + i * kGatherStep * BLOCK_N * sizeof(Acc), source, found);
                source += kGatherStep * p.x_channel;
            }
            next.advance(p, taps, BLOCK_K);
        } else {
            fetch_weights(stage, next_k);
#pragma unroll(kAsync ? 2 : kGathers)
            for (int i = 0; i < kGathers; ++i) {
                const Index k = next_k + row + i * kGatherStep;
                Index channel, tap[NDIM], offset;
                split_row(p, taps, k, tap, channel);
                const bool found = window.find(p, taps, tap, offset) && k < taps.rows;
                move(i, target + i * kGatherStep * BLOCK_N * sizeof(Acc), x + offset + channel * p.x_channel, found);
            }
            next_k += BLOCK_K;
        }
    }
    DEVICE void fetch_weights(int stage, Index first) {
#pragma unroll
        for (int i = 0; i < (kWeightVectors + kThreads - 1) / kThreads; ++i) {
            const unsigned vector = threadIdx.x + i * kThreads;
            if (kWeightVectors % kThreads != 0 && vector >= kWeightVectors) break;
            const int row = vector / (BLOCK_M / kVector), m = vector % (BLOCK_M / kVector) * kVector;
            bool found = m0 + m < p.pitch;
            Index packed = first + row;
            if constexpr (!UNIFORM_TAP) {
                found = found && packed < taps.rows;
                packed = weight_row(packed);
            }
            copy_async<16>(shared_address(weight_stage(stage) + row * WEIGHT_PITCH + m),
                           weights + packed * p.pitch + m0 + m, found ? 16 : 0);
        }
    }
    // Puts 16-bit elements, widened, where the copies of wider ones go by themselves.
    DEVICE void deposit(int stage) {
        if constexpr (!kAsync) {
            Acc* target = input_stage(stage) + threadIdx.x;
#pragma unroll
            for (int i = 0; i < kGathers; ++i) target[i * kThreads] = widen(gathered[i]);
        }
    }

    // ---- multiplying

    DEVICE int lane_m() const { return threadIdx.x % 32 / kLanesN; }
    DEVICE int lane_n() const { return threadIdx.x % kLanesN; }
    DEVICE int warp_m() const { return threadIdx.x / 32 % kWarpsM; }
    DEVICE int warp_n() const { return threadIdx.x / 32 / kWarpsM; }

    DEVICE void multiply(int stage) {
        const Acc* a = weight_stage(stage) + (warp_m() * kLanesM + lane_m()) * kVector;
        const Acc* b = input_stage(stage) + (warp_n() * kLanesN + lane_n()) * kVector;
#pragma unroll
        for (int k = 0; k < BLOCK_K; ++k) {
            Vector rows[kChunksM], columns[kChunksN];
#pragma unroll
            for (int i = 0; i < kChunksM; ++i)
                rows[i] = *reinterpret_cast<const Vector*>(a + k * WEIGHT_PITCH + i * (BLOCK_M / kChunksM));
#pragma unroll
            for (int j = 0; j < kChunksN; ++j)
                columns[j] = *reinterpret_cast<const Vector*>(b + k * BLOCK_N + j * (BLOCK_N / kChunksN));
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
                for (int j = 0; j < THREAD_N; ++j)
                    sums[i][j] = multiply_add(rows[i / kVector].values[i % kVector],
                                              columns[j / kVector].values[j % kVector], sums[i][j]);
        }
    }

    // ---- for the epilogue

    // Whether all of this thread's sums may be what they should be (conv/gemm/whole_tile.cuh).
    DEVICE bool sound() const {
        bool found = true;
#pragma unroll
        for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
            for (int j = 0; j < THREAD_N; ++j) found = found && sums[i][j] == sums[i][j];
        return found;
    }
    DEVICE Pixel<Index, NDIM> pixel(Index column) const { return ::pixel(p, column); }
    DEVICE int chunk_row(int i) const { return i * (BLOCK_M / kChunksM) + warp_m() * kRows; }
    DEVICE int chunk_column(int j) const { return j * (BLOCK_N / kChunksN) + warp_n() * kColumns; }
    DEVICE void put(Acc* piece, int i, int j, int pitch = kPitch) const {
#pragma unroll
        for (int row = 0; row < kVector; ++row) {
            Vector part;
#pragma unroll
            for (int k = 0; k < kVector; ++k) part.values[k] = sums[i * kVector + row][j * kVector + k];
            store_shared(piece + (lane_m() * kVector + row) * pitch + lane_n() * kVector, part.values);
        }
    }
    DEVICE Acc weight(Index row, Index m) const { return weights[row * p.pitch + m]; }
};
