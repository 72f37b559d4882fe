// MaxPool and AveragePool with K x K windows and stride S along H and W, over contiguous rows (NCHW) of whole 16-byte
// vectors: the windows of nearly every network. Everything stays in registers; no shared memory is used.
//
// Thread: the outputs of one vector of columns, in a strip of STRIP rows of y. It loads each row of x that they cover
// once, all rows in flight together. Columns beyond its vector come from adjacent lanes by shuffle; for that, the first
// or last lane of a warp (or both) may load without writing.
//
//     lane i - 1 | lane i: 16 bytes of a row | lane i + 1
//         halo --> |   windows of lane i     | <-- halo
//
// Without Indices, reductions run down the columns first (16-bit and 8-bit elements two at a time), then once along the
// row; sums likewise. With Indices, vectors cover two outputs (or one), and reductions run along each row first, then
// down. Slices of a 3-D window are processed in turn; no window may be empty. If x is unaligned, elements are loaded
// one by one. Bound by memory.
#include "base/geometry.cuh"
#include "pool/average.cuh"
#include "pool/packed.cuh"

// Axes are depth, height, width. x and y have stride 1 along the width. Strides count elements.
struct VectorPoolParams {
    const void* x;
    void* y;
    long long* indices;
    long long plane;                              // Indices per channel, or 0 to count within each plane
    int items;                                    // strips times vectors
    int x_extent[3], y_extent[3], kernel, stride; // kernel, stride: of the window along the depth
    int pad[3];
    int x_batch, x_channel, x_stride[2];
    int y_batch, y_channel, y_stride[2];
    int indices_batch, indices_channel, indices_stride[2];
    // vectors per row, strips per slice, slices per plane, channels per image
    Divider<int> vectors, strips, depths, channels;
};

struct AverageVectorPoolParams : VectorPoolParams { Counted<int, 3> counted; };

// One thread's strip: its first output, and pointers to its plane.
template <class T> struct Strip {
    int plane, row, column, vector, slice;
    const T* x;
    T* y;
    long long* indices;
};

// Decodes a strip's number. `outputs`: per vector.
template <int STRIP, class T> DEVICE Strip<T> strip_of(const VectorPoolParams& p, int item, int outputs) {
    Strip<T> strip;
    int channel, depth;
    int above = p.vectors.split(item, strip.vector);
    above = p.depths.split(p.strips.split(above, strip.row), depth);
    const int image = p.channels.split(above, channel);
    strip.plane = above;
    strip.row *= STRIP;
    strip.column = strip.vector * outputs;
    strip.slice = depth * p.stride - p.pad[0];
    strip.x = static_cast<const T*>(p.x) + image * p.x_batch + channel * p.x_channel;
    strip.y = static_cast<T*>(p.y) + image * p.y_batch + channel * p.y_channel + depth * p.y_stride[0]
            + strip.row * p.y_stride[1] + strip.column;
    strip.indices = p.indices + image * p.indices_batch + channel * p.indices_channel + depth * p.indices_stride[0]
                  + strip.row * p.indices_stride[1] + strip.column;
    return strip;
}

// Reduces the rows of a strip's windows down the columns, over all slices.
template <int K, int S, class T, class Taken, int STRIP>
DEVICE void take_rows(const VectorPoolParams& p, const Strip<T>& strip, bool loads, Taken (&columns)[STRIP]) {
    constexpr int kVector = Taken::kVector, kRows = (STRIP - 1) * S + K;
    const int first = strip.row * S - p.pad[1];
    const int end = loads ? min(strip.slice + p.kernel, p.x_extent[0]) : 0;
#pragma unroll 1
    for (int slice = max(strip.slice, 0); slice < end; ++slice) {
        const T* x = strip.x + slice * p.x_stride[0] + strip.vector * kVector;
        uint4 rows[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            if (inside(first + i, p.x_extent[1]))
                rows[i] = *reinterpret_cast<const uint4*>(x + (first + i) * p.x_stride[1]);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            if (!inside(first + i, p.x_extent[1])) continue;
#pragma unroll
            for (int out = 0; out < STRIP; ++out)
                if (out * S <= i && i < out * S + K) columns[out].take(rows[i]);
        }
    }
}

