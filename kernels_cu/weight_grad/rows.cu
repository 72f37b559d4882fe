// Gradient of the weights of depthwise layers (one channel per group), down columns of the output with sums of a whole
// tile of taps in registers. One launch reads x and dy once per tile of taps; a second one (passes/add_up.cu) adds the
// parts.
//
// Thread: ROWS x ACROSS taps of one filter, over COLUMNS columns of dy. It walks down the rows of x. Each row is
// multiplied with the last ROWS rows of dy, which stay in registers, while the next row of both is being loaded.
//
//     x row i   x   dy rows i, i - 1, ..., i - ROWS + 1   ->   sums[0], sums[1], ..., sums[ROWS - 1]  (taps along H)
//
// Lanes run along the channels if those are closest together in memory, else along the columns. At the end, the sums of
// a filter's threads are added: by shuffles within a warp, then warp by warp in shared memory. Bound by memory, or by
// FFMA for many taps.
//
// With strides and dilations, the taps of a tile are stride / gcd(stride, dilation) apart, and the outputs of a thread
// dilation / gcd apart. Then adjacent taps and adjacent outputs both move by lcm(stride, dilation) inputs.
//
// Zeros stand for out-of-bounds inputs and outputs. They add nothing unless they meet an infinity or NaN: a thread with
// non-finite sums recomputes them over the valid products only.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"

// Axes are depth, row, column. Strides count elements.
struct WeightGradRowsParams {
    const void* x;
    const void* dy;
    void* sums;       // (part, filter, taps), in the accumulator's type
    int filters, all; // filters of all groups; sums per part
    int x_batch, x_channel, x_extent[3], x_stride[3];
    int dy_batch, dy_channel, dy_extent[3], dy_stride[3];
    int stride[3], pad[3], dilation[3], taps[3];
    Divider<int> step[2];                               // distance between adjacent inputs of a thread, along H and W
    Divider<int> apart[2];                              // distance between adjacent outputs of a thread, along H and W
    Divider<int> phases[2];                             // distance between adjacent taps of a tile, along H and W
    int items, each, walk;                              // walks per filter; walks per part; rows of dy per walk
    Divider<int> tap_tiles[3], filter_blocks, walks[3]; // walks: per image, along each axis
    Divider<int> lanes;                                 // filters per block, a power of two up to 32
    Divider<int> multiplier;                            // filters per channel
};

