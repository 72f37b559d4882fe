// From sums to outputs: bias, finish (conv/finish.cuh), one rounding, y in any strides; outputs that padding spoilt are
// made again.
//
// Sums come from the multiplier in chunks of kRows x kColumns per warp, by way of a piece of shared memory, so that a
// warp's lanes write neighbours of a row, coalesced. Of a multiplier the epilogue needs
//
//     kRows, kColumns, kPitch       of a chunk; elements from one of its rows to the next in the piece
//     kChunksM, kChunksN            a warp's chunks
//     chunk_row(i), chunk_column(j) where they begin in the block's tile
//     put(piece, i, j)              lays one into the piece
//     pixel(column)                 the output that a column is
//     weight(row, m)                one of the packed weights
//     kExact                        its products are those of IEEE arithmetic
//     kClips                        padding may cut taps off
//
// Padding is a zero in the gathered tile. Zero times an infinite or NaN weight would be NaN where the padding must add
// nothing; since NaN sticks, only outputs that are NaN can be wrong, and these are computed again one by one
// (`repair`). Multipliers that round or split their factors spoil others that are not finite too: those go to y as NaN,
// which no activation hides. What overflows later, as it is rounded or as the residual is added, is left as it is.
#pragma once
#include "conv/gather.cuh"
#include "base/numeric.cuh"

// How far things of several parts lie apart in shared memory, in whole 16 bytes, so that lanes that read neighbours
// crosswise, every PARTS-th from the same part, have as few bank conflicts as there is room for.
template <class Acc> DEVICE int spread(int parts) {
    constexpr int kVector = 16 / sizeof(Acc), kBanks = 128 / sizeof(Acc);
    return (kBanks - 1) / (parts * kVector) * kVector + kVector;
}

// Where the inputs of one of the tile's filters begin in x. Tiles with filters of several groups overload it.
template <class Multiplier, class Index, int NDIM>
DEVICE Index first_input(const Multiplier&, const Correlation<Index, NDIM>& p, Index group, Index) {
    return group * p.channels * p.x_channel;
}

template <class Multiplier, class T, class Acc, class Index, int NDIM, bool PHASED> struct Epilogue {
    static constexpr int kRows = Multiplier::kRows, kColumns = Multiplier::kColumns, kPitch = Multiplier::kPitch;
    static constexpr int kRowStep = 32 / kColumns; // rows that a warp writes at once
    static constexpr int kPiece = kRows * kPitch;
    static constexpr bool kRepairs = Multiplier::kClips || !Multiplier::kExact;

    const Correlation<Index, NDIM>& p;
    const Taps<Index, NDIM>& taps;
    const Multiplier& multiplier;
    Index group, m0, column0; // of the block's tile

    // Where a column stands in y, without its channel; false where there is no such output.
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
    DEVICE T* output() const { return static_cast<T*>(p.y) + group * p.filters * p.y_channel; }
    DEVICE Acc bias(Index m) const {
        return p.b == nullptr ? Acc(0) : widen(static_cast<const T*>(p.b)[(group * p.filters + m) * p.b_stride]);
    }
    DEVICE Index column(int j) const { return column0 + multiplier.chunk_column(j) + threadIdx.x % kColumns; }
    DEVICE Index first_row(int i) const { return m0 + multiplier.chunk_row(i) + threadIdx.x % 32 / kColumns; }

    // Adds the bias, finishes, rounds, writes; returns whether this thread, or its warp, had a sum that is not finite.
    DEVICE bool write(void* shared) const { return p.finish.any() ? write<true>(shared) : write<false>(shared); }
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
    template <bool FINISH> DEVICE bool store(T& target, Acc sum) const {
        const bool finite = is_finite(sum);
        if constexpr (!Multiplier::kExact) sum = nan_unless_finite(sum);
        if constexpr (FINISH) sum = finished(p.finish, p.y, sum, &target);
        target = narrow<T>(sum);
        return kRepairs && !finite;
    }
    // Lanes write neighbouring columns, kRowStep rows at once.
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
    // Lanes write neighbouring rows, whose channels are neighbours in y; other lanes know where the columns stand.
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

    // Computes again, over the taps inside x alone, what this thread wrote to windows that reach into the padding.
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
    DEVICE Acc sum_inside(const Window<Index, NDIM>& window, Index m) const {
        const T* x = static_cast<const T*>(p.x) + first_input(multiplier, p, group, m);
        Acc sum = 0;
#pragma unroll 1
        for (Index k = 0; k < taps.rows && sum == sum; ++k) { // a NaN stays one
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