// Gathers the elements of a row that the windows cover: this lane's COUNT, and the halo of adjacent lanes if `pad`
// requires it. The first and last lane of a row have `none` on their outer side.
template <int AROUND, int COUNT, class T, class Own>
DEVICE void look_around(const Own& own, int pad, bool first, bool last, T none, T (&elements)[COUNT + 2 * AROUND]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) elements[AROUND + i] = own[i];
#pragma unroll
    for (int i = 0; i < AROUND; ++i) {
        const T before = from_lane_before(T(own[COUNT - AROUND + i])), after = from_lane_after(T(own[i]));
        elements[i] = first ? none : before;
        elements[AROUND + COUNT + i] = last ? none : after;
    }
    // Shifts by the padding. It is not a compile-time constant, and registers cannot be indexed.
#pragma unroll
    for (int distance = AROUND; distance > 0; --distance) {
        if (pad + distance > AROUND) continue;
#pragma unroll
        for (int i = 0; i + 1 < COUNT + 2 * AROUND; ++i) elements[i] = elements[i + 1];
    }
}

// Stores OUTPUTS adjacent outputs, as one vector if possible.
template <class T, int OUTPUTS>
DEVICE void write_row(const VectorPoolParams& p, int column, T* target, const T (&row)[OUTPUTS]) {
    if (column + OUTPUTS <= p.y_extent[2]
        && reinterpret_cast<unsigned long long>(target) % (OUTPUTS * sizeof(T)) == 0) {
        store_row(target, row);
        return;
    }
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i)
        if (column + i < p.y_extent[2]) target[i] = row[i];
}

// The unaligned path, one output at a time: put(row, column, result) receives each.
template <int K, int S, int STRIP, int OUTPUTS, class T, class Taken, class Put>
DEVICE void pool_singly(const VectorPoolParams& p, const Strip<T>& strip, const Taken& nothing, const Put& put) {
    const int end_row = min(strip.row + STRIP, p.y_extent[1]), end_column = min(strip.column + OUTPUTS, p.y_extent[2]);
#pragma unroll 1
    for (int q = strip.row; q < end_row; ++q)
#pragma unroll 1
        for (int out = strip.column; out < end_column; ++out) {
            Taken taken = nothing;
            const int slice = max(strip.slice, 0), row = max(q * S - p.pad[1], 0), column = max(out * S - p.pad[2], 0);
#pragma unroll 1
            for (int i = slice; i < min(strip.slice + p.kernel, p.x_extent[0]); ++i)
#pragma unroll 1
                for (int j = row; j < min(q * S - p.pad[1] + K, p.x_extent[1]); ++j)
#pragma unroll 1
                    for (int k = column; k < min(out * S - p.pad[2] + K, p.x_extent[2]); ++k)
                        taken.merge(Taken::of(strip.x[i * p.x_stride[0] + j * p.x_stride[1] + k],
                                              (i * p.x_extent[1] + j) * p.x_extent[2] + k));
            put(q - strip.row, out - strip.column, taken);
        }
}

// The unaligned path of MaxPool.
template <int K, int S, int STRIP, int OUTPUTS, bool INDICES, class T>
DEVICE void maxima_singly(const VectorPoolParams& p, const Strip<T>& strip) {
    pool_singly<K, S, STRIP, OUTPUTS>(
        p, strip, nothing<T, INDICES>(), [&](int row, int column, const Maximum<T, int, INDICES>& maximum) {
            strip.y[row * p.y_stride[1] + column] = maximum.value;
            if constexpr (INDICES)
                strip.indices[row * p.indices_stride[1] + column] = strip.plane * p.plane + maximum.place;
        });
}

// This thread's share. Lanes that do not write use an adjacent lane's strip; some outputs lie beyond the last vector.
template <class T> struct Share {
    Strip<T> strip;
    bool loads, writes, first, last; // first, last: of a row
};

