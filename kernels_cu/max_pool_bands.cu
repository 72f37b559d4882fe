// MaxPool with windows of up to three elements in height and width, by way of shared memory.
//
// A block makes a band of output rows (`tile_rows` x `tile_columns`) of one plane, or some whole planes that lie one
// after another. It copies the rows of x that they need to shared memory, 16 bytes at a time whatever the rows' length,
// and in one run where they are neighbours. Then a thread walks down a column of `walk` outputs: of each row of x it
// finds the maximum of the window's columns once, and keeps the last three of those, which windows one above the other
// share. Lanes stand side by side, so that a warp writes neighbours. Slices of a 3-D window are merged row by row.
// No window is empty, and none is dilated: other kernels make those.
#include "geometry.cuh"
#include "order.cuh"
#include "staging.cuh"

// Axes are depth, height and width; along the width all arrays have a stride of 1. Strides count elements.
struct BandPoolParams {
    const void* x;
    void* y;
    long long* indices;
    long long plane;               // elements of x per channel
    int planes, x_extent[3], y_extent[3], kernel[3], stride[3], pad[3];
    int x_batch, x_channel, x_stride[2];
    int y_batch, y_channel, y_stride[2];
    int indices_batch, indices_channel, indices_stride[2];
    int tile_planes, tile_rows, walk;
    int merged;                    // the tile's rows (of all its planes) are one run of each slice
    int slice_pitch, row_pitch, phase_step;               // of shared memory, in elements
    Divider<int> channels, depths, bands, column_tiles, tile_columns, groups;
};

// What a block makes, and where the rows of x for it begin.
template <class T> struct Band {
    int plane, planes, depth;      // the first plane, and how many
    int out_row, out_column;       // the first ones
    int slice, slices, row, rows, column, columns;        // of x: the first one, and how many
    const T* x;
    int phase;                     // of x
};

// The part [first, first + count) of an axis of x that `outputs` windows from output q on meet.
__device__ __forceinline__ void meet(const BandPoolParams& p, int axis, int q, int outputs, int& first, int& count)
{
    const int start = q * p.stride[axis] - p.pad[axis];
    const int stop = start + (outputs - 1) * p.stride[axis] + p.kernel[axis];
    first = max(start, 0);
    count = min(stop, p.x_extent[axis]) - first;
}

template <class T> __device__ __forceinline__ Band<T> stand(const BandPoolParams& p)
{
    Band<T> band;
    int tile_row, tile_column;
    const int above = p.column_tiles.split(int(blockIdx.x), tile_column);
    const int first = p.depths.split(p.bands.split(above, tile_row), band.depth) * p.tile_planes;
    band.plane = first;
    band.planes = min(p.tile_planes, p.planes - first);
    band.out_row = tile_row * p.tile_rows;
    band.out_column = tile_column * int(p.tile_columns.divisor);
    meet(p, 0, band.depth, 1, band.slice, band.slices);
    meet(p, 1, band.out_row, p.tile_rows, band.row, band.rows);
    meet(p, 2, band.out_column, int(p.tile_columns.divisor), band.column, band.columns);
    if (p.merged) {                // whole rows, and of several planes all of them
        band.columns = p.x_extent[2];
        if (p.tile_planes > 1) band.rows = p.x_extent[1];
    }
    int channel;
    const int image = p.channels.split(first, channel);
    band.x = static_cast<const T*>(p.x) + image * p.x_batch + channel * p.x_channel + band.slice * p.x_stride[0]
             + band.row * p.x_stride[1] + band.column;
    band.phase = phase_of(band.x);
    return band;
}

