// MaxPool and AveragePool in channels-last layout, for windows without dilation. A thread owns one vector of channels
// and computes `walk` adjacent outputs of a row of y, straight from registers, without shared memory.
//
// Lanes run along the channels first, so loads and stores are coalesced. If windows of adjacent rows overlap, they run
// down the columns next, so that shared rows of x hit in L1. A thread reduces each column of x that its windows cover
// once, with up to three rows in flight. If windows are at most kMost = 3 columns wide, it keeps the results of the
// last three columns, which adjacent windows share. Bound by memory.
//
//     column results  c0 c1 c2 c3 ...     window 0 = max(c0, c1, c2), window 1 = max(c1, c2, c3), ...
//
// Without Indices, vectors have 16 bytes, and 16-bit or 8-bit elements are compared two at a time. With Indices,
// vectors have two elements. Sums are computed likewise, in the accumulator's type. No window may be empty;
// pool/general.cu takes such problems. If pixels are not whole vectors, or x is unaligned, elements are loaded and
// stored one by one. A thread's channels are then spread, so that adjacent lanes still access adjacent channels.
#include "base/geometry.cuh"
#include "pool/average.cuh"
#include "pool/packed.cuh"
#include "pool/places.cuh"

// Axes are depth, height, width. All arrays have stride 1 along the channels. Strides count elements.
struct ChannelPoolParams {
    const void* x;
    void* y;
    long long* indices;
    long long plane; // Indices per channel, or 0 to count within each plane
    int items;       // vectors times walks
    int x_extent[3], y_extent[3], kernel[3], stride[3], pad[3];
    int x_batch, x_stride[3];
    int y_batch, y_stride[3];
    int indices_batch, indices_stride[3];
    int channels, walk;                           // walk: outputs per thread
    int whole;                                    // whether pixels of x are whole vectors of channels (if x is aligned)
    int rows_first;                               // walks of adjacent rows have adjacent numbers, else walks of one row
    Divider<int> vectors, walks, heights, depths; // vectors per pixel, walks per row, rows per slice, slices per image
};

struct AverageChannelPoolParams : ChannelPoolParams { Counted<int, 3> counted; };

// The in-bounds part [first, end) of window q along an axis; the window begins at `start`.
struct Reach { int start, first, end; };

DEVICE Reach reach_of(const ChannelPoolParams& p, int axis, int q) {
    const int start = q * p.stride[axis] - p.pad[axis];
    return {start, max(start, 0), min(start + p.kernel[axis], p.x_extent[axis])};
}

// One thread's outputs of a row of y, and the rows of x that they read.
template <class T> struct Walk {
    Spread spread; // the thread's channels
    Reach slices, rows;
    int column, end; // outputs
    const T* x;
    T* y;
    long long* indices;
    long long number; // Index of element 0 of the first channel
};

// Decodes an item's number into a walk.
template <int VECTOR, class T> DEVICE Walk<T> stand(const ChannelPoolParams& p, int item, bool whole) {
    Walk<T> walk;
    int vector, channel, row, depth;
    int above = p.vectors.split(item, vector);
    if (p.rows_first) above = p.walks.split(p.heights.split(above, row), walk.column);
    else above = p.heights.split(p.walks.split(above, walk.column), row);
    const int image = p.depths.split(above, depth);
    walk.spread = spread_of<VECTOR>(whole, p.channels, vector, channel);
    walk.column *= p.walk;
    walk.end = min(walk.column + p.walk, p.y_extent[2]);
    walk.slices = reach_of(p, 0, depth);
    walk.rows = reach_of(p, 1, row);
    walk.x = static_cast<const T*>(p.x) + image * p.x_batch + channel;
    walk.y = static_cast<T*>(p.y) + image * p.y_batch + depth * p.y_stride[0] + row * p.y_stride[1]
           + walk.column * p.y_stride[2] + channel;
    walk.indices = p.indices + image * p.indices_batch + depth * p.indices_stride[0] + row * p.indices_stride[1]
                 + walk.column * p.indices_stride[2] + channel;
    walk.number = (image * p.channels + channel) * p.plane;
    return walk;
}

// clear: the maximum (or sum) of no element; `place` is the number of the first element to come. take: merges one row.
template <class T> DEVICE void clear(Columns<T>& maxima, int) { maxima = {}; }
template <class T> DEVICE void take(Columns<T>& maxima, const uint4& row, int) { maxima.take(row); }
template <class T, class Acc> DEVICE void clear(ColumnSums<T, Acc>& sums, int) { sums = {}; }
template <class T, class Acc> DEVICE void take(ColumnSums<T, Acc>& sums, const uint4& row, int) { sums.take(row); }
template <class T> DEVICE void clear(Places<T>& maxima, int place) {
#pragma unroll
    for (int i = 0; i < Places<T>::kVector; ++i) maxima.maxima[i] = {least<T>(), place};
}
template <class T> DEVICE void take(Places<T>& maxima, const typename Places<T>::Row& row, int place) {
#pragma unroll
    for (int i = 0; i < Places<T>::kVector; ++i) maxima.maxima[i].take(row[i], place);
}

