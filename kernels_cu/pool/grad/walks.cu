// Gradient of MaxPool, down the columns of x, for windows of up to 13 rows without dilation: a gather without atomics.
// A thread walks down columns and reads each window once for all of its elements that the window covers.
//
// Thread: COLUMNS adjacent columns of x, `walk` rows of windows. Sums of the ROWS rows that a window covers stay in
// registers.
//
//     for each row of windows:  load Index and dy of up to ACROSS windows that cover the columns (next row prefetched)
//         compare each Index with the numbers of the covered elements; add dy to the element that it names
//         write the rows of x that no later window covers; shift the sums up
//
// Windows that begin above the walk and reach into it are processed first (the halo). Lanes run along the rows of x, or
// along the channels in channels-last layout. Elements' numbers fit into 31 bits, so Indices are compared by their low
// words. Bound by memory, or by comparisons for large windows.
//
// Windows are added in row-major order, with the same result as pool/grad/general.cu. If windows overlap in depth,
// columns run along the depth; then "depth" below means the height, and ACROSS is 0 (any).
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"
#include "base/vectors.cuh"
#include "pool/grad/columns.cuh"

// Most windows of a row that cover several columns, most such columns, most rows of a window.
constexpr int kMostWindows = 4, kMostColumns = 2, kMostRows = 13;

// Axes are depth, height, width. Strides count elements.
struct WalkPoolGradParams {
    const void* dy;
    const long long* indices;
    void* dx;
    unsigned numbers; // Indices below this name elements; others name none
    int items;        // number of walks
    // rows of windows: per walk, first row of the first walk, rows above a walk that reach into it
    int walk, first, halo;
    int left;          // several columns: first window that can cover the first thread's
    int rows, columns; // of dx
    int vectors;       // every thread's columns are contiguous and aligned in dx (if dx is)
    int y_extent[3], pad[3], kernel[3];
    int dx_batch, dx_channel, dx_stride[3];
    int dy_batch, dy_channel, dy_stride[3];
    int indices_batch, indices_channel, indices_stride[3];
    int place_batch, place_channel, place_stride[3]; // Index distances
    // named[window][column][row]: Index of that element of the columns, relative to the first column's element in the
    // window's first row; larger than any Index if the window does not cover it. For one column, there is one entry for
    // all windows.
    unsigned named[kMostWindows][kMostColumns][kMostRows];
    Divider<int> stride[3];                       // of windows
    Divider<int> channels, groups, walks, depths; // groups: of columns
    int channels_last;                            // walks are numbered with channels fastest
};

// The state of a walk: a row of windows, and the row of x where it begins.
template <class T> struct Walk {
    int row, end;         // rows of x, relative to the first one that this thread computes
    int columns;          // columns to write one by one; 0: all, as vectors
    int out_row, out_end; // row of windows; first one that does not exist
    int left, across;     // windows of a row that cover the columns: first one, and number
    int slices;           // slices of windows that cover them
    unsigned place;       // Index of the first column's element in the current row
    const T* dy;
    const long long* indices;
    T* dx;
};

