// Gradient of AveragePool, down the columns of x, for windows without dilation: a gather without atomics. A thread
// walks down a column and reads each window once for all of its elements.
//
// Thread: one column of x, `walk` rows of windows. From each row of windows it adds up those that cover its column. An
// element of x is the sum of the at most REACHING rows of windows that cover it, which stay in registers. Windows that
// begin above the walk and reach into it are processed first (the halo).
//
//     row of windows i -> total[0];  totals shift down by one;  dx[row] = sum of the totals that cover it / taps
//
// Lanes run along the rows of x, or along the channels in channels-last layout. If at most ACROSS windows of a single
// slice cover a column, the next row of windows is prefetched; ACROSS = 0 takes any number of windows and slices.
//
// For common window sizes (average_pool_grad_strips), a thread has four adjacent columns: each window is loaded and
// divided once for all of them. Which columns a window covers is known at compile time. Bound by memory.
//
// Windows are added in row-major order, row by row, so results are deterministic. If all windows count the same number
// of taps, the sum is divided once; otherwise each window is divided.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "pool/average.cuh"
#include "pool/grad/columns.cuh"

// Axes are depth, height, width. Strides count elements.
struct AverageWalkParams {
    const void* dy;
    void* dx;
    double counts; // taps of every window; 0 if they differ
    int items;     // number of walks
    // rows of windows: per walk, first row of the first walk, rows above a walk that reach into it
    int walk, first, halo;
    // strips: first window that can cover the first thread's columns; whether LATE is STRIDE - 1 (below)
    int left, late;
    int rows, columns; // of dx
    int vectors;       // every thread's columns are contiguous and aligned in dx (if dx is)
    int y_extent[3], pad[3], kernel[3];
    int dx_batch, dx_channel, dx_stride[3];
    int dy_batch, dy_channel, dy_stride[3];
    Divider<int> stride[3]; // of windows; a single window along the height has all that it covers as stride
    Divider<int> channels, groups, walks, depths; // groups: of columns
    Counted<int, 3> counted;
    int channels_last; // walks are numbered with channels fastest
};

// ---------------------------------------------------------------- one column

