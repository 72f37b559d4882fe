// MaxPool and AveragePool over contiguous rows (NCHW) for large windows, with any stride and dilation: separable, in
// shared memory. Each window is reduced down the columns first, then along the rows.
//
// Block: tile_rows x tile_columns outputs of one slice, or several whole planes. Thread: kRun windows of a column or
// line at a time.
//
//     global x --cp.async, 16 bytes--> shared rows --down the columns--> shared lines
//     shared lines --along the lines--> shared results (in the place of x) --16-byte stores--> global y
//
// The first pass covers all slices of a window. If windows of a run share all taps but one, common taps are reduced
// once, the remaining ones as prefixes and suffixes (van Herk, pool/runs.cuh), so large windows cost few comparisons.
// Bound by instructions and shared memory, or by global memory for small windows.
//
// Bank conflicts: down the columns, lanes have adjacent columns. Along the lines, lanes are kRun windows apart, an odd
// number of banks. For strides above 1, a line stores the first columns of all windows contiguously, then their second
// columns, and so on; line pitches continue the sequence of banks. Lines include the padding as neutral elements, so
// taps along a line need no predicates.
//
// With Indices, of equal elements the lower number wins. Lines of sums have the accumulator's type; each element is
// added once per window, and none is subtracted. No window may be empty.
#include "base/geometry.cuh"
#include "pool/average.cuh"
#include "pool/packed.cuh"
#include "pool/runs.cuh"
#include "pool/staging.cuh"

// Axes are depth, height, width. All arrays have stride 1 along the width. Strides and pitches count elements.
struct TilePoolParams {
    const void* x;
    void* y;
    long long* indices;
    long long plane; // Indices per channel, or 0 to count within each plane
    int planes, x_extent[3], y_extent[3], kernel[3], stride[3], dilation[3], pad[3]; // kernel: taps
    int x_batch, x_channel, x_stride[2];
    int y_batch, y_channel, y_stride[2];
    int indices_batch, indices_channel, indices_stride[2];
    int tile_planes, tile_rows, x_rows; // planes per block; rows of outputs, and of x, per plane
    int vectors;                        // rows of x are whole vectors (if x is aligned)
    // whether the tile's rows, over all its planes, are one contiguous run per slice: in x; in y and the Indices
    int merged, results_merged;
    int slice_pitch, row_pitch;   // of x in shared memory, where elements keep their offset from a multiple of 16 bytes
    int pitch, place_pitch, part; // of the lines; columns of a line that windows begin with
    int result_pitch, result_place_pitch; // of the results, which keep their offset in y
    int step[2]; // distance between windows of a run, down and along, if they share all taps but one; else 0
    int lines_at, places_at, result_places_at;              // offsets in shared memory, in bytes; results replace x
    Divider<int> channels, depths, row_tiles, column_tiles; // tiles along each axis
    Divider<int> tile_columns, outputs;                     // outputs per line; outputs per plane of y
    Divider<int> depth_dilation, column_stride, steps[2];   // steps: interleaved runs
    Divider<int> line, line_vectors, down,
        along; // columns of x per line, vectors of them; runs per column, per line
};

struct AverageTilePoolParams : TilePoolParams {
    Counted<int, 3> counted;
    Divider<int> lines; // lines per plane of the tile
};

// Windows per run: an odd number of 4-byte words (one for bytes, three for 16 bits) or of elements (five, for others),
// so that lanes do not conflict.
template <class T, bool INDICES> constexpr int kRun = INDICES || sizeof(T) >= 4 ? 5 : sizeof(T) == 2 ? 6 : 4;

// One block's tile, and the rows of x that it reads.
template <class T> struct Tile {
    int plane, planes, depth; // first plane, number of planes
    int out_row, out_column, out_rows, out_columns;
    int slice, slices;              // of x: slice of the first tap; number of taps along depth
    int row, rows, column, columns; // of x: first row and column, and how many
    const T* x;
    int phase; // offset of x from a multiple of 16 bytes, in elements
};

