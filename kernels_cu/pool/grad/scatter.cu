// The gradient of MaxPool, for large windows above all: each is looked at once by a thread that it reaches, not once by
// an element.
//
// A thread has a box of elements of a channel, some columns of some slices, and goes down its rows, from one row of
// windows to the next, `walk` times. Of each window that reaches the box it loads the index; if that names an element
// of both, the window's dy is added to the element's sum. Sums of as many rows as a window has are in shared memory:
// the thread's own, beside those of other threads, so that lanes never meet in a bank and nobody waits. A row that no
// later windows reach is written, and makes room for another one. Windows that begin above the walk and reach into it
// come first. Lanes go along the rows of x or, where channels lie closest together, along the channels.
//
// Rows are those of the outermost axis, slices those of the height where there is a depth: so an element's windows come
// in row-major order, and sums are those of the kernel that makes one element a thread. Elements are numbered in that
// order, too. No window is dilated: another kernel makes those.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"
#include "base/vectors.cuh"
#include "pool/grad/columns.cuh"

// Axes are slices, rows and columns. Strides count elements.
struct ScatterPoolGradParams {
    const void* dy;
    const long long* indices;
    void* dx;
    int items;             // walks
    int walk, first, halo; // rows of windows: of a walk, where the first walk begins, above it those that reach into it
    int extent[3];         // of dx
    int box_slices, box_columns;
    int vectors; // boxes have whole vectors of columns, which are neighbours in memory, and begin with one if dx does
    int y_extent[3], pad[3], kernel[3];
    int dx_batch, dx_channel, dx_stride[3];
    int dy_batch, dy_channel, dy_stride[3];
    int indices_batch, indices_channel, indices_stride[3];
    int place_batch, place_channel, place_stride[3]; // of the elements' numbers
    unsigned reached;                                // numbers from the first one of a window's first row on
    Divider<int> by_row, by_slice;                   // numbers from one to the next
    unsigned slice_bytes, row_bytes, bytes;          // of the sums of a block: from one to the next, and of all rows
    Divider<int> stride[3];                          // of windows
    Divider<int> channels, groups, walks, depths;    // groups: of columns; depths: of slices
    int channels_last;
};

// The windows of an axis that reach a box: how many, the first one, and where that begins from the box's first element.
struct ReachingBox { int count, first, begin; };

DEVICE ReachingBox reaching_box(const ScatterPoolGradParams& p, int axis, int at, int elements) {
    const int first = reaching(p, axis, at).first;
    const int end = reaching(p, axis, min(at + elements, p.extent[axis]) - 1).end;
    return {end - first, first, first * int(p.stride[axis].divisor) - p.pad[axis] - at};
}

// Where a thread is on its way down: at a row of windows, and at the row of x where those begin.
template <class T> struct Walk {
    int row, end;            // from the first row that it makes
    int slices, columns;     // of the box, as far as there are any
    int out_row;             // of windows
    ReachingBox down, along; // slices and columns of windows
    unsigned place;          // the number of the box's first element in the row
    unsigned sums, top;      // the thread's in shared memory; from there on those of the row
    const T* dy;
    const long long* indices;
    T* dx;
};

template <class T> DEVICE Walk<T> stand(const ScatterPoolGradParams& p, int item, int stride) {
    Walk<T> walk;
    const WalkPlace at = place_of(p, item);
    const int slice = at.depth * p.box_slices, column = at.group * p.box_columns;
    walk.down = reaching_box(p, 0, slice, p.box_slices);
    walk.along = reaching_box(p, 2, column, p.box_columns);
    walk.slices = min(p.box_slices, p.extent[0] - slice);
    walk.columns = min(p.box_columns, p.extent[2] - column);
    walk.out_row = at.begin - p.halo;
    const int row = walk.out_row * stride - p.pad[1], first = max(at.begin * stride - p.pad[1], 0);
    walk.row = row - first;
    walk.end = min((at.begin + p.walk) * stride - p.pad[1], p.extent[1]) - first;
    walk.place = at.image * p.place_batch + at.channel * p.place_channel + slice * p.place_stride[0]
               + row * p.place_stride[1] + column * p.place_stride[2];
    walk.dx = static_cast<T*>(p.dx) + static_cast<long long>(row) * p.dx_stride[1]
            + (at.image * p.dx_batch + at.channel * p.dx_channel + slice * p.dx_stride[0] + column * p.dx_stride[2]);
    walk.dy = static_cast<const T*>(p.dy) + static_cast<long long>(walk.out_row) * p.dy_stride[1]
            + (at.image * p.dy_batch + at.channel * p.dy_channel + walk.down.first * p.dy_stride[0]
               + walk.along.first * p.dy_stride[2]);
    walk.indices = p.indices + static_cast<long long>(walk.out_row) * p.indices_stride[1]
                 + (at.image * p.indices_batch + at.channel * p.indices_channel + walk.down.first * p.indices_stride[0]
                    + walk.along.first * p.indices_stride[2]);
    return walk;
}