// One thread with one column of x. REACHING: most rows of windows that cover an element.
template <class T, class Acc, int REACHING, int ACROSS> struct AverageWalk {
    static constexpr int kPart = ACROSS > 0 ? ACROSS : 4; // windows loaded at once

    const AverageWalkParams& p;
    const bool constant;
    WindowRange slices, across; // windows that cover the column, along depth and width
    int out_row, row;           // row of windows to load next; row of x where the current one begins
    const T* dy;                // first window of `across` in that row, in slice 0
    T* dx;                      // the column, at row 0
    Acc widths[kPart];          // counted taps along the width, per window of `across`, if these are few and differ
    T next[kPart];
    Acc totals[REACHING]; // sums of the last rows of windows, the current one first

    // Positions the thread at the beginning of its walk.
    DEVICE AverageWalk(const AverageWalkParams& p, int item) : p(p), constant(p.counts > 0) {
        const WalkPlace at = place_of(p, item);
        slices = reaching(p, 0, at.depth);
        across = reaching(p, 2, at.group);
        out_row = at.begin - p.halo;
        row = at.begin * int(p.stride[1].divisor) - p.pad[1];
        dx = static_cast<T*>(p.dx)
           + (at.image * p.dx_batch + at.channel * p.dx_channel + at.depth * p.dx_stride[0]
              + at.group * p.dx_stride[2]);
        dy = static_cast<const T*>(p.dy) + static_cast<long long>(out_row) * p.dy_stride[1]
           + (at.image * p.dy_batch + at.channel * p.dy_channel + across.first * p.dy_stride[2]);
        if (ACROSS > 0 && !constant) {
#pragma unroll
            for (int i = 0; i < kPart; ++i) widths[i] = counts(2, across.first + i);
        }
        clear(totals);
    }
    // Whether the next row of windows exists.
    DEVICE bool there() const { return inside(out_row, p.y_extent[1]) && slices.first < slices.end; }
    // Loads kPart adjacent windows, those that exist.
    DEVICE void load(T (&windows)[kPart], const T* from, int first, bool there) const {
#pragma unroll
        for (int i = 0; i < kPart; ++i)
            if (there && first + i < across.end) windows[i] = from[i * p.dy_stride[2]];
    }
    // Counted taps of a window along an axis.
    DEVICE Acc counts(int axis, int window) const {
        return Acc(count(p.counted, axis, window * int(p.stride[axis].divisor)));
    }
    // Adds the loaded windows to the column's total. `counted`: taps along depth and height.
    DEVICE void add(Acc& total, const T (&windows)[kPart], int first, Acc counted) const {
#pragma unroll
        for (int i = 0; i < kPart; ++i) {
            if (first + i >= across.end) continue;
            const Acc value = widen(windows[i]);
            total += constant ? value : value / (counted * (ACROSS > 0 ? widths[i] : counts(2, first + i)));
        }
    }
    // Counted taps along depth and height of the windows to add.
    DEVICE Acc counts_of(int slice) const { return constant ? Acc(1) : counts(0, slice) * counts(1, out_row); }
    DEVICE void prefetch() {
        if constexpr (ACROSS > 0) load(next, dy + slices.first * p.dy_stride[0], across.first, there());
    }
    // Makes the next row of windows the current one.
    DEVICE void step_down() {
        Acc total = 0;
        if constexpr (ACROSS > 0) {
            T windows[kPart];
#pragma unroll
            for (int i = 0; i < kPart; ++i) windows[i] = next[i];
            const bool found = there();
            const Acc counted = found ? counts_of(slices.first) : Acc(1);
            ++out_row;
            dy += p.dy_stride[1];
            prefetch();
            if (found) add(total, windows, across.first, counted);
        } else {
            if (there())
                for (int slice = slices.first; slice < slices.end; ++slice) {
                    const Acc counted = counts_of(slice);
                    const T* from = dy + slice * p.dy_stride[0];
                    for (int first = across.first; first < across.end; first += kPart) {
                        T windows[kPart];
                        load(windows, from, first, true);
                        add(total, windows, first, counted);
                        from += kPart * p.dy_stride[2];
                    }
                }
            ++out_row;
            dy += p.dy_stride[1];
        }
#pragma unroll
        for (int i = REACHING - 1; i > 0; --i) totals[i] = totals[i - 1];
        // If each element is covered by one row of windows only, divides once for all elements.
        totals[0] = REACHING == 1 && constant ? total / Acc(p.counts) : total;
    }
    // Writes the rows of x from the current row of windows to the next one.
    DEVICE void write() {
        const int stride = int(p.stride[1].divisor);
#pragma unroll 1
        for (int i = 0; i < stride; ++i) {
            if (!inside(row + i, p.rows)) continue;
            Acc sum = 0;
#pragma unroll
            for (int j = REACHING - 1; j >= 0; --j)
                if (i + j * stride < p.kernel[1]) sum += totals[j];
            dx[static_cast<long long>(row + i) * p.dx_stride[1]] =
                REACHING > 1 && constant ? average<T>(sum, Acc(p.counts)) : narrow<T>(sum);
        }
        row += stride;
    }
    // Processes the halo, then the walk.
    DEVICE void run() {
        prefetch();
        if constexpr (REACHING > 1)
            for (int i = 0; i < p.halo; ++i) step_down();
        for (int i = 0; i < p.walk; ++i) {
            step_down();
            write();
        }
    }
};

// Kernel: one column of x per thread.
template <class T, class Acc, int REACHING, int ACROSS>
DEVICE void average_pool_grad_walks(const AverageWalkParams& p) {
    constexpr int kThreads = 256; // the block size that the planner uses
    const int item = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (item >= p.items) return;
    AverageWalk<T, Acc, REACHING, ACROSS> walk(p, item);
    walk.run();
}

// ---------------------------------------------------------------- several columns