// Decodes the block's number, and finds the rows of x that its tile needs.
template <class T> DEVICE Tile<T> stand(const TilePoolParams& p) {
    Tile<T> tile;
    int tile_row, tile_column, channel;
    const int above = p.column_tiles.split(int(blockIdx.x), tile_column);
    tile.plane = p.depths.split(p.row_tiles.split(above, tile_row), tile.depth) * p.tile_planes;
    tile.planes = min(p.tile_planes, p.planes - tile.plane);
    tile.out_row = tile_row * p.tile_rows;
    tile.out_column = tile_column * int(p.tile_columns.divisor);
    tile.out_rows = min(p.tile_rows, p.y_extent[1] - tile.out_row);
    tile.out_columns = min(int(p.tile_columns.divisor), p.y_extent[2] - tile.out_column);
    meet(p, 1, tile.out_row, tile.out_rows, tile.row, tile.rows);
    meet(p, 2, tile.out_column, tile.out_columns, tile.column, tile.columns);
    if (p.merged) { // whole rows; of several planes, all rows
        tile.column = 0;
        tile.columns = p.x_extent[2];
        if (p.tile_planes > 1) tile.row = 0, tile.rows = p.x_extent[1];
    } else if (p.vectors) { // whole vectors
        constexpr int kVector = 16 / int(sizeof(T));
        const int end = min(tile.column + tile.columns + kVector - 1 & -kVector, p.x_extent[2]);
        tile.column &= -kVector;
        tile.columns = end - tile.column;
    }
    meet_slices(p, tile.depth, tile.slice, tile.slices);
    const int image = p.channels.split(tile.plane, channel);
    tile.x = static_cast<const T*>(p.x) + image * p.x_batch + channel * p.x_channel + tile.slice * p.x_stride[0]
           + tile.row * p.x_stride[1] + tile.column;
    tile.phase = phase_of(tile.x);
    return tile;
}

// Copies the tile's rows of x to shared memory.
template <int THREADS, class T> DEVICE void fetch(const TilePoolParams& p, const Tile<T>& tile, T* shared) {
#pragma unroll 1
    for (int slice = 0; slice < tile.slices; ++slice) {
        T* target = shared + slice * p.slice_pitch;
        const T* source = tile.x + slice * p.dilation[0] * p.x_stride[0];
        if (p.merged) {
            copy_run(target, source, tile.planes * tile.rows * tile.columns, int(threadIdx.x), THREADS);
            continue;
        }
#pragma unroll 1
        for (int row = int(threadIdx.x) / 32; row < tile.rows; row += THREADS / 32)
            copy_run(target + row * p.row_pitch, source + row * p.x_stride[1], tile.columns, int(threadIdx.x) % 32, 32);
    }
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
}

// Lines or results in shared memory: maxima and, with Indices, the numbers of their elements ("places").
template <class T, bool INDICES> struct Lines {
    using Taken = Maximum<T, int, INDICES>;
    using Values = Columns<T>;
    static constexpr int kWindows = kRun<T, INDICES>;
    T* values;
    int* places;

    static DEVICE Taken nothing() { return ::nothing<T, INDICES>(); }

    DEVICE Maximum<T, int, INDICES> at(int value, int place) const {
        return {values[value], INDICES ? places[place] : 0};
    }
    DEVICE void put(int value, int place, const Maximum<T, int, INDICES>& maximum) const {
        values[value] = maximum.value;
        if constexpr (INDICES) places[place] = maximum.place;
    }
};

// Lines of sums in shared memory.
template <class T, class Acc> struct SumLines {
    using Taken = Sum<T, Acc>;
    using Values = ColumnSums<T, Acc>;
    static constexpr int kWindows = 5; // accumulators have the size of a word, like float
    Acc* values;

    static DEVICE Taken nothing() { return {0}; }
    DEVICE Taken at(int value, int) const { return {values[value]}; }
    DEVICE void put(int value, int, const Taken& sum) const { values[value] = sum.value; }
};

// A run of windows down a column: first row, counted from the tile's first one; rows between its windows.
struct Down { int first, stride; };

// What a run down the columns reduces: single elements with their numbers; or 16 bytes of a row (Vector,
// pool/packed.cuh).
template <class Lines> struct One {
    using Maxima = typename Lines::Taken;

    static DEVICE Maxima none() { return Lines::nothing(); }
    template <class T> static DEVICE Maxima at(const T* element, int place) { return Maxima::of(*element, place); }
};

