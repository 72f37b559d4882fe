// MaxPool and AveragePool in channels-last layout for large windows, with any stride and dilation: separable, in shared
// memory. Each window is reduced down the columns first, then along the rows.
//
// Block: a patch of tile_rows x tile_columns pixels of y, in one slice and some adjacent vectors of channels. Thread:
// kRun windows of one vector of channels at a time.
//
//     global x --cp.async--> shared pixels (with halo) --down the columns--> shared lines --along the lines--> y
//
// The first pass covers all slices of a window. Lines include the padding as neutral elements, so taps along a line
// need no predicates. Windows of a run share taps (pool/runs.cuh). Lanes run along the channels, then the pixels.
// Different runs are an odd number of pixels apart, unless a pixel covers all banks: that avoids bank conflicts. Bound
// by instructions and shared memory.
//
// Without Indices, vectors have 16 bytes, and short elements are compared two at a time. With Indices, vectors have two
// elements, and of equal elements the lower number wins. Lines of sums have the accumulator's type. No window may be
// empty. If pixels are not whole vectors, or x is unaligned, elements are loaded and stored one by one. A thread's
// channels are then spread, so that adjacent lanes still access adjacent channels.
#include "pool/average.cuh"
#include "pool/packed.cuh"
#include "pool/places.cuh"
#include "pool/runs.cuh"

// Axes are depth, height, width. All arrays have stride 1 along the channels. Strides count elements.
struct PatchPoolParams {
    const void* x;
    void* y;
    long long* indices;
    long long plane; // Indices per channel, or 0 to count within each plane
    int x_extent[3], y_extent[3], kernel[3], stride[3], dilation[3], pad[3]; // kernel: taps
    int x_batch, x_stride[3];
    int y_batch, y_stride[3];
    int indices_batch, indices_stride[3];
    int channels, tile_rows, tile_columns, x_rows; // outputs per patch; rows of x per slice in shared memory
    int whole;               // whether pixels of x are whole vectors of channels (if x is aligned)
    int lines_at, places_at; // offsets of these in shared memory, in bytes
    int step[2];             // distance of windows that share taps (pool/runs.cuh), down and along; 0: none
    Divider<int> channel_tiles, column_tiles, row_tiles, depths, depth_dilation, steps[2];
    // per patch: vectors, columns of x, pixels of a line, runs down, runs along
    Divider<int> vectors, x_columns, line, down, along;
};

struct AveragePatchPoolParams : PatchPoolParams { Counted<int, 3> counted; };

constexpr int kRun = 5; // windows per thread; an odd number of pixels, against bank conflicts

// One block's patch, and the pixels of x that it reads.
template <class T> struct Patch {
    int channel, channels, vectors; // first channel; number of channels and of vectors
    int depth, out_row, out_column;
    int slice, slices;              // of x: slice of the first tap; number of taps along depth
    int row, rows, column, columns; // of x: first row and column, and how many
    const T* x;
    T* y;
    long long* indices;
    long long number; // Index of element 0 of the first channel
};

// Whether channels can be accessed as whole, aligned vectors.
template <int VECTOR, class T> DEVICE bool in_vectors(const PatchPoolParams& p) {
    return p.whole && reinterpret_cast<unsigned long long>(p.x) % (VECTOR * sizeof(T)) == 0;
}

