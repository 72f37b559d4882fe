// Main loop of implicit GEMM by FFMA (ordinary multiply-adds, not tensor cores), for every dtype.
//
// Block: BLOCK_M x BLOCK_N outputs, in slices of BLOCK_K rows of K. Thread: THREAD_M x THREAD_N sums in registers.
//
//     packed weights (channel m innermost) --cp.async, 16 bytes--> shared[k][m]  \
//                                                                                 FFMA -> registers
//     x (NCHW) --cp.async, one element per copy, predicated-->     shared[k][n]  /
//
// A thread gathers elements of one pixel column, so a warp's loads of 32 adjacent pixels are coalesced. cp.async has no
// 2-byte form: 16-bit elements pass through registers instead and are widened. Three buffers keep two slices in flight.
//
// A thread's rows and columns are in chunks of 16 bytes, BLOCK_M / kChunksM and BLOCK_N / kChunksN apart. So the 4 x 8
// threads of a warp read adjacent 16-byte chunks of shared memory, without bank conflicts. With an 8 x 8 tile per
// thread, four 16-byte loads feed 64 FFMA (float32). Large layers are bound by FFMA, small ones by memory or by too few
// tiles (conv/gemm/split_k.cuh).
#pragma once
#include "conv/gather.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"

// UNIFORM_TAP: BLOCK_K divides C, so that all rows of a slice have the same tap, and the tap is computed once per
// slice. PHASED: the block uses only some taps and computes only some outputs (one phase of a ConvTranspose). Otherwise
// row k of the packed weights is row k of the GEMM. WEIGHT_PITCH: elements of shared memory between adjacent rows of
// weights.
template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          bool UNIFORM_TAP, bool PHASED, int WEIGHT_PITCH = BLOCK_M>
struct Ffma {
    static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N;
    static constexpr int kThreads = (BLOCK_M / THREAD_M) * (BLOCK_N / THREAD_N);
    static constexpr int kStages = 3;
    static constexpr int kVector = 16 / sizeof(Acc);
    static constexpr int kChunksM = THREAD_M / kVector, kChunksN = THREAD_N / kVector;
    static constexpr int kLanesM = 4, kLanesN = 8; // lanes of a warp along M and N
    static constexpr int kWarpsM = BLOCK_M / THREAD_M / kLanesM;
    static constexpr int kRows = kLanesM * kVector, kColumns = kLanesN * kVector, kPitch = kColumns;
    static constexpr int kStageElements = BLOCK_K * (WEIGHT_PITCH + BLOCK_N);
    static constexpr int kSharedBytes = kStages * kStageElements * sizeof(Acc);
    static constexpr int kGathers = BLOCK_K * BLOCK_N / kThreads; // elements of x that a thread copies per slice
    static constexpr int kGatherStep = kThreads / BLOCK_N;        // rows of K between two of them
    static constexpr int kWeightVectors = BLOCK_K * BLOCK_M / kVector;
    static constexpr bool kAsync = sizeof(T) == sizeof(Acc);
    static constexpr bool kExact = true, kClips = true;
    static_assert(kThreads % BLOCK_N == 0 && BLOCK_K % kGatherStep == 0 && BLOCK_M % (kLanesM * THREAD_M) == 0);
    // the epilogue's pieces fit into the buffers
    static_assert(kRows * kPitch * (kThreads / 32) <= kStages * kStageElements);

    using Vector = Elements<Acc, kVector>;

    const Correlation<Index, NDIM>& p;
    const Taps<Index, NDIM>& taps;
    Acc* shared;
    const T* x; // channel 0 of this block's group
    const Acc* weights;
    Index m0;

    Window<Index, NDIM> window; // receptive field of the pixel that this thread gathers
    Cursor<Index, NDIM> next;   // the slice to fetch next: its tap and channel (UNIFORM_TAP), or
    Index next_k;               // its first row of K
    T gathered[kAsync ? 1 : kGathers];
    Acc sums[THREAD_M][THREAD_N];

    DEVICE Ffma(const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps, void* shared)
        : p(p), taps(taps), shared(static_cast<Acc*>(shared)) {}
    // Selects the tile's group and first output channel.
    DEVICE void stand(Index group, Index first_m) {
        m0 = first_m;
        x = static_cast<const T*>(p.x) + group * p.channels * p.x_channel;
        weights = static_cast<const Acc*>(p.weights) + group * p.all_rows * p.pitch;
    }
    // Prepares for the first slice.
    DEVICE void start(Index column0) {
        window.place(p, taps, pixel(column0 + Index(threadIdx.x) % BLOCK_N));
        next.start();
        next_k = 0;
        clear(sums);
    }
    // Prepares for slice number `slices` instead of the first (split-K).
    DEVICE void skip(int slices) {
        next_k = Index(slices) * BLOCK_K;
        split_row(p, taps, next_k, next.tap, next.channel);
    }
    DEVICE int slices() const { return int((taps.rows + BLOCK_K - 1) / BLOCK_K); }

    // ---- loading a slice: global -> shared

    // Row of the packed weights that belongs to row k of the GEMM.
    DEVICE Index weight_row(Index k) const {
        if constexpr (!PHASED) return k;
        Index channel, tap[NDIM];
        split_row(p, taps, k, tap, channel);
        return tap_row(taps, tap) + channel;
    }
    DEVICE Acc* weight_stage(int stage) const { return shared + stage * kStageElements; }
    DEVICE Acc* input_stage(int stage) const { return weight_stage(stage) + BLOCK_K * WEIGHT_PITCH; }

    // Copies one element, or zero if it is out of bounds: to shared memory, or (16 bits) to a register.
    DEVICE void move(int which, unsigned target, const T* source, bool found) {
        if constexpr (kAsync) copy_async<sizeof(T)>(target, source, found ? sizeof(T) : 0);
        else gathered[which] = found ? *source : T(0.f);
    }
    // Starts to load the next slice into a buffer.
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
    // Copies BLOCK_K rows of packed weights, 16 bytes at a time; zeros past K and past the last filter.
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
    // Stores 16-bit elements that `fetch` loaded into registers to shared memory, widened. Wider ones arrive by
    // themselves.
    DEVICE void deposit(int stage) {
        if constexpr (!kAsync) {
            Acc* target = input_stage(stage) + threadIdx.x;
#pragma unroll
            for (int i = 0; i < kGathers; ++i) target[i * kThreads] = widen(gathered[i]);
        }
    }

    // ---- multiplying

    // Position of the lane in its warp, and of the warp in the block.
    DEVICE int lane_m() const { return threadIdx.x % 32 / kLanesN; }
    DEVICE int lane_n() const { return threadIdx.x % kLanesN; }
    DEVICE int warp_m() const { return threadIdx.x / 32 % kWarpsM; }
    DEVICE int warp_n() const { return threadIdx.x / 32 / kWarpsM; }

    // Multiplies one slice: an outer product per row of K.
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

    // ---- interface for the epilogue (conv/epilogue.cuh)

    // Whether none of this thread's sums is NaN, so that none needs recomputation (conv/gemm/whole_tile.cuh).
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
    // Stores chunk (i, j) of this warp's sums to the piece.
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