// Reduces a run of windows in one slice. `elements`: the column, from the tile's first row on. ALL: all taps are in
// bounds.
template <bool ALL, class Of, int RUN, class T>
DEVICE void take_slice(const TilePoolParams& p, const Tile<T>& tile, const T* elements, int place, const Down& down,
                       typename Of::Maxima (&windows)[RUN]) {
    const int apart = p.dilation[1] * p.row_pitch, places_apart = p.dilation[1] * p.x_extent[2];
    int elements_at[RUN], places_at[RUN];
#pragma unroll
    for (int i = 0; i < RUN; ++i) {
        elements_at[i] = (down.first + i * down.stride) * p.row_pitch;
        places_at[i] = place + (down.first + i * down.stride) * p.x_extent[2];
    }
    const auto element = [&](int i, int tap) {
        if (!ALL && !inside(down.first + i * down.stride + tap * p.dilation[1], tile.rows)) return Of::none();
        return Of::at(elements + elements_at[i] + tap * apart, places_at[i] + tap * places_apart);
    };
    if (p.step[0]) take_shared(p.kernel[1], element, Of::none(), windows);
    else take_each(p.kernel[1], element, windows);
}

// The same over all slices.
template <bool ALL, class Of, int RUN, class T>
DEVICE void take_slices(const TilePoolParams& p, const Tile<T>& tile, const T* elements, int column, const Down& down,
                        typename Of::Maxima (&windows)[RUN]) {
    int place = (tile.slice * p.x_extent[1] + tile.row) * p.x_extent[2] + column;
    take_slice<ALL, Of>(p, tile, elements, place, down, windows);
#pragma unroll 1
    for (int slice = 1; slice < tile.slices; ++slice) {
        elements += p.slice_pitch;
        place += p.dilation[0] * p.x_extent[1] * p.x_extent[2];
        typename Of::Maxima found[RUN];
        take_slice<ALL, Of>(p, tile, elements, place, down, found);
#pragma unroll
        for (int i = 0; i < RUN; ++i) windows[i].merge(found[i]);
    }
}

// Reduces all runs down the columns, WIDE columns at a time. Each run is passed to put(line, step, lines, position,
// results): the line of its first window; lines between its windows; lines that exist from there on; its position in
// the line. `first`: the first position's column, counted from the tile's.
template <int THREADS, int WIDE, class Of, int RUN, class T, class Put>
DEVICE void take_down(const TilePoolParams& p, const Tile<T>& tile, const T* x, const Divider<int>& sides, int first,
                      const Put& put) {
    const int items = tile.planes * int(p.down.divisor * sides.divisor);
#pragma unroll 1
    for (int item = int(threadIdx.x); item < items; item += THREADS) {
        int side, run, step;
        const int plane = p.down.split(sides.split(item, side), run), column = first + side * WIDE;
        const int q = window_of<RUN>(p, 0, run, step);
        const Down down{(tile.out_row + q) * p.stride[1] - p.pad[1] - tile.row, p.stride[1] * step};
        const T* elements = x + plane * p.x_rows * p.row_pitch + column;
        typename Of::Maxima windows[RUN];
        if (!inside(column, tile.columns)) {
#pragma unroll
            for (int i = 0; i < RUN; ++i) windows[i] = Of::none();
        } else if (down.first >= 0
                   && down.first + (RUN - 1) * down.stride + (p.kernel[1] - 1) * p.dilation[1] < tile.rows) {
            take_slices<true, Of>(p, tile, elements, tile.column + column, down, windows);
        } else {
            take_slices<false, Of>(p, tile, elements, tile.column + column, down, windows);
        }
        put(plane * p.tile_rows + q, step, p.tile_rows - q, side * WIDE, windows);
    }
}

// Position in a line of its column number `column`, sorted for the stride (see above).
DEVICE int position_of(const TilePoolParams& p, int column) {
    int after;
    const int among = p.column_stride.split(column, after);
    return after * p.part + among;
}

// First pass, element by element.
template <int THREADS, class T, class Lines>
DEVICE void take_columns(const TilePoolParams& p, const Tile<T>& tile, const T* x, const Lines& lines) {
    constexpr int kWindows = Lines::kWindows;
    const int first = tile.out_column * p.stride[2] - p.pad[2] - tile.column;
    using Maxima = typename Lines::Taken;
    take_down<THREADS, 1, One<Lines>, kWindows>(
        p, tile, x, p.line, first, [&](int line, int step, int count, int side, const Maxima(&windows)[kWindows]) {
            const int place = position_of(p, side);
#pragma unroll
            for (int i = 0; i < kWindows; ++i)
                if (i * step < count)
                    lines.put((line + i * step) * p.pitch + place, (line + i * step) * p.place_pitch + place,
                              windows[i]);
        });
}

