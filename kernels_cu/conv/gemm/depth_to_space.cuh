// ConvTranspose as one GEMM over all phases, for strides s: M = (output channel, phase), N = cells, K = (tap, channel).
// A "cell" is the s x s ... outputs (one per phase) that belong to one column; the epilogue scatters the rows into
// cells.
//
//     column q, rows (m, phase)   ->   y[m, q * s - pad + phase]        with s = 2:  row 0 1 2 3  ->  0 1
//                                                                                                     2 3
//
// If the kernel equals the stride (no dilation), each phase has one tap, and column q reads input q only. Padding
// merely crops cells, and only non-finite sums of rounded factors (TF32) need recomputation. If the kernel is larger,
// phases have SEVERAL taps: tap t of a phase is tap phase + t * stride of the kernel, or zero if there is none. Sums
// that such zeros, or zeros of the padding, turn into NaN are recomputed too (conv/gemm/whole_tile.cuh).
//
// The whole tile's sums pass through shared memory, in the place of the pipeline's buffers. A warp's lanes then write
// the phases along W of adjacent cells, which are contiguous in y: coalesced. A table after the buffers holds each
// row's bias and offset in y.
#pragma once
#include "conv/gemm/whole_tile.cuh"

// One axis of the cells.
template <class Index> struct BlockAxis {
    Index pad, extent; // padding; extent of y
    Index y_stride;
    Index kernel;          // kernel size
    Divider<Index> phases; // divisor: outputs of a cell along this axis (the stride)
};

template <class Index, int NDIM> struct DepthToSpaceParams {
    Correlation<Index, NDIM> common; // filters and pitch count rows of M (output channel x phase); columns are cells
    Taps<Index, NDIM> taps;          // of every phase
    BlockAxis<Index> axes[NDIM];
    Index out_channels; // output channels per group
};

// Per row of M: bias, and offset in y relative to channel 0 and phase 0 of a cell; its phase along each axis.
template <class Acc, class Index, int NDIM> struct alignas(16) OutputRow {
    Index offset;
    Acc bias;
    Index phase[NDIM];
};

// The epilogue of one block's tile. SEVERAL: phases may have more than one tap.
template <class Multiplier, class T, class Acc, class Index, int NDIM, bool SEVERAL> struct DepthToSpace {
    using Row = OutputRow<Acc, Index, NDIM>;
    struct alignas(2 * sizeof(T)) Pair { T first, second; };
    static constexpr int kBlockN = Multiplier::kBlockN;
    // reuses the pipeline's buffers
    static constexpr int kSumsBytes = Multiplier::kBlockM * (kBlockN * sizeof(Acc) + 64);
    static constexpr int kRowsFrom = kSumsBytes > Multiplier::kSharedBytes ? kSumsBytes : Multiplier::kSharedBytes;

    const DepthToSpaceParams<Index, NDIM>& p;
    // In shared memory: one entry per row of the tile.
    Row* rows;
    Index group, m0, column0; // the group; the first row and the first column (cell) of the block's tile

    DEVICE const Divider<Index>& phases_along_w() const { return p.axes[NDIM - 1].phases; }

    // Fills the table of rows.
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
    // Stores all sums to shared memory, repairs them, and writes them: bias, residual, activation, rounding.
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
    // Pointer to the first output of a cell, as if y had no borders; `origin` are its coordinates, possibly negative.
    DEVICE T* corner(const Pixel<Index, NDIM>& at, Index (&origin)[NDIM]) const {
        T* y = static_cast<T*>(p.common.y) + group * p.out_channels * p.common.y_channel + at.n * p.common.y_batch;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis) {
            origin[axis] = at.q[axis] * Index(p.axes[axis].phases.divisor) - p.axes[axis].pad;
            y += origin[axis] * p.axes[axis].y_stride;
        }
        return y;
    }
    // Writes those rows of one cell that have this phase along W.
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
        // Lanes stay in step: what they store together has one channel, and one phase along the other axes.
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
    // Whether a cell's outputs along W are an aligned, contiguous pair, so that both can be stored at once.
    DEVICE bool in_pairs() const {
        Index steps = p.common.y_batch | p.common.y_channel | p.axes[NDIM - 1].pad;
#pragma unroll
        for (int axis = 0; axis < NDIM - 1; ++axis) steps |= p.axes[axis].y_stride;
        const bool aligned = reinterpret_cast<unsigned long long>(p.common.y) % sizeof(Pair) == 0;
        return phases_along_w().divisor == 2 && p.axes[NDIM - 1].y_stride == 1 && steps % 2 == 0 && aligned;
    }
    // Writes a whole cell, in pairs. Returns false, having written nothing, if some outputs of the cell do not exist.
    DEVICE bool write_pairs(const Acc* sums, int pitch, Index column) const {
        const Pixel<Index, NDIM> at = pixel(p.common, column);
        Index origin[NDIM];
        T* y = corner(at, origin);
        if (!at.exists || !whole(origin)) return false;
        const int left = int(p.common.filters - m0), end = left < Multiplier::kBlockM ? left : Multiplier::kBlockM;
#pragma unroll 4
        for (int row = 0; row < end; row += 2) {
            const Row& found = rows[row]; // the second one has the same bias
            *reinterpret_cast<Pair*>(y + found.offset) = {output<false>(sums[row * pitch], found, y),
                                                          output<false>(sums[(row + 1) * pitch], found, y)};
        }
        return true;
    }
    // Whether all outputs of a cell lie inside y.
    DEVICE bool whole(const Index (&origin)[NDIM]) const {
        bool exists = true;
#pragma unroll
        for (int axis = 0; axis < NDIM; ++axis)
            exists =
                exists && origin[axis] >= 0 && origin[axis] + Index(p.axes[axis].phases.divisor) <= p.axes[axis].extent;
        return exists;
    }
    // As write_column, for a cell that lies inside y: no bounds are checked.
    template <bool FINISH>
    DEVICE void write_whole(const Acc* sums, int pitch, int first, int before, T* y) const {
        const int step = int(phases_along_w().divisor), left = int(p.common.filters - m0);
        const int end = left < Multiplier::kBlockM ? left : Multiplier::kBlockM;
        int row = first;
#pragma unroll 4
        for (int rounds = (end + step - 1 + before) / step; rounds > 0;
             --rounds, row += step) { // the same number of iterations in all lanes
            const bool exists = inside(row, end);
            const int mine = exists ? row : 0;
            const T value = output<FINISH>(sums[mine * pitch], rows[mine], y);
            if (exists) y[rows[mine].offset] = value;
        }
    }
    // Finishes and rounds one sum.
    template <bool FINISH> DEVICE T output(Acc sum, const Row& row, const T* y) const {
        sum += row.bias;
        if constexpr (FINISH) sum = finished(p.common.finish, p.common.y, sum, y + row.offset);
        return narrow<T>(sum);
    }
};

// Returns the epilogue of the tile with these numbers.
template <class Writer, class Multiplier, class Index, int NDIM>
DEVICE Writer writer_at(const DepthToSpaceParams<Index, NDIM>& p, unsigned char* shared, Index group, Index m_tile,
                        Index n_tile) {
    const auto rows = reinterpret_cast<typename Writer::Row*>(shared + Writer::kRowsFrom);
    return {p, rows, group, m_tile * Multiplier::kBlockM, n_tile * Multiplier::kBlockN};
}

// Runs one block of a kernel whose cells have one tap: main loop, then epilogue.
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