// Decodes a walk's number. `stride`: that of the rows of windows.
template <int COLUMNS, class T> DEVICE Walk<T> stand(const WalkPoolGradParams& p, int item, int stride) {
    Walk<T> walk;
    const WalkPlace at = place_of(p, item);
    const int column = at.group * COLUMNS, first = max(at.begin * stride - p.pad[1], 0);
    const WindowRange slices = reaching(p, 0, at.depth);
    walk.slices = slices.end - slices.first;
    if constexpr (COLUMNS == 1) {
        const WindowRange across = reaching(p, 2, column);
        walk.left = across.first;
        walk.across = across.end - across.first;
    } else {
        walk.left = p.left + at.group * (COLUMNS / stride);
        walk.across = p.y_extent[2];
    }
    walk.columns = columns_from<COLUMNS, T>(p, column);
    keep(walk.columns);
    walk.out_row = at.begin - p.halo;
    walk.out_end = walk.slices > 0 ? p.y_extent[1] : 0;
    const int row = walk.out_row * stride - p.pad[1];
    walk.row = row - first;
    walk.end = min((at.begin + p.walk) * stride - p.pad[1], p.rows) - first;
    walk.place = at.image * p.place_batch + at.channel * p.place_channel + at.depth * p.place_stride[0]
               + row * p.place_stride[1] + column * p.place_stride[2];
    walk.dx = static_cast<T*>(p.dx) + static_cast<long long>(row) * p.dx_stride[1]
            + (at.image * p.dx_batch + at.channel * p.dx_channel + at.depth * p.dx_stride[0] + column * p.dx_stride[2]);
    walk.dy = static_cast<const T*>(p.dy) + static_cast<long long>(walk.out_row) * p.dy_stride[1]
            + static_cast<long long>(walk.left) * p.dy_stride[2]
            + (at.image * p.dy_batch + at.channel * p.dy_channel + slices.first * p.dy_stride[0]);
    walk.indices = p.indices + static_cast<long long>(walk.out_row) * p.indices_stride[1]
                 + static_cast<long long>(walk.left) * p.indices_stride[2]
                 + (at.image * p.indices_batch + at.channel * p.indices_channel + slices.first * p.indices_stride[0]);
    return walk;
}

// Index and dy of the windows of a row that cover the columns. Windows that do not exist name no element.
template <class T, int ACROSS> struct Windows {
    uint2 indices[ACROSS]; // low and high words
    T dy[ACROSS];
};

// Loads COUNT adjacent windows, if the row exists. For one column, `across` of them exist; for several, the first one
// is window `left`, and a row has `across`.
template <int COLUMNS, int COUNT, class T>
DEVICE Windows<T, COUNT> load(const WalkPoolGradParams& p, const long long* indices, const T* dy, bool there, int left,
                              int across) {
    Windows<T, COUNT> windows;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        windows.indices[i].y = 1;
        if (there && (COLUMNS == 1 ? i < across : inside(left + i, across))) {
            windows.indices[i] = *reinterpret_cast<const uint2*>(indices + i * p.indices_stride[2]);
            windows.dy[i] = dy[i * p.dy_stride[2]];
        }
    }
    return windows;
}

template <class T> DEVICE void step_down(const WalkPoolGradParams& p, Walk<T>& walk) {
    ++walk.out_row;
    walk.indices += p.indices_stride[1];
    walk.dy += p.dy_stride[1];
}

// Whether a window can cover a column. With stride 1, successive windows begin at successive columns.
template <int ROWS, int STRIDE, int COLUMNS> DEVICE constexpr bool can_reach(int window, int column) {
    return COLUMNS == 1 || STRIDE != 1 || (column <= window && window < column + ROWS);
}

// Adds dy of each window to the sum of the element that its Index names.
template <int STRIDE, class T, int ACROSS, class Acc, int ROWS, int COLUMNS>
DEVICE void give(const WalkPoolGradParams& p, const Windows<T, ACROSS>& windows, unsigned place,
                 Acc (&sums)[ROWS][COLUMNS]) {
#pragma unroll
    for (int i = 0; i < ACROSS; ++i) {
        const uint2 index = windows.indices[i];
        const bool known = index.y == 0 && index.x < p.numbers;
        const unsigned from_first = index.x - place;
        const Acc gradient = widen(windows.dy[i]);
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
#pragma unroll
            for (int column = 0; column < COLUMNS; ++column)
                if (can_reach<ROWS, STRIDE, COLUMNS>(i, column) && known
                    && from_first == p.named[COLUMNS == 1 ? 0 : i][column][row])
                    sums[row][column] += gradient;
    }
}