// Windows are KERNEL wide, and STRIDE apart along height and width.
template <class T, class Acc, int REACHING, int KERNEL, int STRIDE> struct AverageStrip {
    static constexpr int kColumns = 4, kWindows = (kColumns + KERNEL - 2) / STRIDE + 1;

    const AverageWalkParams& p;
    const bool constant;
    WindowRange slices;
    int left, out_row, row; // first window of a row that may cover the columns; the others as above
    int columns;            // columns to write one by one; 0: all four, as vectors
    const T* dy;            // window `left`
    T* dx;
    unsigned exist; // bit mask of the windows that exist
    Acc widths[kWindows];
    Acc totals[REACHING][kColumns];

    // Positions the thread at the beginning of its walk.
    DEVICE AverageStrip(const AverageWalkParams& p, int item) : p(p), constant(p.counts > 0) {
        const WalkPlace at = place_of(p, item);
        const int column = at.group * kColumns;
        slices = reaching(p, 0, at.depth);
        left = p.left + at.group * (kColumns / STRIDE);
        out_row = at.begin - p.halo;
        row = at.begin * STRIDE - p.pad[1];
        columns = columns_from<kColumns, T>(p, column);
        keep(columns);
        dx = static_cast<T*>(p.dx) + static_cast<long long>(row) * p.dx_stride[1]
           + (at.image * p.dx_batch + at.channel * p.dx_channel + at.depth * p.dx_stride[0] + column * p.dx_stride[2]);
        dy = static_cast<const T*>(p.dy) + static_cast<long long>(out_row) * p.dy_stride[1]
           + static_cast<long long>(left) * p.dy_stride[2] + (at.image * p.dy_batch + at.channel * p.dy_channel);
        exist = 0;
#pragma unroll
        for (int i = 0; i < kWindows; ++i) {
            const bool exists = inside(left + i, p.y_extent[2]);
            exist |= unsigned(exists) << i;
            widths[i] = exists && !constant ? counts(2, left + i) : Acc(1);
        }
#pragma unroll
        for (int i = 0; i < REACHING; ++i) clear(totals[i]);
    }
    DEVICE Acc counts(int axis, int window) const { return Acc(count(p.counted, axis, window * STRIDE)); }
    // Whether a window covers a column. The first window ends at the first column, or LATE columns after it.
    template <int LATE> static DEVICE constexpr bool reaches(int window, int column) {
        const int first = window * STRIDE + LATE - (KERNEL - 1);
        return first <= column && column < first + KERNEL;
    }
    // Loads the windows of one slice once, and adds each to the columns that it covers.
    template <int LATE> DEVICE void add(Acc (&total)[kColumns], const T* from, Acc counted) const {
        T windows[kWindows];
#pragma unroll
        for (int i = 0; i < kWindows; ++i) windows[i] = exist >> i & 1 ? from[i * p.dy_stride[2]] : T(0.f);
#pragma unroll
        for (int i = 0; i < kWindows; ++i) {
            const Acc value = constant ? widen(windows[i]) : widen(windows[i]) / (counted * widths[i]);
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
                if (reaches<LATE>(i, j)) total[j] += value;
        }
    }
    // Makes the next row of windows the current one.
    template <int LATE> DEVICE void step_down() {
        Acc total[kColumns] = {};
        if (inside(out_row, p.y_extent[1])) {
            const Acc tall = constant ? Acc(1) : counts(1, out_row);
#pragma unroll 1
            for (int slice = slices.first; slice < slices.end; ++slice) {
                const Acc counted =
                    constant ? Acc(1) : Acc(count(p.counted, 0, slice * int(p.stride[0].divisor))) * tall;
                add<LATE>(total, dy + slice * p.dy_stride[0], counted);
            }
        }
        ++out_row;
        dy += p.dy_stride[1];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
            for (int i = REACHING - 1; i > 0; --i) totals[i][j] = totals[i - 1][j];
            totals[0][j] = total[j];
        }
    }
    // Writes the rows of x from the current row of windows to the next one.
    DEVICE void write() {
#pragma unroll
        for (int i = 0; i < STRIDE; ++i) {
            if (inside(row + i, p.rows)) {
                Acc sums[kColumns] = {};
#pragma unroll
                for (int j = REACHING - 1; j >= 0; --j)
                    if (i + j * STRIDE < p.kernel[1]) {
#pragma unroll
                        for (int k = 0; k < kColumns; ++k) sums[k] += totals[j][k];
                    }
                if (constant) {
#pragma unroll
                    for (int k = 0; k < kColumns; ++k) sums[k] /= Acc(p.counts);
                }
                if (columns == 0) store_narrowed(dx, sums);
                else {
#pragma unroll
                    for (int k = 0; k < kColumns; ++k)
                        if (k < columns) dx[k * p.dx_stride[2]] = narrow<T>(sums[k]);
                }
            }
            dx += p.dx_stride[1];
        }
        row += STRIDE;
    }
    // Processes the halo, then the walk.
    template <int LATE> DEVICE void run() {
#pragma unroll 1
        for (int i = 0; i < p.halo; ++i) step_down<LATE>();
#pragma unroll 1
        for (int i = 0; i < p.walk; ++i) {
            step_down<LATE>();
            write();
        }
    }
};

// Kernel: four adjacent columns of x per thread.
template <class T, class Acc, int REACHING, int KERNEL, int STRIDE>
DEVICE void average_pool_grad_strips(const AverageWalkParams& p) {
    constexpr int kThreads = 256; // the block size that the planner uses
    const int item = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (item >= p.items) return;
    AverageStrip<T, Acc, REACHING, KERNEL, STRIDE> strip(p, item);
    if (STRIDE > 1 && p.late) strip.template run<STRIDE - 1>();
    else strip.template run<0>();
}
