// MaxPool with windows of any size one element apart, over planes that shared memory holds whole.
//
// A block makes `tile_planes` planes. It copies them to shared memory, takes the maxima down the columns, then along the
// rows of what that gave, and writes. A thread takes kRun neighbouring windows of a line at once: the elements that all
// of them share once, and those before and after these in growing parts (van Herk's algorithm on kRun windows), so that a
// window of any size costs few comparisons and few accesses. Lanes stand side by side down the columns, and below one
// another along the rows, whose pitches keep them from each other's banks. With Indices, of equal elements that with the
// lower number stays, whatever the order. No window is empty.
#include "geometry.cuh"
#include "order.cuh"
#include "staging.cuh"

// Axes are height and width; along the width all arrays have a stride of 1. Strides and pitches count elements.
struct PlanePoolParams {
    const void* x;
    void* y;
    long long* indices;
    long long plane;               // elements of x per channel
    int planes, tile_planes, x_extent[2], y_extent[2], kernel[2], pad[2];
    int x_batch, x_channel, x_stride;
    int y_batch, y_channel, y_stride;
    int indices_batch, indices_channel, indices_stride;
    int merged;                    // planes lie one after another, and their rows too
    int pitch, place_pitch;        // of the maxima down the columns, and of their places
    int result_pitch, result_place_pitch;
    int columns_at, places_at, result_places_at;          // bytes of shared memory before these; results replace x
    Divider<int> channels, x_width, y_width, y_height, runs, tile_lines;  // runs of a column; lines of y in a tile
};

constexpr int kRun = 4;

// The maxima of kRun windows of `kernel` elements side by side; element(i) is the i-th from the first window's on.
template <class T, bool INDICES, class Element>
__device__ __forceinline__ void take_run(int kernel, const Element& element, Maximum<T, int, INDICES> (&windows)[kRun])
{
    if (kernel < kRun - 1) {       // one element or two
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
            windows[i] = element(i);
            if (kernel == 2) windows[i].merge(element(i + 1));
        }
        return;
    }
    Maximum<T, int, INDICES> shared = nothing<T, INDICES>(), after = shared;
#pragma unroll 1
    for (int i = kRun - 1; i < kernel; ++i) shared.merge(element(i));
    windows[kRun - 1] = shared;
#pragma unroll
    for (int i = kRun - 2; i >= 0; --i) {
        windows[i] = windows[i + 1];
        windows[i].merge(element(i));
    }
#pragma unroll
    for (int i = 1; i < kRun; ++i) {
        after.merge(element(kernel + i - 1));
        windows[i].merge(after);
    }
}

// Maxima in shared memory: values and, with Indices, the places of their elements.
template <class T, bool INDICES> struct Lines {
    T* values;
    int* places;
    int pitch, place_pitch;

    __device__ __forceinline__ Maximum<T, int, INDICES> at(int line, int i) const
    {
        return {values[line * pitch + i], INDICES ? places[line * place_pitch + i] : 0};
    }
    __device__ __forceinline__ void put(int line, int i, const Maximum<T, int, INDICES>& maximum) const
    {
        values[line * pitch + i] = maximum.value;
        if constexpr (INDICES) places[line * place_pitch + i] = maximum.place;
    }
};

// The planes of a block, and where they are in shared memory, row after row.
template <class T> struct Tile {
    int plane, planes;
    const T* x;
    T* shared;
};

// Copies planes that lie one after another, as their rows do, as one run; one that does not, element by element.
template <int THREADS, class T>
__device__ __forceinline__ void fetch(const PlanePoolParams& p, Tile<T>& tile)
{
    const int width = p.x_extent[1], elements = tile.planes * p.x_extent[0] * width;
    if (p.merged) {
        copy_run(tile.shared, tile.x, elements, int(threadIdx.x), THREADS);
        copy_async_commit();
        copy_async_wait<0>();
        tile.shared += phase_of(tile.x);
    } else {
#pragma unroll 1
        for (int i = int(threadIdx.x); i < elements; i += THREADS) {
            int column;
            const int row = p.x_width.split(i, column);
            tile.shared[i] = tile.x[row * p.x_stride + column];
        }
    }
    __syncthreads();
}

