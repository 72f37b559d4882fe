// ConvTranspose whose kernel is its stride, without dilation: each input pixel makes a block of outputs of its own. As
// one GEMM: M = (output channel, tap), N = input pixels, K = channel; the epilogue moves taps from the rows to where
// they stand in y. Nothing meets the padding, which only cuts blocks off: only sums of rounded or split factors that
// are not finite are made again.
//
// The sums of the whole tile pass through shared memory: a warp's lanes write the taps along W of neighbouring pixels,
// which are contiguous in y: stores are coalesced. What depends on a row alone is in a table behind the buffers.
#pragma once
#include "conv/gemm/implicit_gemm.cuh"

template <class Index> struct BlockAxis {
    Index pad, extent; // of y
    Index y_stride;
    Divider<Index> taps; // as many as the stride
};

template <class Index, int NDIM> struct DepthToSpaceParams {
    Correlation<Index, NDIM> common; // filters and pitch are those of M as above, columns and their strides those of x
    Taps<Index, NDIM> taps;          // a single one
    BlockAxis<Index> axes[NDIM];
    Index out_channels; // of one group
};

// Where the outputs of one row stand, relative to those of tap 0 and channel 0.
template <class Acc, class Index, int NDIM> struct alignas(16) OutputRow {
    Index offset;
    Acc bias;
    Index tap[NDIM];
};