// Writes one row of the columns.
template <class T, class Acc, int COLUMNS>
DEVICE void write(const WalkPoolGradParams& p, const Walk<T>& walk, const Acc (&sums)[COLUMNS]) {
    if (COLUMNS > 1 && walk.columns == 0) {
        store_narrowed(walk.dx, sums);
        return;
    }
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column)
        if (COLUMNS == 1 || column < walk.columns) walk.dx[column * p.dx_stride[2]] = narrow<T>(sums[column]);
}

// A source of rows of windows: up to ACROSS windows of one slice, prefetched; or (ACROSS = 0) any number of windows and
// slices, loaded in parts.
template <class T, int ROWS, int STRIDE, int COLUMNS, int ACROSS> struct Source {
    Windows<T, ACROSS> next;

    DEVICE void begin(const WalkPoolGradParams& p, Walk<T>& walk) {
        const bool there = inside(walk.out_row, walk.out_end);
        next = load<COLUMNS, ACROSS>(p, walk.indices, walk.dy, there, walk.left, walk.across);
        step_down(p, walk);
    }
    template <class Acc> DEVICE void give_row(const WalkPoolGradParams& p, Walk<T>& walk, Acc (&sums)[ROWS][COLUMNS]) {
        const Windows<T, ACROSS> windows = next;
        begin(p, walk);
        give<STRIDE>(p, windows, walk.place, sums);
    }
};
// ACROSS = 0: windows are not prefetched, but loaded kPart at a time, slice by slice.
template <class T, int ROWS, int STRIDE> struct Source<T, ROWS, STRIDE, 1, 0> {
    DEVICE void begin(const WalkPoolGradParams&, Walk<T>&) {}
    template <class Acc> DEVICE void give_row(const WalkPoolGradParams& p, Walk<T>& walk, Acc (&sums)[ROWS][1]) {
        constexpr int kPart = ROWS > 5 ? 4 : 2;
        const long long* indices = walk.indices;
        const T* dy = walk.dy;
        const int slices = inside(walk.out_row, walk.out_end) ? walk.slices : 0;
#pragma unroll 1
        for (int slice = 0; slice < slices; ++slice) {
            const long long* of_part = indices;
            const T* dy_of_part = dy;
#pragma unroll 1
            for (int across = walk.across; across > 0; across -= kPart) {
                give<STRIDE>(p, load<1, kPart>(p, of_part, dy_of_part, true, 0, across), walk.place, sums);
                of_part += kPart * p.indices_stride[2];
                dy_of_part += kPart * p.dy_stride[2];
            }
            indices += p.indices_stride[0];
            dy += p.dy_stride[0];
        }
        step_down(p, walk);
    }
};

// STRIDE: of the windows along H (several columns: also along W); 0: any. ACROSS: most windows of a row; 0: any number.
template <class T, class Acc, int ROWS, int STRIDE, int COLUMNS, int ACROSS>
DEVICE void max_pool_grad_walks(const WalkPoolGradParams& p) {
    constexpr int kThreads = 256; // the block size that the planner uses
    const int item = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (item >= p.items) return;
    const int stride = STRIDE > 0 ? STRIDE : int(p.stride[1].divisor);
    Walk<T> walk = stand<COLUMNS, T>(p, item, stride);
    Source<T, ROWS, STRIDE, COLUMNS, ACROSS> source;
    source.begin(p, walk);
    Acc sums[ROWS][COLUMNS] = {};
#pragma unroll(ACROSS > 0 ? 2 : 1)
    while (walk.row < walk.end) {
        source.give_row(p, walk, sums);
#pragma unroll(STRIDE > 0 ? STRIDE : 1)
        for (int i = 0; i < stride; ++i) {
            if (inside(walk.row + i, walk.end)) write(p, walk, sums[0]);
            walk.dx += p.dx_stride[1];
#pragma unroll
            for (int column = 0; column < COLUMNS; ++column) {
#pragma unroll
                for (int row = 0; row + 1 < ROWS; ++row) sums[row][column] = sums[row + 1][column];
                sums[ROWS - 1][column] = 0;
            }
        }
        walk.row += stride;
        walk.place += stride * p.place_stride[1];
    }
}