// Decodes the block's number.
template <int VECTOR, class T> DEVICE Patch<T> stand(const PatchPoolParams& p) {
    Patch<T> patch;
    int tile, row, column, depth;
    int above = p.channel_tiles.split(int(blockIdx.x), tile);
    above = p.row_tiles.split(p.column_tiles.split(above, column), row);
    const int image = p.depths.split(above, depth);
    patch.depth = depth;
    patch.channel = tile * int(p.vectors.divisor) * VECTOR;
    patch.channels = min(int(p.vectors.divisor) * VECTOR, p.channels - patch.channel);
    patch.vectors = (patch.channels + VECTOR - 1) / VECTOR;
    patch.out_row = row * p.tile_rows;
    patch.out_column = column * p.tile_columns;
    meet(p, 1, patch.out_row, min(p.tile_rows, p.y_extent[1] - patch.out_row), patch.row, patch.rows);
    meet(p, 2, patch.out_column, min(p.tile_columns, p.y_extent[2] - patch.out_column), patch.column, patch.columns);
    meet_slices(p, depth, patch.slice, patch.slices);
    patch.x = static_cast<const T*>(p.x) + image * p.x_batch + patch.slice * p.x_stride[0] + patch.row * p.x_stride[1]
            + patch.column * p.x_stride[2] + patch.channel;
    patch.y = static_cast<T*>(p.y) + image * p.y_batch + depth * p.y_stride[0] + patch.out_row * p.y_stride[1]
            + patch.out_column * p.y_stride[2] + patch.channel;
    patch.indices = p.indices + image * p.indices_batch + depth * p.indices_stride[0]
                  + patch.out_row * p.indices_stride[1] + patch.out_column * p.indices_stride[2] + patch.channel;
    patch.number = (image * p.channels + patch.channel) * p.plane;
    return patch;
}

// Copies the patch's pixels of x to shared memory.
template <int THREADS, int VECTOR, class Row, class T>
DEVICE void fetch(const PatchPoolParams& p, const Patch<T>& patch, T* shared) {
    const int items = patch.rows * int(p.x_columns.divisor * p.vectors.divisor);
#pragma unroll 1
    for (int slice = 0; slice < patch.slices; ++slice)
#pragma unroll 1
        for (int item = int(threadIdx.x); item < items; item += THREADS) {
            int vector, column, channel;
            const int row = p.x_columns.split(p.vectors.split(item, vector), column);
            if (column >= patch.columns || vector >= patch.vectors) continue;
            const Spread spread = spread_of<VECTOR>(in_vectors<VECTOR, T>(p), patch.channels, vector, channel);
            const T* source = patch.x + slice * p.dilation[0] * p.x_stride[0] + row * p.x_stride[1]
                            + column * p.x_stride[2] + channel;
            T* target = shared + (slice * p.x_rows * int(p.x_columns.divisor * p.vectors.divisor) + item) * VECTOR;
            if (spread.whole && sizeof(Row) == 16) {
                copy_async<16>(shared_address(target), source, 16);
            } else {
                Row elements;
                load_row(source, spread, elements);
                *reinterpret_cast<Row*>(target) = elements;
            }
        }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
}

// What threads reduce: vectors of values ...
template <class T> struct Values : Vector<T> {
    using Maxima = Columns<T>;

    static DEVICE Maxima from(const T* values, const int*, int i) {
        return Vector<T>::at(values + i * Maxima::kVector, 0);
    }
    static DEVICE void put(const Maxima& maxima, T* values, int*, int i) {
        *reinterpret_cast<uint4*>(values + i * Maxima::kVector) = maxima.row();
    }
};
// ... vectors of sums ...
template <class T, class Acc> struct Sums : Vector<T, ColumnSums<T, Acc>> {
    using Maxima = ColumnSums<T, Acc>;

    static DEVICE Maxima from(const Acc* values, const int*, int i) {
        Maxima sums;
#pragma unroll
        for (int j = 0; j < Maxima::kVector; ++j) sums.sums[j] = values[i * Maxima::kVector + j];
        return sums;
    }
    static DEVICE void put(const Maxima& sums, Acc* values, int*, int i) {
#pragma unroll
        for (int j = 0; j < Maxima::kVector; ++j) values[i * Maxima::kVector + j] = sums[j];
    }
};
// ... or pairs of values with their Indices ("places" within a channel).
template <class T> struct Pairs {
    using Maxima = Places<T>;

    static DEVICE Maxima none() { return {{nothing<T, true>(), nothing<T, true>()}}; }
    static DEVICE Maxima at(const T* elements, int place) { return {{{elements[0], place}, {elements[1], place}}}; }
    static DEVICE Maxima from(const T* values, const int* places, int i) {
        const int2 both = reinterpret_cast<const int2*>(places)[i];
        const auto pair = reinterpret_cast<const Neighbours<T, 2>*>(values)[i];
        return {{{pair[0], both.x}, {pair[1], both.y}}};
    }
    static DEVICE void put(const Maxima& maxima, T* values, int* places, int i) {
        reinterpret_cast<Neighbours<T, 2>*>(values)[i] = {{maxima.maxima[0].value, maxima.maxima[1].value}};
        reinterpret_cast<int2*>(places)[i] = make_int2(maxima.maxima[0].place, maxima.maxima[1].place);
    }
};