// One block; see the top of this file.
template <class T, class Acc, int ROWS, int ACROSS, int COLUMNS> struct WeightGradRows {
    static constexpr int kThreads = 128, kWarps = kThreads / 32, kTaps = ROWS * ACROSS;
    static constexpr int kWindow = COLUMNS - 1 + ACROSS;

    // The state of a walk: positions, and bit masks of the in-bounds elements of a row of x and of dy.
    struct Walk {
        const T *x, *dy;
        int row, rows; // next row of x; remaining rows of dy
        unsigned x_bits, dy_bits;
    };
    // One row of x and of dy, as loaded.
    struct Row { T x[kWindow], dy[COLUMNS]; };

    const WeightGradRowsParams& p;
    const T *x, *dy; // of the thread's filter
    int filter, worker, workers, part;
    int tap[3]; // first tap of the tile
    Acc sums[ROWS][ACROSS];

    // ---- coordinates

    // Computes the coordinates of the block and the thread.
    DEVICE void stand() {
        int tiles[3], block, lane;
        const int number = p.tap_tiles[0].split(
            p.tap_tiles[1].split(p.tap_tiles[2].split(block_number(), tiles[2]), tiles[1]), tiles[0]);
        part = p.filter_blocks.split(number, block);
        worker = p.lanes.split(threadIdx.x, lane);
        workers = kThreads / int(p.lanes.divisor);
        filter = block * int(p.lanes.divisor) + lane;
        tap[0] = tiles[0];
        tap[1] = first_of(p.phases[0], tiles[1], ROWS);
        tap[2] = first_of(p.phases[1], tiles[2], ACROSS);
        x = static_cast<const T*>(p.x) + (long long)p.multiplier.quotient(filter) * p.x_channel;
        dy = static_cast<const T*>(p.dy) + (long long)filter * p.dy_channel;
    }
    // The first of a tile's `count` taps or outputs, which are `apart` apart.
    static DEVICE int first_of(const Divider<int>& apart, int tile, int count) {
        int phase;
        const int number = apart.split(tile, phase);
        return number * count * int(apart.divisor) + phase;
    }
    // Input coordinate of an output at the tile's first tap.
    DEVICE int origin(int axis, int output) const {
        return output * p.stride[axis] - p.pad[axis] + tap[axis] * p.dilation[axis];
    }
    // Bit mask of the in-bounds coordinates among first, first + step, ... (COUNT of them).
    template <int COUNT> static DEVICE unsigned existing(int first, int step, int extent) {
        unsigned bits = (1u << COUNT) - 1;
        if (first >= 0 && first + (COUNT - 1) * step < extent) return bits;
#pragma unroll 1
        for (int i = 0; i < COUNT; ++i)
            if (!inside(first + i * step, extent)) bits &= ~(1u << i);
        return bits;
    }
    // The start of a walk.
    DEVICE Walk find(int item) const {
        int column_tile, row_tile, depth;
        const int image = p.walks[0].split(p.walks[1].split(p.walks[2].split(item, column_tile), row_tile), depth);
        const int row = first_of(p.apart[0], row_tile, p.walk), column = first_of(p.apart[1], column_tile, COLUMNS);
        const int at[3] = {origin(0, depth), origin(1, row), origin(2, column)};
        Walk walk;
        walk.row = at[1];
        const int rows = p.apart[0].quotient(p.dy_extent[1] - row + int(p.apart[0].divisor) - 1);
        walk.rows = inside(at[0], p.x_extent[0]) ? min(p.walk, rows) : 0;
        walk.x_bits = existing<kWindow>(at[2], int(p.step[1].divisor), p.x_extent[2]);
        walk.dy_bits = existing<COLUMNS>(column, int(p.apart[1].divisor), p.dy_extent[2]);
        walk.x = x + dot(at, p.x_stride, image * p.x_batch);
        walk.dy = dy + image * p.dy_batch + depth * p.dy_stride[0] + row * p.dy_stride[1] + column * p.dy_stride[2];
        return walk;
    }

    // ---- main loop

    // Elements between adjacent columns of a thread.
    DEVICE int x_step() const { return int(p.step[1].divisor) * p.x_stride[2]; }
    DEVICE int dy_step() const { return int(p.apart[1].divisor) * p.dy_stride[2]; }
    // Moves down by some rows.
    DEVICE void step_down(Walk& walk, int rows) const {
        walk.x += (long long)rows * (int(p.step[0].divisor) * p.x_stride[1]);
        walk.dy += (long long)rows * (int(p.apart[0].divisor) * p.dy_stride[1]);
        walk.rows -= rows;
    }
    // Loads the next row, zeros where it is out of bounds, and moves down.
    DEVICE Row load(Walk& walk) const {
        Row row;
        const unsigned dy_bits = walk.rows > 0 ? walk.dy_bits : 0;
#pragma unroll
        for (int i = 0; i < kWindow; ++i) row.x[i] = walk.x_bits >> i & 1 ? walk.x[(long long)i * x_step()] : T(0.f);
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) row.dy[i] = dy_bits >> i & 1 ? walk.dy[(long long)i * dy_step()] : T(0.f);
        step_down(walk, 1);
        return row;
    }
    // Adds the products of one walk. Rows of dy stay in a register ring `gradients`; the loop is unrolled ROWS times.
    DEVICE void accumulate(Walk walk) {
        // rows that lie above x
        const int step = int(p.step[0].divisor), above = p.step[0].quotient(max(step - 1 - walk.row, 0));
        const int end = p.step[0].quotient(max(p.x_extent[1] - walk.row + step - 1, 0));
        int left = min(walk.rows + ROWS - 1, end) - above;
        if (left <= 0) return;
        Acc gradients[ROWS][COLUMNS];
        clear(gradients);
        if (above > 0) {
#pragma unroll
            for (int r = 1; r < ROWS; ++r) {
                if (!inside(above - r, walk.rows)) continue;
                Walk before = walk;
                step_down(before, above - r);
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i)
                    if (walk.dy_bits >> i & 1) gradients[ROWS - r][i] = widen(before.dy[(long long)i * dy_step()]);
            }
            step_down(walk, above);
        }
        Row next = load(walk);
#pragma unroll 1
        while (left > 0) {
#pragma unroll
            for (int turn = 0; turn < ROWS; ++turn) {
                const Row row = next;
                if (--left <= 0) walk.x_bits = walk.rows = 0;
                next = load(walk);
                Acc window[kWindow];
#pragma unroll
                for (int i = 0; i < kWindow; ++i) window[i] = widen(row.x[i]);
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i) gradients[turn][i] = widen(row.dy[i]);
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i)
#pragma unroll
                    for (int r = 0; r < ROWS; ++r)