template <int THREADS, class T>
__device__ __forceinline__ void fetch(const BandPoolParams& p, const Band<T>& band, T* tile)
{
#pragma unroll 1
    for (int slice = 0; slice < band.slices; ++slice) {
        T* target = tile + slice * p.slice_pitch;
        const T* source = band.x + slice * p.x_stride[0];
        if (p.merged) {
            copy_run(target, source, band.planes * band.rows * band.columns, int(threadIdx.x), THREADS);
            continue;
        }
#pragma unroll 1
        for (int row = int(threadIdx.x) / 32; row < band.rows; row += THREADS / 32)
            copy_run(target + row * p.row_pitch, source + row * p.x_stride[1], band.columns, int(threadIdx.x) % 32, 32);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
}

constexpr int kMost = 3;           // elements that a window is high and wide at most

// A column of outputs: where the first one is, and its windows' columns.
template <class T> struct Column {
    int plane, start, first;       // the windows' first column, and the first one inside x
    bool inside[kMost];
    const T* elements;             // of the tile's first row
    T* y;
    long long* indices;
};

// Lets the windows of a column begin at `start`.
template <class T> __device__ __forceinline__ void look(const BandPoolParams& p, Column<T>& column, int start)
{
    column.start = start;
    column.first = max(start, 0);
#pragma unroll
    for (int tap = 0; tap < kMost; ++tap) column.inside[tap] = tap < p.kernel[2] && inside(start + tap, p.x_extent[2]);
}

template <class T>
__device__ __forceinline__ Column<T> stand_at(const BandPoolParams& p, const Band<T>& band, const T* tile, int plane, int row, int q)
{
    Column<T> column;
    int channel;
    const int image = p.channels.split(band.plane + plane, channel);
    column.plane = band.plane + plane;
    look(p, column, q * p.stride[2] - p.pad[2]);
    column.elements = tile + plane * p.x_extent[1] * p.row_pitch + column.start - band.column;
    column.y = static_cast<T*>(p.y) + image * p.y_batch + channel * p.y_channel + band.depth * p.y_stride[0]
               + row * p.y_stride[1] + q;
    column.indices = p.indices + image * p.indices_batch + channel * p.indices_channel
                     + band.depth * p.indices_stride[0] + row * p.indices_stride[1] + q;
    return column;
}

// The maximum of one row of the windows of a column, of all slices; nothing where the row is outside of x.
template <class T, bool INDICES>
__device__ __forceinline__ Maximum<T, int, INDICES> maximum_of_row(const BandPoolParams& p, const Band<T>& band,
                                                                   const Column<T>& column, int row)
{
    if (!inside(row, p.x_extent[1])) return nothing<T, INDICES>();
    const int below = row - band.row, phase = band.phase + below * p.phase_step;
    const T* elements = column.elements + below * p.row_pitch;
    const auto of_slice = [&](int slice) {
        const T* these = elements + slice * p.slice_pitch + (phase + slice * p.x_stride[0] & 16 / int(sizeof(T)) - 1);
        const int place = INDICES ? ((band.slice + slice) * p.x_extent[1] + row) * p.x_extent[2] : 0;
        Maximum<T, int, INDICES> maximum{least<T>(), place + column.first};
#pragma unroll
        for (int tap = 0; tap < kMost; ++tap)
            maximum.take(column.inside[tap] ? these[tap] : least<T>(), place + column.start + tap);
        return maximum;
    };
    Maximum<T, int, INDICES> maximum = of_slice(0);
#pragma unroll 1
    for (int slice = 1; slice < band.slices; ++slice) maximum.merge(of_slice(slice));
    return maximum;
}

// Makes the outputs of a column from row q up to `end`.
template <class T, bool INDICES>
__device__ __forceinline__ void walk_down(const BandPoolParams& p, const Band<T>& band, Column<T> column, int q, int end)
{
    const Maximum<T, int, INDICES> none = nothing<T, INDICES>();
    Maximum<T, int, INDICES> before = none, last = none;  // of the two rows above
    int start = q * p.stride[1] - p.pad[1], row = start;
    end = end * p.stride[1] - p.pad[1];
#pragma unroll 1
    while (start < end) {
        const Maximum<T, int, INDICES> maximum = maximum_of_row<T, INDICES>(p, band, column, row);
        Maximum<T, int, INDICES> window = p.kernel[1] == kMost ? before : none;
        before = last;
        if (p.kernel[1] > 1) window.merge(last);
        last = maximum;
        window.merge(maximum);
        if (++row < start + p.kernel[1]) continue;
        *column.y = window.value;
        column.y += p.y_stride[1];
        if constexpr (INDICES) {
            *column.indices = column.plane * p.plane + window.place;
            column.indices += p.indices_stride[1];
        }
        start += p.stride[1];
        row = max(row, start);
    }
}

// Makes rows of outputs whose windows are one row of one slice, each thread every THREADS-th one.
template <int THREADS, class T, bool INDICES>
__device__ __forceinline__ void walk_along(const BandPoolParams& p, const Band<T>& band, const T* tile, int plane, int q)
{
    const int end = min(band.out_column + int(p.tile_columns.divisor), p.y_extent[2]);
    const int row = q * p.stride[1] - p.pad[1], step = THREADS * p.stride[2];
    Column<T> column = stand_at(p, band, tile, plane, q, band.out_column + int(threadIdx.x));
#pragma unroll 2
    for (int out = band.out_column + int(threadIdx.x); out < end; out += THREADS) {
        const Maximum<T, int, INDICES> maximum = maximum_of_row<T, INDICES>(p, band, column, row);
        *column.y = maximum.value;
        if constexpr (INDICES) *column.indices = column.plane * p.plane + maximum.place;
        column.y += THREADS;
        if constexpr (INDICES) column.indices += THREADS;
        column.elements += step;
        look(p, column, column.start + step);
    }
}

template <class T, bool INDICES> __device__ __forceinline__ void max_pool_bands(const BandPoolParams& p)
{
    constexpr int kThreads = 256;  // as the plan launches it
    extern __shared__ __align__(16) unsigned char memory[];
    T* tile = reinterpret_cast<T*>(memory);
    // 1. The rows of x.
    const Band<T> band = stand<T>(p);
    fetch<kThreads>(p, band, tile);

    // 2. Rows of outputs where windows are no more than that, and long enough; else columns of them, side by side.
    if (p.kernel[0] * p.kernel[1] == 1 && int(p.tile_columns.divisor) >= kThreads) {
#pragma unroll 1
        for (int line = 0; line < band.planes * p.tile_rows; ++line) {
            const int plane = line / p.tile_rows, q = band.out_row + line % p.tile_rows;
            if (q < p.y_extent[1]) walk_along<kThreads, T, INDICES>(p, band, tile, plane, q);
        }
        return;
    }
    const int groups = int(p.groups.divisor), items = band.planes * groups * int(p.tile_columns.divisor);
#pragma unroll 1
    for (int item = int(threadIdx.x); item < items; item += kThreads) {
        int side, group;
        const int plane = p.groups.split(p.tile_columns.split(item, side), group);
        const int out_column = band.out_column + side, q = band.out_row + group * p.walk;
        if (out_column >= p.y_extent[2]) continue;
        const int end = min(min(q + p.walk, band.out_row + p.tile_rows), p.y_extent[1]);
        walk_down<T, INDICES>(p, band, stand_at(p, band, tile, plane, q, out_column), q, end);
    }
}
