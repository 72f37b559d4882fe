// One tile of the implicit GEMM of correlation.cuh, for the whole block.
//
// A block makes BLOCK_M output channels x BLOCK_N pixels, a thread THREAD_M x THREAD_N of them in registers. K runs in
// slices of BLOCK_K through kStages buffers in shared memory, filled by asynchronous copies while earlier slices are
// multiplied. Weights come packed with the channel m innermost, 16 bytes a copy; activations are gathered straight from
// NCHW, one element a copy and one pixel column a thread, so that a warp reads 32 neighbours of a row. 16-bit elements
// are too small for asynchronous copies: they pass through registers, where they are widened.
//
// A thread's rows and columns come in chunks of 16 bytes that lie BLOCK_M / kChunksM and BLOCK_N / kChunksN apart: a warp's
// threads, 4 x 8 of them, read neighbouring 16 bytes of shared memory without a bank conflict.
//
// Padding is a zero in the gathered tile. Zero times an infinite or NaN weight would be NaN where the padding must add
// nothing; since infinities and NaN stick, only outputs that are not finite can be wrong, and these are computed again
// one by one (`repair`).
#pragma once
#include "correlation.cuh"
#include "numeric.cuh"
#include "ptx.cuh"

// UNIFORM_TAP: BLOCK_K divides C, so that all rows of a slice have one tap. PHASED: the block meets but some of the taps
// and makes but some of the outputs (ConvTranspose); otherwise row k of the packed weights is row k of the GEMM.
template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          bool UNIFORM_TAP, bool PHASED>
struct Tile {
    static constexpr int kThreads = (BLOCK_M / THREAD_M) * (BLOCK_N / THREAD_N);
    static constexpr int kStages = 3;
    static constexpr int kVector = 16 / sizeof(Acc);
    static constexpr int kChunksM = THREAD_M / kVector, kChunksN = THREAD_N / kVector;
    static constexpr int kLanesM = 4, kLanesN = 8;                       // of a warp
    static constexpr int kWarpsM = BLOCK_M / THREAD_M / kLanesM;
    static constexpr int kStageElements = BLOCK_K * (BLOCK_M + BLOCK_N);
    static constexpr int kSharedBytes = kStages * kStageElements * sizeof(Acc);
    static constexpr int kGathers = BLOCK_K * BLOCK_N / kThreads;        // elements of x that a thread moves per slice
    static constexpr int kGatherStep = kThreads / BLOCK_N;               // rows between two of them
    static constexpr int kWeightVectors = BLOCK_K * BLOCK_M / kVector;
    static constexpr bool kAsync = sizeof(T) == sizeof(Acc);
    static_assert(kThreads % BLOCK_N == 0 && BLOCK_K % kGatherStep == 0 && BLOCK_M % (kLanesM * THREAD_M) == 0);

    struct alignas(16) Vector { Acc values[kVector]; };

    const Correlation<Index, NDIM>& p;
    const Taps<Index, NDIM>& taps;
    Acc* shared;
    const T* x;                  // of this block's group
    const Acc* weights;
    Index m0, column0;

    // The gathering thread's pixel: its image, and the input coordinate of tap 0 on each axis.
    Index image, origin[NDIM];
    bool exists;
    // Where the next slice to be fetched stands: its first K index, or its tap and first channel.
    Index next_k, next_tap[NDIM], next_channel;
    T gathered[kAsync ? 1 : kGathers];