#pragma unroll
                        for (int a = 0; a < ACROSS; ++a)
                            sums[r][a] =
                                multiply_add(gradients[(turn - r + ROWS) % ROWS][i], window[i + a], sums[r][a]);
                if (left <= 0) break;
            }
        }
    }
    // Adds the products of one walk one by one, over the valid elements only.
    DEVICE void accumulate_inside(const Walk& walk) {
#pragma unroll 1
        for (int row = 0; row < walk.rows; ++row)
#pragma unroll 1
            for (int i = 0; i < COLUMNS; ++i) {
                if (!(walk.dy_bits >> i & 1)) continue;
                const Acc gradient = widen(
                    walk.dy[(long long)row * int(p.apart[0].divisor) * p.dy_stride[1] + (long long)i * dy_step()]);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const int down = (row + r) * int(p.step[0].divisor);
                    if (!inside(walk.row + down, p.x_extent[1])) continue;
                    const T* of_row = walk.x + (long long)down * p.x_stride[1];
#pragma unroll
                    for (int a = 0; a < ACROSS; ++a)
                        if (walk.x_bits >> (i + a) & 1)
                            sums[r][a] =
                                multiply_add(gradient, widen(of_row[(long long)(i + a) * x_step()]), sums[r][a]);
                }
            }
    }
    // Adds the products of all of this thread's walks.
    template <bool INSIDE> DEVICE void accumulate_all() {
        clear(sums);
        if (filter >= p.filters) return;
        const int limit = min((part + 1) * p.each, p.items);
#pragma unroll 1
        for (int item = part * p.each + worker; item < limit; item += workers) {
            const Walk walk = find(item);
            if (walk.rows <= 0) continue;
            if constexpr (INSIDE) accumulate_inside(walk);
            else accumulate(walk);
        }
    }
    // Whether this thread's sums are all finite.
    DEVICE bool all_finite() const {
        bool finite = true;
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int a = 0; a < ACROSS; ++a) finite = finite && is_finite(sums[r][a]);
        return finite;
    }

    // ---- the whole block

    // Adds the sums of all threads of each filter.
    DEVICE void add_up(Acc (&shared)[kTaps][32]) {
        const int lanes = int(p.lanes.divisor), lane = int(threadIdx.x) % 32;
#pragma unroll 1
        for (int distance = 16; distance >= lanes; distance /= 2)
#pragma unroll
            for (int i = 0; i < kTaps; ++i)
                sums[i / ACROSS][i % ACROSS] += shuffle_down(sums[i / ACROSS][i % ACROSS], distance);
#pragma unroll 1
        for (int warp = 0; warp < kWarps; ++warp) {
            if (int(threadIdx.x) / 32 == warp && lane < lanes) {
#pragma unroll
                for (int i = 0; i < kTaps; ++i)
                    shared[i][lane] =
                        warp == 0 ? sums[i / ACROSS][i % ACROSS] : shared[i][lane] + sums[i / ACROSS][i % ACROSS];
            }
            __syncthreads();
        }
    }
    // Stores the block's sums to the workspace.
    DEVICE void leave(const Acc (&shared)[kTaps][32]) const {
        const int lanes = int(p.lanes.divisor), first = filter - int(threadIdx.x) % lanes;
#pragma unroll 1
        for (int number = threadIdx.x; number < lanes * kTaps; number += kThreads) {
            const int of_block = number / kTaps, i = number % kTaps;
            const int row = tap[1] + i / ACROSS * int(p.phases[0].divisor);
            const int column = tap[2] + i % ACROSS * int(p.phases[1].divisor);
            if (first + of_block >= p.filters || row >= p.taps[1] || column >= p.taps[2]) continue;
            const int at = ((first + of_block) * p.taps[0] + tap[0]) * p.taps[1] + row;
            static_cast<Acc*>(p.sums)[(long long)part * p.all + at * p.taps[2] + column] = shared[i][of_block];
        }
    }
    // Accumulates, again over valid products only if a sum is not finite, then adds and stores.
    DEVICE void run(Acc (&shared)[kTaps][32]) {
        stand();
        accumulate_all<false>();
        if (!all_finite()) accumulate_all<true>();
        add_up(shared);
        leave(shared);
    }
};

template <class T, class Acc, int ROWS, int ACROSS, int COLUMNS>
DEVICE void conv_weight_grad_rows(const WeightGradRowsParams& p) {
    __shared__ Acc shared[ROWS * ACROSS][32];
    WeightGradRows<T, Acc, ROWS, ACROSS, COLUMNS> block{p};
    block.run(shared);
}