template <class Multiplier, class T, class Acc, class Index, int NDIM> struct DepthToSpace {
    using Row = OutputRow<Acc, Index, NDIM>;
    struct alignas(2 * sizeof(T)) Pair { T first, second; };
    static constexpr int kBlockN = Multiplier::kBlockN;
    static_assert(Multiplier::kBlockM * (kBlockN * sizeof(Acc) + 64) <= Multiplier::kSharedBytes);

    const DepthToSpaceParams<Index, NDIM>& p;
    Row* rows;
    Index group, m0, column0; // of the block's tile

    DEVICE const Divider<Index>& taps_along_w() const { return p.axes[NDIM - 1].taps; }

    DEVICE void fill() const {
        for (int i = threadIdx.x; i < Multiplier::kBlockM && m0 + i < p.common.filters; i += Multiplier::kThreads) {
            Row row{0};
            Index m = m0 + i;
#pragma unroll
            for (int axis = NDIM - 1; axis >= 0; --axis) {
                m = p.axes[axis].taps.split(m, row.tap[axis]);
                row.offset += row.tap[axis] * p.axes[axis].y_stride;
            }
            row.offset += m * p.common.y_channel;
            const T* b = static_cast<const T*>(p.common.b);
            if (b != nullptr) row.bias = widen(b[(group * p.out_channels + m) * p.common.b_stride]);
            rows[i] = row;
        }
    }
    // Adds the bias, rounds, writes.
    DEVICE void write(const Multiplier& multiplier, void* shared) const {
        const int parts = taps_along_w().divisor < 2 ? 2 : int(taps_along_w().divisor);
        const int pitch = kBlockN + spread<Acc>(parts);
        Acc* sums = static_cast<Acc*>(shared);
#pragma unroll
        for (int i = 0; i < Multiplier::kChunksM; ++i)
#pragma unroll
            for (int j = 0; j < Multiplier::kChunksN; ++j)
                multiplier.put(sums + multiplier.chunk_row(i) * pitch + multiplier.chunk_column(j), i, j, pitch);
        const bool finish = p.common.finish.any(), pairs = !finish && in_pairs();
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < kBlockN * (pairs ? 1 : int(taps_along_w().divisor)); i += Multiplier::kThreads) {
            Index tap = 0;
            const Index column = pairs ? Index(i) : taps_along_w().split(Index(i), tap);
            if (pairs && write_pairs(multiplier, sums + column, pitch, column0 + column)) continue;
#pragma unroll 1
            for (const Index last = pairs ? 1 : tap; tap <= last; ++tap) {
                if (finish) write_column<true>(multiplier, sums + column, pitch, tap, column0 + column);
                else write_column<false>(multiplier, sums + column, pitch, tap, column0 + column);
            }
        }
    }
    // Where the outputs of an input pixel begin, if there were no borders.
    DEVICE T* corner(const Pixel<Index, NDIM>& at, Index (&origin)[NDIM]) const {
        T* y = static_cast<T*>(p.common.y) + group * p.out_channels * p.common.y_channel + at.n * p.common.y_batch;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) {
            origin[axis] = at.q[axis] * Index(p.axes[axis].taps.divisor) - p.axes[axis].pad;
            y += origin[axis] * p.axes[axis].y_stride;
        }
        return y;
    }
    // Writes of one pixel the rows that have one tap along W.
    template <bool FINISH>
    DEVICE void write_column(const Multiplier& multiplier, const Acc* sums, int pitch, Index tap, Index column) const {
        const Pixel<Index, NDIM> at = pixel(p.common, column);
        if (!at.exists) return;
        Index origin[NDIM], before;
        T* y = corner(at, origin);
        taps_along_w().split(m0, before);
        if (whole(origin)) {
            write_whole<FINISH>(multiplier, sums, pitch, int(tap - before), int(before), at, y);
            return;
        }
        // Lanes keep in step: what they write at once has the same channel and the same taps along the other axes.
        for (int row = int(tap - before); row < Multiplier::kBlockM && m0 + row < p.common.filters;
             row += int(taps_along_w().divisor)) {
            const Row& found = rows[row < 0 ? 0 : row];
            bool exists = row >= 0;
#pragma unroll
            for (int axis = 0; axis < NDIM; ++axis)
                exists = exists && inside(origin[axis] + found.tap[axis], p.axes[axis].extent);
            if (exists) y[found.offset] = output<FINISH>(multiplier, sums[row * pitch], found, at, m0 + row, y);
        }
    }
    // Whether outputs along W are two of each input pixel, contiguous, where that much can be stored at once.
    DEVICE bool in_pairs() const {
        Index steps = p.common.y_batch | p.common.y_channel | p.axes[NDIM - 1].pad;
#pragma unroll
        for (int axis = 0; axis < NDIM - 1; ++axis) steps |= p.axes[axis].y_stride;
        const bool aligned = reinterpret_cast<unsigned long long>(p.common.y) % sizeof(Pair) == 0;
        return taps_along_w().divisor == 2 && p.axes[NDIM - 1].y_stride == 1 && steps % 2 == 0 && aligned;
    }
    // Writes all rows of one pixel; false, and nothing, where some outputs do not exist.
    DEVICE bool write_pairs(const Multiplier& multiplier, const Acc* sums, int pitch, Index column) const {
        const Pixel<Index, NDIM> at = pixel(p.common, column);
        Index origin[NDIM];
        T* y = corner(at, origin);
        if (!at.exists || !whole(origin)) return false;
        const int left = int(p.common.filters - m0), end = left < Multiplier::kBlockM ? left : Multiplier::kBlockM;
#pragma unroll 4
        for (int row = 0; row < end; row += 2) {
            const Row& found = rows[row]; // both have its bias
            *reinterpret_cast<Pair*>(y + found.offset) = {
                output<false>(multiplier, sums[row * pitch], found, at, m0 + row, y),
                output<false>(multiplier, sums[(row + 1) * pitch], found, at, m0 + row + 1, y)};
        }
        return true;
    }
    // Whether the outputs of all taps exist.
    DEVICE bool whole(const Index (&origin)[NDIM]) const {
        bool exists = true;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis)
            exists =
                exists && origin[axis] >= 0 && origin[axis] + Index(p.axes[axis].taps.divisor) <= p.axes[axis].extent;
        return exists;
    }
    template <bool FINISH>
    DEVICE void write_whole(const Multiplier& multiplier, const Acc* sums, int pitch, int first, int before,
                            const Pixel<Index, NDIM>& at, T* y) const {
        const int step = int(taps_along_w().divisor), left = int(p.common.filters - m0);
        const int end = left < Multiplier::kBlockM ? left : Multiplier::kBlockM;
        int row = first;
#pragma unroll 4
        for (int rounds = (end + step - 1 + before) / step; rounds > 0;
             --rounds, row += step) { // as many for all lanes
            const bool exists = inside(row, end);
            const int mine = exists ? row : 0;
            const T value = output<FINISH>(multiplier, sums[mine * pitch], rows[mine], at, m0 + mine, y);
            if (exists) y[rows[mine].offset] = value;
        }
    }
    template <bool FINISH>
    DEVICE T output(const Multiplier& multiplier, Acc sum, const Row& row, const Pixel<Index, NDIM>& at, Index m,
                    const T* y) const {
        if constexpr (!Multiplier::kExact)
            if (!is_finite(sum)) sum = again(multiplier, at, m);
        sum += row.bias;
        if constexpr (FINISH) sum = finished(p.common.finish, p.common.y, sum, y + row.offset);
        return narrow<T>(sum);
    }
    // The sum of a row's products with the channels of a pixel, one by one.
    DEVICE Acc again(const Multiplier& multiplier, const Pixel<Index, NDIM>& at, Index m) const {
        const T* x = static_cast<const T*>(p.common.x) + group * p.common.channels * p.common.x_channel
                   + dot(at.q, p.common.x_stride, at.n * p.common.x_batch);
        Acc sum = 0;
#pragma unroll 1
        for (Index channel = 0; channel < p.common.channels && sum == sum; ++channel) // a NaN stays one
            sum = multiply_add(multiplier.weight(channel, m), widen(x[channel * p.common.x_channel]), sum);
        return sum;
    }
};

// Makes the block's tile.
template <class Multiplier, class T, class Acc, class Index, int NDIM>
DEVICE void make_blocks(const DepthToSpaceParams<Index, NDIM>& p, unsigned char* shared) {
    using Writer = DepthToSpace<Multiplier, T, Acc, Index, NDIM>;
    const auto writer = [&]() -> Writer {
        Index group, m_tile, n_tile;
        tile_of(p.common, block_number(), group, m_tile, n_tile);
        const auto rows = reinterpret_cast<typename Writer::Row*>(shared + Multiplier::kSharedBytes);
        return {p, rows, group, m_tile * Multiplier::kBlockM, n_tile * Multiplier::kBlockN};
    };
    Multiplier multiplier(p.common, p.taps, shared);
    const Writer before = writer();
    before.fill();
    multiplier.stand(before.group, before.m0);
    multiplier.start(before.column0);
    accumulate(multiplier, multiplier.slices());
    writer().write(multiplier, shared);
}