// Decodes the thread's number. Lanes at the ends of a warp overlap with the adjacent warps if windows need their halo.
template <int THREADS, int K, int S, int STRIP, class T>
DEVICE Share<T> share_of(const VectorPoolParams& p, int outputs) {
    const int before = p.pad[2] > 0, after = K - S > p.pad[2], lane = int(threadIdx.x) % 32;
    const int warp = int(blockIdx.x) * (THREADS / 32) + int(threadIdx.x) / 32;
    const int item = warp * (32 - before - after) + lane - before;
    Share<T> share;
    const bool exists = inside(item, p.items);
    share.writes = exists && lane >= before && lane < 32 - after;
    share.strip = strip_of<STRIP, T>(p, exists ? item : 0, outputs);
    share.loads = exists && share.strip.vector * outputs * S < p.x_extent[2];
    share.first = share.strip.vector == 0;
    share.last = share.strip.vector + 1 == int(p.vectors.divisor);
    return share;
}

// Kernel: MaxPool without Indices.
template <class T, int K, int S, int STRIP> DEVICE void max_pool_vectors(const VectorPoolParams& p) {
    // the block size that the planner uses
    constexpr int kThreads = 128, kVector = Columns<T>::kVector, kOutputs = kVector / S;
    const Share<T> share = share_of<kThreads, K, S, STRIP, T>(p, kOutputs);
    const Strip<T>& strip = share.strip;
    if (reinterpret_cast<unsigned long long>(p.x) % 16 != 0) {
        if (share.writes) maxima_singly<K, S, STRIP, kOutputs, false>(p, strip);
        return;
    }
    Columns<T> maxima[STRIP];
    take_rows<K, S>(p, strip, share.loads, maxima);
    T rows[STRIP][kOutputs];
#pragma unroll
    for (int out = 0; out < STRIP; ++out) {
        T elements[kVector + 2 * (K - S)];
        look_around<K - S, kVector>(maxima[out], p.pad[2], share.first, share.last, least<T>(), elements);
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) {
            rows[out][i] = elements[i * S];
#pragma unroll
            for (int tap = 1; tap < K; ++tap) rows[out][i] = larger(rows[out][i], elements[i * S + tap]);
        }
    }
    if (!share.writes) return;
#pragma unroll
    for (int out = 0; out < STRIP; ++out)
        if (strip.row + out < p.y_extent[1]) write_row(p, strip.column, strip.y + out * p.y_stride[1], rows[out]);
}

// ---- averages

// Kernel: AveragePool.
template <class T, class Acc, int K, int S, int STRIP>
DEVICE void average_pool_vectors(const AverageVectorPoolParams& p) {
    using Taken = ColumnSums<T, Acc>;
    // threads: the block size that the planner uses
    constexpr int kThreads = 128, kVector = Taken::kVector, kOutputs = kVector / S;
    const Share<T> share = share_of<kThreads, K, S, STRIP, T>(p, kOutputs);
    const Strip<T>& strip = share.strip;
    const Acc slices = count(p.counted, 0, strip.slice + p.pad[0]);
    const auto counts = [&](int row, int column) {
        return slices * Acc(count(p.counted, 1, (strip.row + row) * S))
             * Acc(count(p.counted, 2, (strip.column + column) * S));
    };
    if (reinterpret_cast<unsigned long long>(p.x) % 16 != 0) {
        if (!share.writes) return;
        pool_singly<K, S, STRIP, kOutputs>(p, strip, Sum<T, Acc>{0}, [&](int row, int column, const Sum<T, Acc>& sum) {
            strip.y[row * p.y_stride[1] + column] = average<T>(sum.value, counts(row, column));
        });
        return;
    }
    Taken sums[STRIP];
    take_rows<K, S>(p, strip, share.loads, sums);
#pragma unroll
    for (int out = 0; out < STRIP; ++out) {
        Acc elements[kVector + 2 * (K - S)];
        look_around<K - S, kVector>(sums[out], p.pad[2], share.first, share.last, Acc(0), elements);
        if (!share.writes || strip.row + out >= p.y_extent[1]) continue;
        T row[kOutputs];
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) {
            Acc sum = elements[i * S];
#pragma unroll
            for (int tap = 1; tap < K; ++tap) sum += elements[i * S + tap];
            row[i] = average<T>(sum, counts(out, i));
        }
        write_row(p, strip.column, strip.y + out * p.y_stride[1], row);
    }
}