// Reduces a run of windows down a column, over all slices. `elements`: the column's pixel in the patch's first row.
template <class Of, class T>
DEVICE void take_column(const PatchPoolParams& p, const Patch<T>& patch, const T* elements, int column, int q, int step,
                        typename Of::Maxima (&windows)[kRun]) {
    const int stride = p.stride[1] * step, first = (patch.out_row + q) * p.stride[1] - p.pad[1] - patch.row;
    const int pitch = int(p.x_columns.divisor * p.vectors.divisor) * Of::Maxima::kVector;
    int place = (patch.slice * p.x_extent[1] + patch.row) * p.x_extent[2] + column;
#pragma unroll
    for (int i = 0; i < kRun; ++i) windows[i] = Of::none();
#pragma unroll 1
    for (int slice = 0; slice < patch.slices; ++slice) {
        const auto element = [&](int i, int tap) {
            const int row = first + i * stride + tap * p.dilation[1];
            return inside(row, patch.rows) ? Of::at(elements + row * pitch, place + row * p.x_extent[2]) : Of::none();
        };
        typename Of::Maxima found[kRun];
        if (p.step[0]) take_shared(p.kernel[1], element, Of::none(), found);
        else take_each(p.kernel[1], element, found);
#pragma unroll
        for (int i = 0; i < kRun; ++i) windows[i].merge(found[i]);
        elements += p.x_rows * pitch;
        place += p.dilation[0] * p.x_extent[1] * p.x_extent[2];
    }
}

// First pass: reduces all columns into lines.
template <int THREADS, class Of, class T, class Value>
DEVICE void take_columns(const PatchPoolParams& p, const Patch<T>& patch, const T* x, Value* values, int* places) {
    const int vectors = int(p.vectors.divisor), line = int(p.line.divisor);
    const int items = int(p.down.divisor) * line * vectors,
              start = patch.out_column * p.stride[2] - p.pad[2] - patch.column;
#pragma unroll 1
    for (int item = int(threadIdx.x); item < items; item += THREADS) {
        int vector, side, step;
        const int run = p.line.split(p.vectors.split(item, vector), side), column = start + side;
        const int q = window_of<kRun>(p, 0, run, step);
        if (vector >= patch.vectors) continue;
        typename Of::Maxima windows[kRun];
        if (inside(column, patch.columns)) {
            take_column<Of>(p, patch, x + (column * vectors + vector) * Of::Maxima::kVector, patch.column + column, q,
                            step, windows);
        } else {
#pragma unroll
            for (int i = 0; i < kRun; ++i) windows[i] = Of::none();
        }
#pragma unroll
        for (int i = 0; i < kRun; ++i)
            if (q + i * step < p.tile_rows)
                Of::put(windows[i], values, places, ((q + i * step) * line + side) * vectors + vector);
    }
    __syncthreads();
}