// Stores the results of adjacent columns as 16-byte vectors.
template <class T> DEVICE void write_columns(T* target, const Columns<T>& maxima) {
    *reinterpret_cast<uint4*>(target) = maxima.row();
}
// The same for sums.
template <class T, class Acc> DEVICE void write_columns(Acc* target, const ColumnSums<T, Acc>& sums) {
    constexpr int kEach = 16 / int(sizeof(Acc));
#pragma unroll
    for (int first = 0; first < ColumnSums<T, Acc>::kVector; first += kEach) {
        Elements<Acc, kEach> elements;
#pragma unroll
        for (int i = 0; i < kEach; ++i) elements.values[i] = sums[first + i];
        *reinterpret_cast<Elements<Acc, kEach>*>(target + first) = elements;
    }
}

// First pass, 16 bytes of a row at once, for rows of whole vectors. Lines begin up to one vector before the first
// window.
template <int THREADS, class Lines, class T, class Value>
DEVICE void take_vectors(const TilePoolParams& p, const Tile<T>& tile, const T* x, int lead, Value* lines) {
    using Values = typename Lines::Values;
    constexpr int kWindows = Lines::kWindows, kVector = Values::kVector;
    const int first = tile.out_column * p.stride[2] - p.pad[2] - tile.column - lead;
    take_down<THREADS, kVector, Vector<T, Values>, kWindows>(
        p, tile, x, p.line_vectors, first,
        [&](int line, int step, int count, int side, const Values(&windows)[kWindows]) {
            int places[kVector];
#pragma unroll
            for (int j = 0; j < kVector; ++j) places[j] = p.stride[2] == 1 ? side + j : position_of(p, side + j);
#pragma unroll
            for (int i = 0; i < kWindows; ++i) {
                if (i * step >= count) continue;
                Value* target = lines + (line + i * step) * p.pitch;
                if (p.stride[2] == 1) {
                    write_columns(target + side, windows[i]);
                    continue;
                }
#pragma unroll
                for (int j = 0; j < kVector; ++j) target[places[j]] = windows[i][j];
            }
        });
}

// Second pass: reduces along the lines. put(line, column, result) receives each output.
template <int THREADS, class T, class Lines, class Put>
DEVICE void take_rows(const TilePoolParams& p, const Tile<T>& tile, int lead, const Lines& lines, const Put& put) {
    constexpr int kWindows = Lines::kWindows;
    const int items = tile.planes * p.tile_rows * int(p.along.divisor);
#pragma unroll 1
    for (int item = int(threadIdx.x); item < items; item += THREADS) {
        int run, step;
        const int line = p.along.split(item, run), q = window_of<kWindows>(p, 1, run, step);
        const int values = line * p.pitch + q, places = line * p.place_pitch + q;
        typename Lines::Taken windows[kWindows];
        if (p.step[1]) {
            const int begin = position_of(p, lead);
            const auto element = [&](int, int tap) {
                return lines.at(values + begin + tap * step, places + begin + tap * step);
            };
            take_shared(p.kernel[2], element, Lines::nothing(), windows);
        } else {
            const auto element = [&](int i, int tap) {
                const int among = position_of(p, tap * p.dilation[2] + lead) + i;
                return lines.at(values + among, places + among);
            };
            take_each(p.kernel[2], element, windows);
        }
#pragma unroll
        for (int i = 0; i < kWindows; ++i) {
            const int column = q + i * step;
            if (column < tile.out_columns) put(line, column, windows[i]);
        }
    }
}

// Stores the Indices of a run of results.
DEVICE void write_numbers(long long* target, const int* places, int count, long long first, int member, int members) {
#pragma unroll 1
    for (int i = member; i < count; i += members) target[i] = first + places[i];
}

// Stores the tile's results from shared memory.
template <int THREADS, class T, bool INDICES>
DEVICE void write(const TilePoolParams& p, const Tile<T>& tile, T* y, long long* indices,
                  const Lines<T, INDICES>& results) {
    const int thread = int(threadIdx.x), lane = thread % 32;
    if (p.results_merged) {
        const int count = tile.planes * tile.out_rows * tile.out_columns;
        store_run(y, results.values, count, thread, THREADS);
        if (!INDICES) return;
        if (tile.planes == 1) {
            write_numbers(indices, results.places, count, tile.plane * p.plane, thread, THREADS);
            return;
        }
#pragma unroll 1
        for (int i = thread; i < count; i += THREADS)
            indices[i] = (tile.plane + p.outputs.quotient(i)) * p.plane + results.places[i];
        return;
    }
#pragma unroll 1
    for (int row = thread / 32; row < tile.out_rows; row += THREADS / 32) {
        store_run(y + row * p.y_stride[1], results.values + row * p.result_pitch, tile.out_columns, lane, 32);
        if constexpr (INDICES)
            write_numbers(indices + row * p.indices_stride[1], results.places + row * p.result_place_pitch,
                          tile.out_columns, tile.plane * p.plane, lane, 32);
    }
}

