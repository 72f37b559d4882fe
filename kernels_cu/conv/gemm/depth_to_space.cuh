// ConvTranspose as one GEMM of which each column makes a block of outputs, one of each phase, as large as the stride:
// M = (output channel, phase), N = blocks, K = (tap, channel); the epilogue moves phases from the rows to where they
// stand in y.
//
// Where the kernel is its stride, without dilation, an input pixel makes a block by one tap: nothing meets the padding,
// which only cuts blocks off, and only sums of rounded or split factors that are not finite are made again. Where it is
// larger, blocks have SEVERAL taps: tap t of a phase is tap phase + t * stride of the kernel, zero where there is none.
// What zeros spoil, of padding or of these, is made again too.
//
// The sums of the whole tile pass through shared memory: a warp's lanes write the phases along W of neighbouring
// blocks, which are contiguous in y: stores are coalesced. What depends on a row alone is in a table behind the
// buffers.
#pragma once
#include "conv/gemm/whole_tile.cuh"

template <class Index> struct BlockAxis {
    Index pad, extent; // of y
    Index y_stride;
    Index kernel;          // its taps
    Divider<Index> phases; // outputs of a block: the stride
};

template <class Index, int NDIM> struct DepthToSpaceParams {
    Correlation<Index, NDIM> common; // filters and pitch are those of M as above, columns are blocks
    Taps<Index, NDIM> taps;          // of a phase
    BlockAxis<Index> axes[NDIM];
    Index out_channels; // of one group
};

// Where the outputs of one row stand, relative to those of phase 0 and channel 0.
template <class Acc, class Index, int NDIM> struct alignas(16) OutputRow {
    Index offset;
    Acc bias;
    Index phase[NDIM];
};