template <int THREADS, class T, bool INDICES>
__device__ __forceinline__ void take_columns(const PlanePoolParams& p, const Tile<T>& tile, const Lines<T, INDICES>& lines)
{
    const int items = tile.planes * int(p.runs.divisor * p.x_width.divisor);
#pragma unroll 1
    for (int item = int(threadIdx.x); item < items; item += THREADS) {
        int column, run;
        const int plane = p.runs.split(p.x_width.split(item, column), run), q = run * kRun;
        const T* elements = tile.shared + plane * p.x_extent[0] * p.x_extent[1];
        const auto element = [&](int i) -> Maximum<T, int, INDICES> {
            const int row = q - p.pad[0] + i, place = row * p.x_extent[1] + column;
            if (!inside(row, p.x_extent[0])) return nothing<T, INDICES>();
            return {elements[place], place};
        };
        Maximum<T, int, INDICES> windows[kRun];
        take_run(p.kernel[0], element, windows);
#pragma unroll
        for (int i = 0; i < kRun; ++i)
            if (q + i < p.y_extent[0]) lines.put(plane * p.y_extent[0] + q + i, column, windows[i]);
    }
    __syncthreads();
}

template <int THREADS, class T, bool INDICES>
__device__ __forceinline__ void take_rows(const PlanePoolParams& p, const Tile<T>& tile, const Lines<T, INDICES>& lines,
                                          const Lines<T, INDICES>& results)
{
    const int all = int(p.tile_lines.divisor), items = (p.y_extent[1] + kRun - 1) / kRun * all;
#pragma unroll 1
    for (int item = int(threadIdx.x); item < items; item += THREADS) {
        int line;
        const int q = p.tile_lines.split(item, line) * kRun;
        if (line >= tile.planes * p.y_extent[0]) continue;
        const auto element = [&](int i) -> Maximum<T, int, INDICES> {
            const int column = q - p.pad[1] + i;
            return inside(column, p.x_extent[1]) ? lines.at(line, column) : nothing<T, INDICES>();
        };
        Maximum<T, int, INDICES> windows[kRun];
        take_run(p.kernel[1], element, windows);
#pragma unroll
        for (int i = 0; i < kRun; ++i)
            if (q + i < p.y_extent[1]) results.put(line, q + i, windows[i]);
    }
    __syncthreads();
}

template <int THREADS, class T, bool INDICES>
__device__ __forceinline__ void write(const PlanePoolParams& p, const Tile<T>& tile, const Lines<T, INDICES>& results)
{
    const int items = tile.planes * p.y_extent[0] * p.y_extent[1];
#pragma unroll 1
    for (int item = int(threadIdx.x); item < items; item += THREADS) {
        int column, row, channel;
        const int line = p.y_width.split(item, column), plane = tile.plane + p.y_height.split(line, row);
        const int image = p.channels.split(plane, channel);
        const Maximum<T, int, INDICES> maximum = results.at(line, column);
        static_cast<T*>(p.y)[image * p.y_batch + channel * p.y_channel + row * p.y_stride + column] = maximum.value;
        if constexpr (INDICES)
            p.indices[image * p.indices_batch + channel * p.indices_channel + row * p.indices_stride + column] =
                plane * p.plane + maximum.place;
    }
}

template <class T, bool INDICES> __device__ __forceinline__ void max_pool_planes(const PlanePoolParams& p)
{
    constexpr int kThreads = 256;  // as the plan launches it
    extern __shared__ __align__(16) unsigned char memory[];
    const auto lines_at = [&](int values, int places, int pitch, int place_pitch) -> Lines<T, INDICES> {
        return {reinterpret_cast<T*>(memory + values), reinterpret_cast<int*>(memory + places), pitch, place_pitch};
    };
    // 1. The planes.
    Tile<T> tile;
    tile.plane = int(blockIdx.x) * p.tile_planes;
    tile.planes = min(p.tile_planes, p.planes - tile.plane);
    int channel;
    const int image = p.channels.split(tile.plane, channel);
    tile.x = static_cast<const T*>(p.x) + image * p.x_batch + channel * p.x_channel;
    tile.shared = reinterpret_cast<T*>(memory);
    fetch<kThreads>(p, tile);

    // 2. Maxima down the columns, then along the rows; those take the place of the planes.
    const Lines<T, INDICES> lines = lines_at(p.columns_at, p.places_at, p.pitch, p.place_pitch);
    const Lines<T, INDICES> results = lines_at(0, p.result_places_at, p.result_pitch, p.result_place_pitch);
    take_columns<kThreads>(p, tile, lines);
    take_rows<kThreads>(p, tile, lines, results);

    // 3. The elements, and their numbers in the whole tensor.
    write<kThreads>(p, tile, results);
}