// Runs the first pass. Returns how many columns of a line come before the first window's first column.
template <int THREADS, bool VECTORS, class T, class Lines>
DEVICE int take_all_columns(const TilePoolParams& p, const Tile<T>& tile, const T* x, const Lines& lines) {
    const int start = tile.out_column * p.stride[2] - p.pad[2] - tile.column;
    int lead = 0;
    if (VECTORS && p.vectors && tile.phase == 0) {
        if constexpr (VECTORS) {
            lead = start & Lines::Values::kVector - 1;
            take_vectors<THREADS, Lines>(p, tile, x, lead, lines.values);
        }
    } else {
        take_columns<THREADS>(p, tile, x + tile.phase, lines);
    }
    return lead;
}

// The tile's first output in y.
template <class T> DEVICE T* results_of(const TilePoolParams& p, const Tile<T>& tile, int& channel, int& image) {
    image = p.channels.split(tile.plane, channel);
    return static_cast<T*>(p.y) + image * p.y_batch + channel * p.y_channel + tile.depth * p.y_stride[0]
         + tile.out_row * p.y_stride[1] + tile.out_column;
}

// The kernel of MaxPool.
template <class T, bool INDICES> DEVICE void max_pool_tiles(const TilePoolParams& p) {
    constexpr int kThreads = 128; // the block size that the planner uses
    extern __shared__ __align__(16) unsigned char memory[];
    T* x = reinterpret_cast<T*>(memory);
    // 1. Loads the rows of x.
    const Tile<T> tile = stand<T>(p);
    fetch<kThreads>(p, tile, x + tile.phase);

    // 2. Reduces down the columns, then along the lines; the results replace x in shared memory.
    const Lines<T, INDICES> lines{reinterpret_cast<T*>(memory + p.lines_at),
                                  reinterpret_cast<int*>(memory + p.places_at)};
    const int lead = take_all_columns<kThreads, !INDICES>(p, tile, x, lines);
    __syncthreads();
    int channel, image;
    T* y = results_of(p, tile, channel, image);
    const Lines<T, INDICES> results{x + phase_of(y), reinterpret_cast<int*>(memory + p.result_places_at)};
    take_rows<kThreads>(p, tile, lead, lines, [&](int line, int column, const Maximum<T, int, INDICES>& maximum) {
        results.put(line * p.result_pitch + column, line * p.result_place_pitch + column, maximum);
    });
    __syncthreads();

    // 3. Stores maxima and Indices.
    long long* indices = p.indices + image * p.indices_batch + channel * p.indices_channel
                       + tile.depth * p.indices_stride[0] + tile.out_row * p.indices_stride[1] + tile.out_column;
    write<kThreads>(p, tile, y, indices, results);
}

// The kernel of AveragePool: as MaxPool's, and the second pass divides by the number of counted taps.
template <class T, class Acc> DEVICE void average_pool_tiles(const AverageTilePoolParams& p) {
    constexpr int kThreads = 128; // the block size that the planner uses
    extern __shared__ __align__(16) unsigned char memory[];
    T* x = reinterpret_cast<T*>(memory);
    const Tile<T> tile = stand<T>(p);
    fetch<kThreads>(p, tile, x + tile.phase);
    const SumLines<T, Acc> lines{reinterpret_cast<Acc*>(memory + p.lines_at)};
    const int lead = take_all_columns<kThreads, true>(p, tile, x, lines);
    __syncthreads();
    int channel, image;
    T* y = results_of(p, tile, channel, image);
    const Lines<T, false> results{x + phase_of(y), nullptr};
    const Acc slices = count(p.counted, 0, tile.depth * p.stride[0]);
    take_rows<kThreads>(p, tile, lead, lines, [&](int line, int column, const Sum<T, Acc>& sum) {
        int row;
        p.lines.split(line, row);
        const Acc counts = slices * Acc(count(p.counted, 1, (tile.out_row + row) * p.stride[1]))
                         * Acc(count(p.counted, 2, (tile.out_column + column) * p.stride[2]));
        results.values[line * p.result_pitch + column] = average<T>(sum.value, counts);
    });
    __syncthreads();
    write<kThreads>(p, tile, y, static_cast<long long*>(nullptr), results);
}
