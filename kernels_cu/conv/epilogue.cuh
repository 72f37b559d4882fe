// Epilogue of the GEMM kernels: accumulators -> bias -> residual and activation (conv/finish.cuh) -> one rounding -> y,
// with arbitrary strides. It also recomputes outputs that zero padding turned into NaN (`repair`).
//
// A warp moves its accumulators, one chunk of kRows x kColumns at a time, through a small buffer in shared memory (the
// "piece"). Afterwards adjacent lanes hold adjacent elements of y, and the stores are coalesced:
//
//     registers --put--> piece[kRows][kPitch] --write_pixels (NCHW) or write_channels (NHWC)--> y
//
// A Multiplier (the main loop's struct) provides
//
//     kRows, kColumns, kPitch       size of a chunk; elements between its rows in the piece
//     kChunksM, kChunksN            chunks per warp along M and along N
//     chunk_row(i), chunk_column(j) position of chunk (i, j) in the block's tile
//     put(piece, i, j)              stores chunk (i, j) into the piece
//     pixel(column)                 the output pixel of a column of the GEMM
//     weight(row, m)                one element of the packed weights
//     kExact                        its products are IEEE products of the given factors
//     kClips                        windows may reach into the padding
//
// Padded inputs are zeros in the staged tile. Zero times an infinite or NaN weight is NaN, although padding must add
// nothing. NaN is sticky, so only outputs that are NaN can be wrong. `repair` recomputes these one by one, over the
// valid taps only. Multipliers that round or split their factors (TF32, 3xTF32) may also produce wrong infinities. They
// store every non-finite sum as NaN, past the activation, and `repair` recomputes it. Overflow after that, in the final
// rounding or in the addition of the residual, is left alone: it is the correct result.
#pragma once
#include "conv/gather.cuh"
#include "base/numeric.cuh"

// Padding between rows of sums in shared memory, in elements (a multiple of 16 bytes). Use it to interleave rows, where
// lane i reads row (i % parts), column (i / parts): it keeps the bank conflicts of these reads as low as possible.
template <class Acc> DEVICE int spread(int parts) {
    constexpr int kVector = 16 / sizeof(Acc), kBanks = 128 / sizeof(Acc);
    return (kBanks - 1) / (parts * kVector) * kVector + kVector;
}

// Offset in x of the first input channel that output channel m of the tile reads. Overloaded for tiles that span
// several groups.
template <class Multiplier, class Index, int NDIM>
DEVICE Index first_input(const Multiplier&, const Correlation<Index, NDIM>& p, Index group, Index) {
    return group * p.channels * p.x_channel;
}