// The maxima, or sums, of one column of x over all rows and slices of the windows; those of no element if out of
// bounds.
template <class Maxima, int ROWS, class T>
DEVICE Maxima maxima_of_column(const ChannelPoolParams& p, const Walk<T>& walk, int column) {
    Maxima maxima;
    clear(maxima, 0x7fffffff);
    if (!inside(column, p.x_extent[2])) return maxima;
    clear(maxima, (walk.slices.first * p.x_extent[1] + walk.rows.first) * p.x_extent[2] + column);
    const T* slice_x =
        walk.x + walk.slices.first * p.x_stride[0] + walk.rows.first * p.x_stride[1] + column * p.x_stride[2];
#pragma unroll 1
    for (int slice = walk.slices.first; slice < walk.slices.end; ++slice) {
        const T* x = slice_x;
#pragma unroll 1
        for (int row = walk.rows.first; row < walk.rows.end; row += ROWS) {
            typename Maxima::Row rows[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                if (i == 0 || row + i < walk.rows.end) load_row(x, walk.spread, rows[i]);
                x += p.x_stride[1];
            }
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
                if (i == 0 || row + i < walk.rows.end)
                    take(maxima, rows[i], (slice * p.x_extent[1] + row + i) * p.x_extent[2] + column);
        }
        slice_x += p.x_stride[0];
    }
    return maxima;
}

// Stores one output of each channel, and advances to the next one. `begin`: columns from the first window's beginning.
template <class Maxima, class T>
DEVICE void write(const ChannelPoolParams& p, Walk<T>& walk, const Maxima& maxima, int) {
    write_maxima(maxima, walk.spread, walk.y, walk.indices, walk.number, p.plane);
    walk.y += p.y_stride[2];
    walk.indices += p.indices_stride[2];
}
template <class Acc, class T> DEVICE Acc counts_of(const AverageChannelPoolParams& p, const Walk<T>& walk, int begin) {
    return Acc(count(p.counted, 0, walk.slices.start + p.pad[0])) * Acc(count(p.counted, 1, walk.rows.start + p.pad[1]))
         * Acc(count(p.counted, 2, begin));
}
// The same for sums: divides by the number of counted taps.
template <class T, class Acc>
DEVICE void write(const AverageChannelPoolParams& p, Walk<T>& walk, const ColumnSums<T, Acc>& sums, int begin) {
    constexpr int kVector = ColumnSums<T, Acc>::kVector;
    const Acc counts = counts_of<Acc>(p, walk, begin);
    T row[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) row[i] = average<T>(sums[i], counts);
    write_row(walk.y, walk.spread, row);
    walk.y += p.y_stride[2];
}

constexpr int kMost = 3; // windows of at most this many columns share column results

// Computes the outputs of a walk whose windows have at most kMost columns.
template <class Maxima, int ROWS, class Params, class T> DEVICE void walk_along(const Params& p, Walk<T>& walk) {
    Maxima before, last; // results of the two previous columns
    clear(before, 0x7fffffff);
    clear(last, 0x7fffffff);
    int start = reach_of(p, 2, walk.column).start, column = start;
    const int end = reach_of(p, 2, walk.end).start;
#pragma unroll 1
    while (start < end) {
        const Maxima maxima = maxima_of_column<Maxima, ROWS>(p, walk, column);
        Maxima window = maxima;
        if (p.kernel[2] > 1) window.merge(last);
        if (p.kernel[2] == kMost) window.merge(before);
        before = last;
        last = maxima;
        if (++column < start + p.kernel[2]) continue;
        write(p, walk, window, start + p.pad[2]);
        start += p.stride[2];
        column = max(column, start);
    }
}

// Computes the outputs of a walk one by one, each from all its columns.
template <class Maxima, int ROWS, class Params, class T> DEVICE void stand_still(const Params& p, Walk<T>& walk) {
#pragma unroll 1
    for (int q = walk.column; q < walk.end; ++q) {
        const Reach columns = reach_of(p, 2, q);
        Maxima window = maxima_of_column<Maxima, ROWS>(p, walk, columns.first);
#pragma unroll 1
        for (int column = columns.first + 1; column < columns.end; ++column)
            window.merge(maxima_of_column<Maxima, ROWS>(p, walk, column));
        write(p, walk, window, columns.start + p.pad[2]);
    }
}

template <class Maxima, bool WHOLE, class T, class Params> DEVICE void pool_as(const Params& p, int item) {
    constexpr int kVector = Maxima::kVector, kRows = WHOLE || kVector == 2 ? 3 : 1; // rows in flight together
    Walk<T> walk = stand<kVector, T>(p, item, WHOLE);
    if (p.kernel[2] <= kMost) walk_along<Maxima, kRows>(p, walk);
    else stand_still<Maxima, kRows>(p, walk);
}

// Chooses vectors or single elements, by the alignment of x.
template <class Maxima, class T, class Params> DEVICE void pool_channels(const Params& p) {
    constexpr int kThreads = 256; // the block size that the planner uses
    const int item = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (item >= p.items) return;
    if (p.whole && reinterpret_cast<unsigned long long>(p.x) % (Maxima::kVector * sizeof(T)) == 0)
        pool_as<Maxima, true, T>(p, item);
    else pool_as<Maxima, false, T>(p, item);
}

template <class T, bool INDICES> DEVICE void max_pool_channels(const ChannelPoolParams& p) {
    if constexpr (INDICES) pool_channels<Places<T>, T>(p);
    else pool_channels<Columns<T>, T>(p);
}

template <class T, class Acc> DEVICE void average_pool_channels(const AverageChannelPoolParams& p) {
    pool_channels<ColumnSums<T, Acc>, T>(p);
}
