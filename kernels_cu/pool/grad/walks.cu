// The gradient of MaxPool, down the columns of x: windows are read once for all elements of a thread that they reach.
//
// A thread goes down COLUMNS neighbouring columns of x, from one row of windows to the next, `walk` times. It keeps the
// sums of the ROWS rows that those windows reach in registers: of each row of windows it loads what those have that
// meet its columns, up to ACROSS beside one another, gives it to the elements that their indices name, and writes the
// rows that no later windows reach. Windows that begin above the walk and reach into it come first. What a row of
// windows has is prefetched while the row above is dealt with. Lanes go along the rows of x or, where channels lie
// closest together, along the channels. Numbers of elements fit into 31 bits: an index is compared with those of a
// window's elements by its low word.
//
// An element's windows come in row-major order: no atomics, and the sums of the kernel that makes one element a thread.
// Where windows overlap in depth columns go along that, so that what is named depth here is the height; then ACROSS is
// any. No window is more than ROWS high, and none is dilated: another kernel makes those.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"
#include "base/vectors.cuh"
#include "pool/grad/columns.cuh"

// The largest numbers of windows beside one another that meet several columns, of such columns, and of rows.
constexpr int kMostWindows = 4, kMostColumns = 2, kMostRows = 13;

// Axes are depth, height and width. Strides count elements.
struct WalkPoolGradParams {
    const void* dy;
    const long long* indices;
    void* dx;
    unsigned numbers;      // of elements that indices can name; others name none
    int items;             // walks
    int walk, first, halo; // rows of windows: of a walk, where the first walk begins, above it those that reach into it
    int left;              // of several columns: the first window that can meet those of the first thread
    int rows, columns;     // of dx
    int vectors;           // every thread's columns are neighbours in memory, and begin with a vector if dx does
    int y_extent[3], pad[3], kernel[3];
    int dx_batch, dx_channel, dx_stride[3];
    int dy_batch, dy_channel, dy_stride[3];
    int indices_batch, indices_channel, indices_stride[3];
    int place_batch, place_channel, place_stride[3]; // of the elements' numbers
    // From the number of the first column's element in a window's first row to those that it can name, by columns and
    // rows: beyond all numbers where it reaches none. For one column there is one window.
    unsigned named[kMostWindows][kMostColumns][kMostRows];
    Divider<int> stride[3];                       // of windows
    Divider<int> channels, groups, walks, depths; // groups: of columns
    int channels_last;
};

// Where a thread is on its way down its columns: at a row of windows, and at the row of x where those begin.
template <class T> struct Walk {
    int row, end;         // from the first row that it makes
    int columns;          // that there are, to be written one by one; 0: all, as vectors
    int out_row, out_end; // of windows that there are: the row, and where they end
    int left, across;     // windows of a row that meet the columns: the first one from the pointers, how many there are
    int slices;           // such rows in depth
    unsigned place;       // the number of the first column's element
    const T* dy;
    const long long* indices;
    T* dx;
};

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

// What the windows of a row that meet the columns have; those that there are not name no element.
template <class T, int ACROSS> struct Windows {
    uint2 indices[ACROSS]; // low and high words
    T dy[ACROSS];
};

// Loads what COUNT windows beside one another have, if there is such a row. For one column there are `across` of them;
// for several the first one is window `left`, and a row has `across`.
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

// Windows with a stride of one begin one column after another.
template <int ROWS, int STRIDE, int COLUMNS> DEVICE constexpr bool can_reach(int window, int column) {
    return COLUMNS == 1 || STRIDE != 1 || (column <= window && window < column + ROWS);
}

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

// Writes a row of the columns.
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

// What the windows of a row give: up to ACROSS of one slice, loaded while the row above is dealt with, or any of
// several slices, loaded in parts.
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

// STRIDE is that of the windows' rows, of several columns also of theirs, or 0: any. ACROSS is 0 for any.
template <class T, class Acc, int ROWS, int STRIDE, int COLUMNS, int ACROSS>
DEVICE void max_pool_grad_walks(const WalkPoolGradParams& p) {
    constexpr int kThreads = 256; // as the plan launches it
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