// ---- with Indices

// Reduces one slice: along each row first, then down.
template <class T, int K, int S, int STRIP, int OUTPUTS>
DEVICE void take_slice(const VectorPoolParams& p, const Share<T>& share, int slice, const int (&starts)[OUTPUTS],
                       Maximum<T, int, true> (&windows)[STRIP][OUTPUTS]) {
    constexpr int kVector = OUTPUTS * S, kRows = (STRIP - 1) * S + K;
    using Row = Neighbours<T, kVector>;
    const int first = share.strip.row * S - p.pad[1];
    const T* x = share.strip.x + slice * p.x_stride[0] + share.strip.vector * kVector;
    const bool met = share.loads && inside(slice, p.x_extent[0]);
    Row rows[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) rows[i].elements[j] = least<T>();
        if (met && inside(first + i, p.x_extent[1]))
            rows[i] = *reinterpret_cast<const Row*>(x + (first + i) * p.x_stride[1]);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        T elements[kVector + 2 * (K - S)];
        look_around<K - S, kVector>(rows[i], p.pad[2], share.first, share.last, least<T>(), elements);
        const int place = (slice * p.x_extent[1] + first + i) * p.x_extent[2];
#pragma unroll
        for (int j = 0; j < OUTPUTS; ++j) {
            Maximum<T, int, true> maximum{elements[j * S], place + starts[j]};
#pragma unroll
            for (int tap = 1; tap < K; ++tap) maximum.take(elements[j * S + tap], place + starts[j] + tap);
#pragma unroll
            for (int out = 0; out < STRIP; ++out)
                if (out * S <= i && i < out * S + K) windows[out][j].take(maximum.value, maximum.place);
        }
    }
}

// Kernel: MaxPool with Indices.
template <class T, int K, int S, int STRIP> DEVICE void max_pool_pairs(const VectorPoolParams& p) {
    // threads: the block size that the planner uses
    constexpr int kThreads = 128, kOutputs = 2 * S * sizeof(T) > 16 ? 1 : 2;
    const Share<T> share = share_of<kThreads, K, S, STRIP, T>(p, kOutputs);
    const Strip<T>& strip = share.strip;
    if (reinterpret_cast<unsigned long long>(p.x) % (kOutputs * S * sizeof(T)) != 0) {
        if (share.writes) maxima_singly<K, S, STRIP, kOutputs, true>(p, strip);
        return;
    }
    // A window whose elements all equal the identity must name its first in-bounds element.
    int starts[kOutputs];
    Maximum<T, int, true> windows[STRIP][kOutputs];
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
        starts[j] = (strip.column + j) * S - p.pad[2];
#pragma unroll
        for (int out = 0; out < STRIP; ++out) {
            const int row = max((strip.row + out) * S - p.pad[1], 0);
            windows[out][j] = {least<T>(),
                               (max(strip.slice, 0) * p.x_extent[1] + row) * p.x_extent[2] + max(starts[j], 0)};
        }
    }
#pragma unroll 1
    for (int slice = 0; slice < p.kernel; ++slice) take_slice<T, K, S>(p, share, strip.slice + slice, starts, windows);
    if (!share.writes) return;
#pragma unroll
    for (int out = 0; out < STRIP; ++out) {
        if (strip.row + out >= p.y_extent[1]) continue;
        T values[kOutputs];
        long long numbers[kOutputs];
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) {
            values[j] = windows[out][j].value;
            numbers[j] = strip.plane * p.plane + windows[out][j].place;
        }
        write_row(p, strip.column, strip.y + out * p.y_stride[1], values);
        write_row(p, strip.column, strip.indices + out * p.indices_stride[1], numbers);
    }
}