// Adds what the windows of a slice of the current row give; their slices begin at one of the box. They are loaded in
// parts.
//
// Numbers that lie elsewhere in x have other rows, slices or columns, none of which is both in the window and written.
template <class T, class Acc, int THREADS>
DEVICE void scatter(const ScatterPoolGradParams& p, const Walk<T>& walk, const long long* indices, const T* dy,
                    int slice_begin) {
    constexpr int kPart = 4;
    int begin = walk.along.begin;
#pragma unroll 1
    for (int left = walk.along.count; left > 0; left -= kPart) {
        uint2 named[kPart]; // low and high words
        T given[kPart];
#pragma unroll
        for (int i = 0; i < kPart; ++i) {
            named[i].y = 1;
            if (i < left) {
                named[i] = *reinterpret_cast<const uint2*>(indices);
                given[i] = *dy;
            }
            indices += p.indices_stride[2];
            dy += p.dy_stride[2];
        }
#pragma unroll
        for (int i = 0; i < kPart; ++i) {
            const unsigned from_first = named[i].x - walk.place;
            int of_row, column;
            const int row = p.by_row.split(int(from_first), of_row), slice = p.by_slice.split(of_row, column);
            const bool of_window = (named[i].y == 0) & (from_first < p.reached)
                                 & inside(slice - slice_begin, p.kernel[0]) & inside(column - begin, p.kernel[2]);
            if (of_window & (slice < p.box_slices) & (column < p.box_columns)) {
                const unsigned below = walk.top + row * p.row_bytes; // or as many rows above
                const unsigned sum = walk.sums + column * int(THREADS * sizeof(Acc)) + slice * p.slice_bytes
                                   + min(below, below - p.bytes);
                Acc value;
                load_shared(sum, value);
                store_shared(sum, value + widen(given[i]));
            }
            begin += int(p.stride[2].divisor);
        }
    }
}

// Takes the sums of the top row, COUNT columns at a time, and writes those that are wanted; others begin in their
// place.
template <int COUNT, int THREADS, class Acc, class T>
DEVICE void write_row(const ScatterPoolGradParams& p, const Walk<T>& walk, bool wanted) {
    T* of_slice = walk.dx;
    unsigned sum_of_slice = walk.sums + walk.top;
#pragma unroll 1
    for (int slice = 0; slice < p.box_slices; ++slice) {
        T* dx = of_slice;
        unsigned sum = sum_of_slice;
#pragma unroll 1
        for (int column = 0; column < p.box_columns; column += COUNT) {
            Acc values[COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                load_shared(sum, values[i]);
                store_shared(sum, Acc(0));
                sum += THREADS * sizeof(Acc);
            }
            if (wanted & (slice < walk.slices) & (column < walk.columns)) store_narrowed(dx, values);
            dx += COUNT * p.dx_stride[2];
        }
        of_slice += p.dx_stride[0];
        sum_of_slice += p.slice_bytes;
    }
}

template <class T, class Acc> DEVICE void max_pool_grad_scatter(const ScatterPoolGradParams& p) {
    constexpr int kThreads = 64, kVector = 16 / sizeof(Acc); // threads as the plan launches them
    extern __shared__ __align__(16) unsigned char shared[];
    const int item = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (item >= p.items) return;
    const int stride = int(p.stride[1].divisor);
    const bool vectors = p.vectors && reinterpret_cast<unsigned long long>(p.dx) % (kVector * sizeof(T)) == 0;
    Walk<T> walk = stand<T>(p, item, stride);
    walk.sums = shared_address(shared) + threadIdx.x * sizeof(Acc);
    walk.top = 0;
    for (unsigned sum = 0; sum < p.bytes; sum += kThreads * sizeof(Acc)) store_shared(walk.sums + sum, Acc(0));
#pragma unroll 1
    while (walk.row < walk.end) {
        if (inside(walk.out_row, p.y_extent[1])) {
            const long long* indices = walk.indices;
            const T* dy = walk.dy;
            int slice_begin = walk.down.begin;
#pragma unroll 1
            for (int slice = 0; slice < walk.down.count; ++slice) {
                scatter<T, Acc, kThreads>(p, walk, indices, dy, slice_begin);
                indices += p.indices_stride[0];
                dy += p.dy_stride[0];
                slice_begin += int(p.stride[0].divisor);
            }
        }
#pragma unroll 1
        for (int i = 0; i < stride; ++i) {
            const bool wanted = inside(walk.row + i, walk.end);
            if (vectors) write_row<kVector, kThreads, Acc>(p, walk, wanted);
            else write_row<1, kThreads, Acc>(p, walk, wanted);
            walk.top = walk.top + p.row_bytes < p.bytes ? walk.top + p.row_bytes : 0;
            walk.dx += p.dx_stride[1];
        }
        ++walk.out_row;
        walk.indices += p.indices_stride[1];
        walk.dy += p.dy_stride[1];
        walk.row += stride;
        walk.place += stride * p.place_stride[1];
    }
}