// See the top of this file. PHASED: y has outputs of other phases, so columns may exceed the phase's limits.
template <class Multiplier, class T, class Acc, class Index, int NDIM, bool PHASED> struct Epilogue {
    static constexpr int kRows = Multiplier::kRows, kColumns = Multiplier::kColumns, kPitch = Multiplier::kPitch;
    static constexpr int kRowStep = 32 / kColumns; // rows that a warp writes at once
    static constexpr int kPiece = kRows * kPitch;
    static constexpr bool kRepairs = Multiplier::kClips || !Multiplier::kExact;

    const Correlation<Index, NDIM>& p;
    const Taps<Index, NDIM>& taps;
    const Multiplier& multiplier;
    Index group, m0, column0; // the group; the first output channel and the first column of the block's tile

    // Computes the offset in y of a column's pixel, without its channel. Returns false if there is no such output.
    DEVICE bool locate(const Pixel<Index, NDIM>& at, Index& offset) const {
        bool exists = at.exists;
        offset = taps.y_first + at.n * p.y_batch;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) {
            if constexpr (PHASED) exists = exists && at.q[axis] < taps.limit[axis];
            offset += at.q[axis] * p.y_stride[axis];
        }
        return exists;
    }
    // Channel 0 of this block's group in y.
    DEVICE T* output() const { return static_cast<T*>(p.y) + group * p.filters * p.y_channel; }
    // The bias of output channel m, or 0.
    DEVICE Acc bias(Index m) const {
        return p.b == nullptr ? Acc(0) : widen(static_cast<const T*>(p.b)[(group * p.filters + m) * p.b_stride]);
    }
    // The column and the first row of chunk j or i that this thread writes in the NCHW order.
    DEVICE Index column(int j) const { return column0 + multiplier.chunk_column(j) + threadIdx.x % kColumns; }
    DEVICE Index first_row(int i) const { return m0 + multiplier.chunk_row(i) + threadIdx.x % 32 / kColumns; }

    // Writes all outputs of this thread's warp. Returns whether repair is needed: this thread (for channels last, any
    // thread of its warp) has written a sum that is not finite.
    DEVICE bool write(void* shared) const { return p.finish.any() ? write<true>(shared) : write<false>(shared); }
    // Chunk by chunk, column by column: FINISH is whether there is a residual or an activation.
    template <bool FINISH> DEVICE bool write(void* shared) const {
        Acc* piece = static_cast<Acc*>(shared) + threadIdx.x / 32 * kPiece;
        const bool channels_last = p.y_channel == 1;
        bool suspect = false;
#pragma unroll
        for (int j = 0; j < Multiplier::kChunksN; ++j) {
            Index offset;
            const bool exists = locate(multiplier.pixel(column(j)), offset);
#pragma unroll
            for (int i = 0; i < Multiplier::kChunksM; ++i) {
                multiplier.put(piece, i, j);
                __syncwarp();
                if (channels_last)
                    suspect = write_channels<FINISH>(piece, exists, offset, m0 + multiplier.chunk_row(i)) || suspect;
                else suspect = write_pixels<FINISH>(piece, exists, offset, first_row(i)) || suspect;
                __syncwarp();
            }
        }
        return channels_last ? __any_sync(0xffffffff, suspect) : suspect;
    }
    // Finishes, rounds and stores one sum. Returns whether it was not finite, in kernels that repair such sums.
    template <bool FINISH> DEVICE bool store(T& target, Acc sum) const {
        const bool finite = is_finite(sum);
        if constexpr (!Multiplier::kExact) sum = nan_unless_finite(sum);
        if constexpr (FINISH) sum = finished(p.finish, p.y, sum, &target);
        target = narrow<T>(sum);
        return kRepairs && !finite;
    }
    // NCHW: lanes write adjacent columns of a row, kRowStep rows at once.
    template <bool FINISH> DEVICE bool write_pixels(const Acc* piece, bool exists, Index offset, Index m) const {
        T* y = output();
        bool suspect = false;
#pragma unroll(FINISH ? 2 : kRows / kRowStep)
        for (int row = 0; row < kRows; row += kRowStep) {
            if (!exists || m + row >= p.filters) continue;
            const Acc sum =
                piece[(row + threadIdx.x % 32 / kColumns) * kPitch + threadIdx.x % kColumns] + bias(m + row);
            suspect = store<FINISH>(y[offset + (m + row) * p.y_channel], sum) || suspect;
        }
        return suspect;
    }
    // NHWC: lanes write adjacent rows, which are adjacent channels of y. Offsets of columns come from other lanes
    // (shuffle).
    template <bool FINISH> DEVICE bool write_channels(const Acc* piece, bool exists, Index offset, Index first) const {
        constexpr int kStep = 32 / kRows;
        const int row = threadIdx.x % kRows;
        const Index m = first + row;
        const Acc added = m < p.filters ? bias(m) : Acc(0);
        T* y = output() + m;
        bool suspect = false;
#pragma unroll(FINISH ? 2 : 4)
        for (int at = threadIdx.x % 32 / kRows; at < kColumns; at += kStep) {
            const Index its = __shfl_sync(0xffffffff, offset, at);
            if (!__shfl_sync(0xffffffff, exists, at) || m >= p.filters) continue;
            const Acc sum = piece[row * kPitch + at] + added;
            suspect = store<FINISH>(y[its], sum) || suspect;
        }
        return suspect;
    }

    // Recomputes this thread's outputs that are NaN, over the valid taps only. If products are exact, only windows that
    // reach into the padding are tested.
    DEVICE void repair() const {
        T* y = output();
#pragma unroll 1
        for (int j = 0; j < Multiplier::kChunksN; ++j) {
            const Pixel<Index, NDIM> at = multiplier.pixel(column(j));
            Window<Index, NDIM> window;
            window.place(p, taps, at);
            Index offset;
            if (!locate(at, offset) || (Multiplier::kExact && !window.clipped(p, taps))) continue;
#pragma unroll 1
            for (int i = 0; i < Multiplier::kChunksM; ++i)
#pragma unroll 1
                for (Index m = first_row(i), end = m + kRows; m < end && m < p.filters; m += kRowStep) {
                    T& target = y[offset + m * p.y_channel];
                    if (const Acc written = widen(target); written != written)
                        target = narrow<T>(finished(p.finish, p.y, sum_inside(window, m) + bias(m), &target));
                }
        }
    }
    // The sum of one output over its valid taps, product by product, in the order of K.
    DEVICE Acc sum_inside(const Window<Index, NDIM>& window, Index m) const {
        const T* x = static_cast<const T*>(p.x) + first_input(multiplier, p, group, m);
        Acc sum = 0;
#pragma unroll 1
        for (Index k = 0; k < taps.rows && sum == sum; ++k) { // stops at the first NaN
            Index channel, tap[NDIM], offset;
            split_row(p, taps, k, tap, channel);
            const bool found = window.find(p, taps, tap, offset);
            if (found)
                sum = multiply_add(multiplier.weight(tap_row(taps, tap) + channel, m),
                                   widen(x[offset + channel * p.x_channel]), sum);
        }
        return sum;
    }
};