template <class Multiplier, class T, class Acc, class Index, int NDIM, bool SEVERAL> struct DepthToSpace {
    using Row = OutputRow<Acc, Index, NDIM>;
    struct alignas(2 * sizeof(T)) Pair { T first, second; };
    static constexpr int kBlockN = Multiplier::kBlockN;
    static constexpr int kSumsBytes = Multiplier::kBlockM * (kBlockN * sizeof(Acc) + 64); // in place of the slices
    static constexpr int kRowsFrom = kSumsBytes > Multiplier::kSharedBytes ? kSumsBytes : Multiplier::kSharedBytes;

    const DepthToSpaceParams<Index, NDIM>& p;
    Row* rows;
    Index group, m0, column0; // of the block's tile

    DEVICE const Divider<Index>& phases_along_w() const { return p.axes[NDIM - 1].phases; }

    DEVICE void fill() const {
        for (int i = threadIdx.x; i < Multiplier::kBlockM && m0 + i < p.common.filters; i += Multiplier::kThreads) {
            Row row{0};
            Index m = m0 + i;
#pragma unroll
            for (int axis = NDIM - 1; axis >= 0; --axis) {
                m = p.axes[axis].phases.split(m, row.phase[axis]);
                row.offset += row.phase[axis] * p.axes[axis].y_stride;
            }
            row.offset += m * p.common.y_channel;
            const T* b = static_cast<const T*>(p.common.b);
            if (b != nullptr) row.bias = widen(b[(group * p.out_channels + m) * p.common.b_stride]);
            rows[i] = row;
        }
    }
    // Adds the bias, rounds, writes.
    DEVICE void write(const Multiplier& multiplier, void* shared) const {
        const int parts = phases_along_w().divisor < 2 ? 2 : int(phases_along_w().divisor);
        const int pitch = kBlockN + spread<Acc>(parts);
        Acc* sums = static_cast<Acc*>(shared);
        lay_out(multiplier, sums, pitch);
        const bool finish = p.common.finish.any(), pairs = !finish && in_pairs();
        if constexpr (SEVERAL || !Multiplier::kExact) {
            const TilePlace<Index> tile{group, m0, column0};
            repair<T>(multiplier, p.common, p.taps, tile, sums, pitch, [&](int row, const Index(&tap)[NDIM]) {
                bool exists = true;
#pragma unroll
                for (int axis = 0; axis < NDIM; ++axis) {
                    const BlockAxis<Index>& along = p.axes[axis];
                    exists = exists && rows[row].phase[axis] + tap[axis] * Index(along.phases.divisor) < along.kernel;
                }
                return exists;
            });
        } else {
            __syncthreads();
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < kBlockN * (pairs ? 1 : int(phases_along_w().divisor));
             i += Multiplier::kThreads) {
            Index phase = 0;
            const Index column = pairs ? Index(i) : phases_along_w().split(Index(i), phase);
            if (pairs && write_pairs(sums + column, pitch, column0 + column)) continue;
#pragma unroll 1
            for (const Index last = pairs ? 1 : phase; phase <= last; ++phase) {
                if (finish) write_column<true>(sums + column, pitch, phase, column0 + column);
                else write_column<false>(sums + column, pitch, phase, column0 + column);
            }
        }
    }
    // Where a block begins, if there were no borders.
    DEVICE T* corner(const Pixel<Index, NDIM>& at, Index (&origin)[NDIM]) const {
        T* y = static_cast<T*>(p.common.y) + group * p.out_channels * p.common.y_channel + at.n * p.common.y_batch;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) {
            origin[axis] = at.q[axis] * Index(p.axes[axis].phases.divisor) - p.axes[axis].pad;
            y += origin[axis] * p.axes[axis].y_stride;
        }
        return y;
    }
    // Writes of one block the rows that have one phase along W.
    template <bool FINISH>
    DEVICE void write_column(const Acc* sums, int pitch, Index phase, Index column) const {
        const Pixel<Index, NDIM> at = pixel(p.common, column);
        if (!at.exists) return;
        Index origin[NDIM], before;
        T* y = corner(at, origin);
        phases_along_w().split(m0, before);
        if (whole(origin)) {
            write_whole<FINISH>(sums, pitch, int(phase - before), int(before), y);
            return;
        }
        // Lanes keep in step: what they write at once has the same channel and the same phases along the other axes.
        for (int row = int(phase - before); row < Multiplier::kBlockM && m0 + row < p.common.filters;
             row += int(phases_along_w().divisor)) {
            const Row& found = rows[row < 0 ? 0 : row];
            bool exists = row >= 0;
#pragma unroll
            for (int axis = 0; axis < NDIM; ++axis)
                exists = exists && inside(origin[axis] + found.phase[axis], p.axes[axis].extent);
            if (exists) y[found.offset] = output<FINISH>(sums[row * pitch], found, y);
        }
    }
    // Whether outputs along W are two of each block, contiguous, where that much can be stored at once.
    DEVICE bool in_pairs() const {
        Index steps = p.common.y_batch | p.common.y_channel | p.axes[NDIM - 1].pad;
#pragma unroll
        for (int axis = 0; axis < NDIM - 1; ++axis) steps |= p.axes[axis].y_stride;
        const bool aligned = reinterpret_cast<unsigned long long>(p.common.y) % sizeof(Pair) == 0;
        return phases_along_w().divisor == 2 && p.axes[NDIM - 1].y_stride == 1 && steps % 2 == 0 && aligned;
    }
    // Writes all rows of one block; false, and nothing, where some outputs do not exist.
    DEVICE bool write_pairs(const Acc* sums, int pitch, Index column) const {
        const Pixel<Index, NDIM> at = pixel(p.common, column);
        Index origin[NDIM];
        T* y = corner(at, origin);
        if (!at.exists || !whole(origin)) return false;
        const int left = int(p.common.filters - m0), end = left < Multiplier::kBlockM ? left : Multiplier::kBlockM;
#pragma unroll 4
        for (int row = 0; row < end; row += 2) {
            const Row& found = rows[row]; // both have its bias
            *reinterpret_cast<Pair*>(y + found.offset) = {output<false>(sums[row * pitch], found, y),
                                                          output<false>(sums[(row + 1) * pitch], found, y)};
        }
        return true;
    }
    // Whether all outputs of a block exist.
    DEVICE bool whole(const Index (&origin)[NDIM]) const {
        bool exists = true;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis)
            exists =
                exists && origin[axis] >= 0 && origin[axis] + Index(p.axes[axis].phases.divisor) <= p.axes[axis].extent;
        return exists;
    }
    template <bool FINISH>
    DEVICE void write_whole(const Acc* sums, int pitch, int first, int before, T* y) const {
        const int step = int(phases_along_w().divisor), left = int(p.common.filters - m0);
        const int end = left < Multiplier::kBlockM ? left : Multiplier::kBlockM;
        int row = first;
#pragma unroll 4
        for (int rounds = (end + step - 1 + before) / step; rounds > 0;
             --rounds, row += step) { // as many for all lanes
            const bool exists = inside(row, end);
            const int mine = exists ? row : 0;
            const T value = output<FINISH>(sums[mine * pitch], rows[mine], y);
            if (exists) y[rows[mine].offset] = value;
        }
    }
    template <bool FINISH> DEVICE T output(Acc sum, const Row& row, const T* y) const {
        sum += row.bias;
        if constexpr (FINISH) sum = finished(p.common.finish, p.common.y, sum, y + row.offset);
        return narrow<T>(sum);
    }
};

// Writes the tile with these numbers.
template <class Writer, class Multiplier, class Index, int NDIM>
DEVICE Writer writer_at(const DepthToSpaceParams<Index, NDIM>& p, unsigned char* shared, Index group, Index m_tile,
                        Index n_tile) {
    const auto rows = reinterpret_cast<typename Writer::Row*>(shared + Writer::kRowsFrom);
    return {p, rows, group, m_tile * Multiplier::kBlockM, n_tile * Multiplier::kBlockN};
}

// Makes the tile of a block of threads, of blocks of one tap.
template <class Multiplier, class T, class Acc, class Index, int NDIM>
DEVICE void make_blocks(const DepthToSpaceParams<Index, NDIM>& p, unsigned char* shared) {
    using Writer = DepthToSpace<Multiplier, T, Acc, Index, NDIM, false>;
    const auto writer = [&]() -> Writer {
        Index group, m_tile, n_tile;
        tile_of(p.common, block_number(), group, m_tile, n_tile);
        return writer_at<Writer, Multiplier>(p, shared, group, m_tile, n_tile);
    };
    Multiplier multiplier(p.common, p.taps, shared);
    const Writer before = writer();
    before.fill();
    multiplier.stand(before.group, before.m0);
    multiplier.start(before.column0);
    accumulate(multiplier, multiplier.slices());
    writer().write(multiplier, shared);
}