    __device__ __forceinline__ Tile(const Correlation<Index, NDIM>& p, const Taps<Index, NDIM>& taps, void* shared)
        : p(p), taps(taps), shared(static_cast<Acc*>(shared))
    {
    }
    __device__ __forceinline__ void stand(Index group, Index m_tile, Index n_tile)
    {
        m0 = m_tile * BLOCK_M;
        column0 = n_tile * BLOCK_N;
        x = static_cast<const T*>(p.x) + group * p.channels * p.x_channel;
        weights = static_cast<const Acc*>(p.weights) + group * p.all_rows * p.pitch;
    }
    __device__ __forceinline__ void start()
    {
        const Pixel<Index, NDIM> mine = pixel(p, column0 + Index(threadIdx.x) % BLOCK_N);
        exists = mine.exists;
        image = mine.n * p.x_batch;
        next_k = next_channel = 0;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) {
            origin[axis] = mine.q[axis] * p.stride[axis] + taps.start[axis];
            next_tap[axis] = 0;
        }
    }

    // ---- addresses

    // Whether a tap of the gathering thread's pixel lies inside x, and where.
    __device__ __forceinline__ bool find(const Index (&tap)[NDIM], Index& offset) const
    {
        bool found = exists;
        offset = image;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) {
            const Index coordinate = origin[axis] + tap[axis] * taps.advance[axis];
            found = found && inside(coordinate, p.x_extent[axis]);
            offset += coordinate * p.x_stride[axis];
        }
        return found;
    }
    __device__ __forceinline__ Index tap_row(const Index (&tap)[NDIM]) const
    {
        Index row = taps.first_row;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) row += tap[axis] * taps.row[axis];
        return row;
    }
    __device__ __forceinline__ Index weight_row(Index k) const
    {
        if constexpr (!PHASED) return k;
        Index channel, tap[NDIM];
        unravel<NDIM>(p.by_channel.split(k, channel), taps.count, tap);
        return tap_row(tap) + channel;
    }
    __device__ __forceinline__ Acc* weight_stage(int stage) const { return shared + stage * kStageElements; }
    __device__ __forceinline__ Acc* input_stage(int stage) const { return weight_stage(stage) + BLOCK_K * BLOCK_M; }

    // ---- fetching a slice

    __device__ __forceinline__ void move(int which, unsigned target, const T* source, bool found)
    {
        if constexpr (kAsync) copy_async<sizeof(T)>(target, source, found ? sizeof(T) : 0);
        else gathered[which] = found ? *source : T(0.f);
    }
    __device__ __forceinline__ void fetch(int stage)
    {
        const int row = threadIdx.x / BLOCK_N;
        const unsigned target = shared_address(input_stage(stage) + row * BLOCK_N + threadIdx.x % BLOCK_N);
        if constexpr (UNIFORM_TAP) {
            Index offset;
            const bool found = find(next_tap, offset);
            fetch_weights(stage, tap_row(next_tap) + next_channel);
            const T* source = x + offset + (next_channel + row) * p.x_channel;
#pragma unroll
            for (int i = 0; i < kGathers; ++i) {
                move(i, target + i * kGatherStep * BLOCK_N * sizeof(Acc), source, found);
                source += kGatherStep * p.x_channel;
            }
            advance();
        } else {
            fetch_weights(stage, next_k);
#pragma unroll (kAsync ? 2 : kGathers)
            for (int i = 0; i < kGathers; ++i) {
                const Index k = next_k + row + i * kGatherStep;
                Index channel, tap[NDIM], offset;
                unravel<NDIM>(p.by_channel.split(k, channel), taps.count, tap);
                const bool found = find(tap, offset) && k < taps.rows;
                move(i, target + i * kGatherStep * BLOCK_N * sizeof(Acc), x + offset + channel * p.x_channel, found);
            }
            next_k += BLOCK_K;
        }
    }
    __device__ __forceinline__ void fetch_weights(int stage, Index first)
    {
#pragma unroll
        for (int i = 0; i < (kWeightVectors + kThreads - 1) / kThreads; ++i) {
            const int vector = threadIdx.x + i * kThreads;
            if (kWeightVectors % kThreads != 0 && vector >= kWeightVectors) break;
            const int row = vector / (BLOCK_M / kVector), m = vector % (BLOCK_M / kVector) * kVector;
            bool found = m0 + m < p.pitch;
            Index packed = first + row;
            if constexpr (!UNIFORM_TAP) {
                found = found && packed < taps.rows;
                packed = weight_row(packed);
            }
            copy_async<16>(shared_address(weight_stage(stage) + row * BLOCK_M + m), weights + packed * p.pitch + m0 + m, found ? 16 : 0);
        }
    }
    // Moves on to the next slice of channels, or to the next tap, the last axis fastest.
    __device__ __forceinline__ void advance()
    {
        next_channel += BLOCK_K;
        if (next_channel < p.channels) return;
        next_channel = 0;
        bool carry = true;
#pragma unroll
        for (int axis = NDIM - 1; axis >= 0; --axis) {
            next_tap[axis] += carry;
            carry = carry && next_tap[axis] == Index(taps.count[axis].divisor);
            if (carry) next_tap[axis] = 0;
        }
    }
    // Puts 16-bit elements, widened, where the copies of wider ones go by themselves.
    __device__ __forceinline__ void deposit(int stage)
    {
        if constexpr (!kAsync) {
            Acc* target = input_stage(stage) + threadIdx.x;
#pragma unroll
            for (int i = 0; i < kGathers; ++i) target[i * kThreads] = widen(gathered[i]);
        }
    }

    // ---- multiplying

    __device__ __forceinline__ int lane_m() const { return threadIdx.x % 32 / kLanesN; }
    __device__ __forceinline__ int lane_n() const { return threadIdx.x % kLanesN; }
    __device__ __forceinline__ int warp_m() const { return threadIdx.x / 32 % kWarpsM; }
    __device__ __forceinline__ int warp_n() const { return threadIdx.x / 32 / kWarpsM; }

    __device__ __forceinline__ void multiply(int stage, Acc (&sums)[THREAD_M][THREAD_N]) const
    {
        const Acc* a = weight_stage(stage) + (warp_m() * kLanesM + lane_m()) * kVector;
        const Acc* b = input_stage(stage) + (warp_n() * kLanesN + lane_n()) * kVector;
#pragma unroll
        for (int k = 0; k < BLOCK_K; ++k) {
            Vector rows[kChunksM], columns[kChunksN];
#pragma unroll
            for (int i = 0; i < kChunksM; ++i) rows[i] = *reinterpret_cast<const Vector*>(a + k * BLOCK_M + i * (BLOCK_M / kChunksM));
#pragma unroll
            for (int j = 0; j < kChunksN; ++j) columns[j] = *reinterpret_cast<const Vector*>(b + k * BLOCK_N + j * (BLOCK_N / kChunksN));
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
                for (int j = 0; j < THREAD_N; ++j)
                    sums[i][j] = multiply_add(rows[i / kVector].values[i % kVector], columns[j / kVector].values[j % kVector], sums[i][j]);
        }
    }
    __device__ __forceinline__ void accumulate(Acc (&sums)[THREAD_M][THREAD_N])
    {
        const int slices = int((taps.rows + BLOCK_K - 1) / BLOCK_K);
#pragma unroll
        for (int stage = 0; stage < kStages - 1; ++stage) {
            if (stage < slices) {
                fetch(stage);
                deposit(stage);
            }
            copy_async_commit();
        }
        int stage = 0;
        for (int left = slices; left > 0; --left) {
            copy_async_wait<kStages - 2>();
            __syncthreads();     // the slice has arrived for all threads, and all have left the buffer that is filled next
            const int filled = stage == 0 ? kStages - 1 : stage - 1;
            const bool more = left > kStages - 1;
            if (more) fetch(filled);
            copy_async_commit();
            multiply(stage, sums);
            if (more) deposit(filled);
            stage = stage + 1 == kStages ? 0 : stage + 1;
        }
        copy_async_wait<0>();
        __syncthreads();         // the buffers are free for the epilogue
    }

    // ---- writing

    // Where a column stands in y, without its channel; false where there is no such output.
    __device__ __forceinline__ bool locate(const Pixel<Index, NDIM>& at, Index& offset) const
    {
        bool exists = at.exists;
        offset = taps.y_first + at.n * p.y_batch;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) {
            if constexpr (PHASED) exists = exists && at.q[axis] < taps.limit[axis];
            offset += at.q[axis] * p.y_stride[axis];
        }
        return exists;
    }
    __device__ __forceinline__ T* output(Index group) const { return static_cast<T*>(p.y) + group * p.filters * p.y_channel; }
    __device__ __forceinline__ Acc bias(Index group, Index m) const
    {
        return p.b == nullptr ? Acc(0) : widen(static_cast<const T*>(p.b)[(group * p.filters + m) * p.b_stride]);
    }
    // A warp turns its chunks of kRows x kColumns elements round in shared memory, so that its lanes write neighbours.
    static constexpr int kRows = kLanesM * kVector, kColumns = kLanesN * kVector, kRowStep = 32 / kColumns;
    __device__ __forceinline__ Index chunk_column(int j) const
    {
        return column0 + j * (BLOCK_N / kChunksN) + warp_n() * kColumns + threadIdx.x % kColumns;
    }
    __device__ __forceinline__ Index chunk_row(int i) const
    {
        return m0 + i * (BLOCK_M / kChunksM) + warp_m() * kRows + threadIdx.x % 32 / kColumns;
    }
    // Adds the bias, rounds, writes; returns whether this thread wrote something that is not finite.
    __device__ __forceinline__ bool write(const Acc (&sums)[THREAD_M][THREAD_N], Index group) const
    {
        static_assert(kRows * kColumns * (kThreads / 32) <= kStages * kStageElements);
        Acc* piece = shared + threadIdx.x / 32 * (kRows * kColumns);
        T* y = output(group);
        bool suspect = false;
#pragma unroll
        for (int j = 0; j < kChunksN; ++j) {
            Index offset;
            const bool exists = locate(pixel(p, chunk_column(j)), offset);
#pragma unroll
            for (int i = 0; i < kChunksM; ++i) {
#pragma unroll
                for (int row = 0; row < kVector; ++row) {
                    Vector part;
#pragma unroll
                    for (int k = 0; k < kVector; ++k) part.values[k] = sums[i * kVector + row][j * kVector + k];
                    store_shared(piece + (lane_m() * kVector + row) * kColumns + lane_n() * kVector, part.values);
                }
                __syncwarp();
                const Index m = chunk_row(i);
#pragma unroll
                for (int row = 0; row < kRows; row += kRowStep) {
                    if (!exists || m + row >= p.filters) continue;
                    const Acc sum = piece[row * kColumns + threadIdx.x % 32] + bias(group, m + row);
                    suspect = suspect || !is_finite(sum);
                    y[offset + (m + row) * p.y_channel] = narrow<T>(sum);
                }
                __syncwarp();
            }
        }
        return suspect;
    }

    // ---- outputs that are not finite

    // Computes again, over the taps inside x alone, what this thread wrote to windows that reach into the padding.
    __device__ __forceinline__ void repair(Index group) const
    {
        T* y = output(group);
#pragma unroll 1
        for (int j = 0; j < kChunksN; ++j) {
            const Pixel<Index, NDIM> at = pixel(p, chunk_column(j));
            Index offset;
            if (!locate(at, offset) || !clipped(at)) continue;
#pragma unroll 1
            for (int i = 0; i < kChunksM; ++i) {
#pragma unroll 1
                for (Index m = chunk_row(i), end = m + kRows; m < end && m < p.filters; m += kRowStep)
                    if (!is_finite(widen(y[offset + m * p.y_channel])))
                        y[offset + m * p.y_channel] = narrow<T>(sum_inside(at, m) + bias(group, m));
            }
        }
    }
    __device__ __forceinline__ bool clipped(const Pixel<Index, NDIM>& at) const
    {
        bool whole = true;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) {
            const Index first = at.q[axis] * p.stride[axis] + taps.start[axis];
            const Index last = first + (Index(taps.count[axis].divisor) - 1) * taps.advance[axis];
            whole = whole && inside(first, p.x_extent[axis]) && inside(last, p.x_extent[axis]);
        }
        return !whole;
    }
    __device__ __forceinline__ Acc sum_inside(const Pixel<Index, NDIM>& at, Index m) const
    {
        Acc sum = 0;
#pragma unroll 1
        for (Index k = 0; k < taps.rows; ++k) {
            Index channel, tap[NDIM];
            unravel<NDIM>(p.by_channel.split(k, channel), taps.count, tap);
            Index offset = at.n * p.x_batch + channel * p.x_channel;
            bool found = true;
#pragma unroll
            for (int axis = 0; axis < NDIM; ++axis) {
                const Index coordinate = at.q[axis] * p.stride[axis] + taps.start[axis] + tap[axis] * taps.advance[axis];
                found = found && inside(coordinate, p.x_extent[axis]);
                offset += coordinate * p.x_stride[axis];
            }
            if (found) sum = multiply_add(weights[(tap_row(tap) + channel) * p.pitch + m], widen(x[offset]), sum);
        }
        return sum;
    }

    // ---- all of it

    // `position` finds the block's group and tile; it is asked again after the main loop.
    template <class Position> __device__ __forceinline__ void run(Position&& position)
    {
        Index group, m_tile, n_tile;
        position(group, m_tile, n_tile);
        stand(group, m_tile, n_tile);
        start();
        Acc sums[THREAD_M][THREAD_N] = {};
        accumulate(sums);
        position(group, m_tile, n_tile);
        stand(group, m_tile, n_tile);
        if (write(sums, group)) repair(group);
    }
};
