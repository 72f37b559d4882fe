// Gradient of MaxPool for large windows, without dilation: a scatter in shared memory. A thread looks at each window
// that reaches its box of elements once, instead of once per element.
//
// Thread: a box of box_slices x box_columns elements of one channel, walking down the rows, `walk` rows of windows. For
// every window that reaches the box, it loads the Index; if that names an element of the box, it adds the window's dy
// to the element's sum.
//
//     shared sums[row of the window][slice][column][thread]: a ring of as many rows as a window has
//
// Each thread has its own sums, interleaved with those of other threads: no bank conflicts, no atomics, no barriers. A
// row that no later window reaches is written, and its place is reused. Windows that begin above the walk and reach
// into it are processed first (the halo). Lanes run along the rows of x, or along the channels in channels-last layout.
// Bound by the instructions per window, or by memory.
//
// Rows are those of the outermost axis; for 3-D windows, rows are depth and slices are height. So windows are added in
// row-major order, with the same result as pool/grad/general.cu. Indices must count elements in that order, too.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"
#include "base/vectors.cuh"
#include "pool/grad/columns.cuh"

// Axes are slices, rows, columns. Strides count elements.
struct ScatterPoolGradParams {
    const void* dy;
    const long long* indices;
    void* dx;
    int items; // number of walks
    // rows of windows: per walk, first row of the first walk, rows above a walk that reach into it
    int walk, first, halo;
    int extent[3];               // extents of dx
    int box_slices, box_columns; // elements per thread in a row of x
    int vectors;                 // boxes are whole vectors of columns, contiguous and aligned in dx (if dx is)
    int y_extent[3], pad[3], kernel[3];
    int dx_batch, dx_channel, dx_stride[3];
    int dy_batch, dy_channel, dy_stride[3];
    int indices_batch, indices_channel, indices_stride[3];
    int place_batch, place_channel, place_stride[3]; // Index distances
    // range of Indices that a window can name, from that of the box's first element in the window's first row on
    unsigned reached;
    Divider<int> by_row, by_slice; // divide by the Index distance between rows, between slices
    // shared memory of a block's sums: between slices, between rows, and in all
    unsigned slice_bytes, row_bytes, bytes;
    Divider<int> stride[3];                       // of windows
    Divider<int> channels, groups, walks, depths; // groups: of columns; depths: of slices
    int channels_last;                            // walks are numbered with channels fastest
};

// The windows along an axis that reach a box: number, first one, and its beginning relative to the box's first element.
struct ReachingBox { int count, first, begin; };

DEVICE ReachingBox reaching_box(const ScatterPoolGradParams& p, int axis, int at, int elements) {
    const int first = reaching(p, axis, at).first;
    const int end = reaching(p, axis, min(at + elements, p.extent[axis]) - 1).end;
    return {end - first, first, first * int(p.stride[axis].divisor) - p.pad[axis] - at};
}

// The state of a walk: a row of windows, and the row of x where it begins.
template <class T> struct Walk {
    int row, end;            // rows of x, relative to the first one that this thread computes
    int slices, columns;     // of the box, as far as they exist
    int out_row;             // row of windows
    ReachingBox down, along; // windows along slices and along columns
    unsigned place;          // Index of the box's first element in the current row
    unsigned sums, top;      // shared-memory address of the thread's sums; offset of the current row in them
    const T* dy;
    const long long* indices;
    T* dx;
};

// Decodes a walk's number. `stride`: that of the rows of windows.
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

// Adds what one slice of the current row of windows contributes. `slice_begin`: the windows' first slice, relative to
// the box.
//
// An Index that names an element elsewhere in x has another row, slice or column, which is outside of the window or of
// the box, so it is ignored.
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
                // rows wrap around: the smaller of the two unsigned numbers is valid
                const unsigned below = walk.top + row * p.row_bytes;
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

// Takes the sums of the top row out of the ring, COUNT columns at a time, stores the wanted ones to dx, and clears
// them.
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

// The kernel: one walk per thread.
template <class T, class Acc> DEVICE void max_pool_grad_scatter(const ScatterPoolGradParams& p) {
    constexpr int kThreads = 64, kVector = 16 / sizeof(Acc); // threads: the block size that the planner uses
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