// Second pass: reduces along the lines. put(row, column, vector, result) receives each output, in coordinates of the
// patch.
template <int THREADS, class Of, class T, class Value, class Put>
DEVICE void take_rows(const PatchPoolParams& p, const Patch<T>& patch, const Value* values, const int* places,
                      const Put& put) {
    const int vectors = int(p.vectors.divisor), line = int(p.line.divisor),
              rows = min(p.tile_rows, p.y_extent[1] - patch.out_row);
    const int items = rows * int(p.along.divisor) * vectors,
              columns = min(p.tile_columns, p.y_extent[2] - patch.out_column);
#pragma unroll 1
    for (int item = int(threadIdx.x); item < items; item += THREADS) {
        int vector, run, step;
        const int row = p.along.split(p.vectors.split(item, vector), run), q = window_of<kRun>(p, 1, run, step);
        if (vector >= patch.vectors) continue;
        const int first = row * line + q * p.stride[2], stride = step * p.stride[2];
        const auto element = [&](int i, int tap) {
            return Of::from(values, places, (first + i * stride + tap * p.dilation[2]) * vectors + vector);
        };
        typename Of::Maxima windows[kRun];
        if (p.step[1]) take_shared(p.kernel[2], element, Of::none(), windows);
        else take_each(p.kernel[2], element, windows);
#pragma unroll
        for (int i = 0; i < kRun; ++i)
            if (const int column = q + i * step; column < columns) put(row, column, vector, windows[i]);
    }
}

// One block of MaxPool: copy, reduce down the columns, reduce along the lines, store.
template <class Of, class T> DEVICE void pool_patch(const PatchPoolParams& p, unsigned char* memory) {
    constexpr int kThreads = 128, kVector = Of::Maxima::kVector; // threads: the block size that the planner uses
    T *x = reinterpret_cast<T*>(memory), *values = reinterpret_cast<T*>(memory + p.lines_at);
    int* places = reinterpret_cast<int*>(memory + p.places_at);
    const Patch<T> patch = stand<kVector, T>(p);
    fetch<kThreads, kVector, typename Of::Maxima::Row>(p, patch, x);
    take_columns<kThreads, Of>(p, patch, x, values, places);
    take_rows<kThreads, Of>(
        p, patch, values, places, [&](int row, int column, int vector, const typename Of::Maxima& maxima) {
            int channel;
            const Spread spread = spread_of<kVector>(in_vectors<kVector, T>(p), patch.channels, vector, channel);
            write_maxima(maxima, spread, patch.y + row * p.y_stride[1] + column * p.y_stride[2] + channel,
                         patch.indices + row * p.indices_stride[1] + column * p.indices_stride[2] + channel,
                         patch.number + channel * p.plane, p.plane);
        });
}

template <class T, bool INDICES> DEVICE void max_pool_patches(const PatchPoolParams& p) {
    extern __shared__ __align__(16) unsigned char memory[];
    if constexpr (INDICES) pool_patch<Pairs<T>, T>(p, memory);
    else pool_patch<Values<T>, T>(p, memory);
}

// One block of AveragePool; the last step divides by the number of counted taps.
template <class T, class Acc> DEVICE void average_pool_patches(const AveragePatchPoolParams& p) {
    using Of = Sums<T, Acc>;
    constexpr int kThreads = 128, kVector = Of::Maxima::kVector; // threads: the block size that the planner uses
    extern __shared__ __align__(16) unsigned char memory[];
    T* x = reinterpret_cast<T*>(memory);
    Acc* values = reinterpret_cast<Acc*>(memory + p.lines_at);
    const Patch<T> patch = stand<kVector, T>(p);
    fetch<kThreads, kVector, typename Of::Maxima::Row>(p, patch, x);
    take_columns<kThreads, Of>(p, patch, x, values, static_cast<int*>(nullptr));
    const Acc slices = count(p.counted, 0, patch.depth * p.stride[0]);
    take_rows<kThreads, Of>(
        p, patch, values, static_cast<const int*>(nullptr),
        [&](int row, int column, int vector, const typename Of::Maxima& sums) {
            int channel;
            const Spread spread = spread_of<kVector>(in_vectors<kVector, T>(p), patch.channels, vector, channel);
            const Acc counts = slices * Acc(count(p.counted, 1, (patch.out_row + row) * p.stride[1]))
                             * Acc(count(p.counted, 2, (patch.out_column + column) * p.stride[2]));
            T averages[kVector];
#pragma unroll
            for (int i = 0; i < kVector; ++i) averages[i] = average<T>(sums[i], counts);
            write_row(patch.y + row * p.y_stride[1] + column * p.y_stride[2] + channel, spread, averages);
        });
}
