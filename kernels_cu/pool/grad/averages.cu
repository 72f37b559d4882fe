// The gradient of AveragePool, down the columns of x: windows are read once for all of a thread's elements.
//
// A thread goes down one column of x, from one row of windows to the next, `walk` times. Of each row it adds up the
// windows that reach its column; an element is the sum of the REACHING rows of windows, or fewer, that reach it. Those
// that begin above the walk and reach into it come first. Lanes go along the rows of x or, where channels lie closest
// together, along the channels. What a row of windows has is prefetched while the row above is dealt with, if up to
// ACROSS windows of one slice reach a column; ACROSS is 0 for any number of windows and slices.
//
// Windows of the usual sizes have kernels of their own, whose threads go down four neighbouring columns: each window is
// loaded, and divided, once for all that it reaches. Which columns a window reaches is known when they are compiled.
//
// An element's windows come in row-major order, row by row: no atomics, and the same order always. Where as many taps
// count in every window the sum is divided, else what each window has. None is dilated: another kernel makes those.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "pool/average.cuh"
#include "pool/grad/columns.cuh"

// Axes are depth, height and width. Strides count elements.
struct AverageWalkParams {
    const void* dy;
    void* dx;
    double counts;         // taps of every window; 0 where not as many count in each
    int items;             // walks
    int walk, first, halo; // rows of windows: of a walk, where the first walk begins, above it those that reach into it
    int left, late;        // of several columns: the first window that can reach the first thread's; LATE, below
    int rows, columns;     // of dx
    int vectors;           // every thread's columns are neighbours in memory, and begin with a vector if dx does
    int y_extent[3], pad[3], kernel[3];
    int dx_batch, dx_channel, dx_stride[3];
    int dy_batch, dy_channel, dy_stride[3];
    Divider<int> stride[3];                       // of windows; of the height's single one all that it covers
    Divider<int> channels, groups, walks, depths; // groups: of columns
    Counted<int, 3> counted;
    int channels_last;
};

// ---------------------------------------------------------------- one column

template <class T, class Acc, int REACHING, int ACROSS> struct AverageWalk {
    static constexpr int kPart = ACROSS > 0 ? ACROSS : 4; // windows that are loaded at once

    const AverageWalkParams& p;
    const bool constant;
    WindowRange slices, across; // that reach the column
    int out_row, row;           // of windows the next one to be loaded; where the one in hand begins
    const T* dy;                // the first window of `across` in that row, of slice 0
    T* dx;                      // of the column, row 0
    Acc widths[kPart]; // taps that count along the width, of `across`; where they are few, and not always as many
    T next[kPart];
    Acc totals[REACHING]; // of rows of windows, the one in hand first

    // Stands where the walk begins.
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
    DEVICE bool there() const { return inside(out_row, p.y_extent[1]) && slices.first < slices.end; }
    // Loads windows beside one another, from one on.
    DEVICE void load(T (&windows)[kPart], const T* from, int first, bool there) const {
#pragma unroll
        for (int i = 0; i < kPart; ++i)
            if (there && first + i < across.end) windows[i] = from[i * p.dy_stride[2]];
    }
    DEVICE Acc counts(int axis, int window) const {
        return Acc(count(p.counted, axis, window * int(p.stride[axis].divisor)));
    }
    // What they have for the column, if there are any; `counted` taps along the other axes.
    DEVICE void add(Acc& total, const T (&windows)[kPart], int first, Acc counted) const {
#pragma unroll
        for (int i = 0; i < kPart; ++i) {
            if (first + i >= across.end) continue;
            const Acc value = widen(windows[i]);
            total += constant ? value : value / (counted * (ACROSS > 0 ? widths[i] : counts(2, first + i)));
        }
    }
    // The taps that count along the depth and the height.
    DEVICE Acc counts_of(int slice) const { return constant ? Acc(1) : counts(0, slice) * counts(1, out_row); }
    DEVICE void prefetch() {
        if constexpr (ACROSS > 0) load(next, dy + slices.first * p.dy_stride[0], across.first, there());
    }
    // Takes the next row of windows into hand.
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
        // Where one row of windows reaches each element it is divided once for all of these.
        totals[0] = REACHING == 1 && constant ? total / Acc(p.counts) : total;
    }
    // Writes the rows of x from where the row of windows in hand begins to where the next one does.
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

template <class T, class Acc, int REACHING, int ACROSS>
DEVICE void average_pool_grad_walks(const AverageWalkParams& p) {
    constexpr int kThreads = 256; // as the plan launches it
    const int item = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (item >= p.items) return;
    AverageWalk<T, Acc, REACHING, ACROSS> walk(p, item);
    walk.run();
}

// ---------------------------------------------------------------- several columns

// Windows are KERNEL wide, and STRIDE apart along the height and the width.
template <class T, class Acc, int REACHING, int KERNEL, int STRIDE> struct AverageStrip {
    static constexpr int kColumns = 4, kWindows = (kColumns + KERNEL - 2) / STRIDE + 1;

    const AverageWalkParams& p;
    const bool constant;
    WindowRange slices;
    int left, out_row, row; // the first window of `windows`; as above
    int columns;            // that there are, to be written one by one; 0: all, as vectors
    const T* dy;            // window `left`
    T* dx;
    unsigned exist; // a bit for each window
    Acc widths[kWindows];
    Acc totals[REACHING][kColumns];

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
    // The first window ends at the first column or, with a stride of two, LATE columns after it.
    template <int LATE> static DEVICE constexpr bool reaches(int window, int column) {
        const int first = window * STRIDE + LATE - (KERNEL - 1);
        return first <= column && column < first + KERNEL;
    }
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
    // Takes the next row of windows into hand.
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
    // Writes the rows of x from where the row of windows in hand begins to where the next one does.
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

template <class T, class Acc, int REACHING, int KERNEL, int STRIDE>
DEVICE void average_pool_grad_strips(const AverageWalkParams& p) {
    constexpr int kThreads = 256; // as the plan launches it
    const int item = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (item >= p.items) return;
    AverageStrip<T, Acc, REACHING, KERNEL, STRIDE> strip(p, item);
    if (STRIDE > 1 && p.late) strip.template run<STRIDE - 1>();
    else strip.template run<0>();
}
