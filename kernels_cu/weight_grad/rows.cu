// The gradient of weights (weight_grad/problem.cuh) where a group has one channel (depthwise), down rows of outputs:
// a launch reads x and dy once for a whole tile of taps.
//
// A thread goes down COLUMNS columns of dy of one filter, and keeps the sums of ROWS x ACROSS taps in registers. It
// walks over rows of x: each gives its products with the last ROWS rows of dy, which stay in registers, while the next
// row of both is on its way. Lanes go along the channels where those lie closest together, else along the columns. In
// the end the sums of a filter's threads are added up, in a tree within a warp, then one warp after another.
//
// With strides and dilations a tile is of taps that are stride / gcd(stride, dilation) apart, and the outputs of a
// thread are dilation / gcd apart: from one tap to the next, and from one output to the next, inputs then are equally
// far apart, lcm(stride, dilation).
//
// Zeros stand for inputs outside of x and for outputs beyond a walk. They add nothing unless they meet an infinity or
// NaN: a thread whose sums are not finite makes them again without.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"

// Axes are depth, row, column. Strides count elements.
struct WeightGradRowsParams {
    const void* x;
    const void* dy;
    void* sums;       // part, filter, taps: in the accumulator's type
    int filters, all; // of all groups; sums of a part
    int x_batch, x_channel, x_extent[3], x_stride[3];
    int dy_batch, dy_channel, dy_extent[3], dy_stride[3];
    int stride[3], pad[3], dilation[3], taps[3];
    int step[3];           // coordinates from one input of a thread to the next
    int items, each, walk; // walks of one filter; of a part; rows of dy of one
    Divider<int> apart[3]; // outputs from one of a thread to the next
    Divider<int> phases[3];                    // taps from one of a tile to the next
    Divider<int> tap_tiles[3];                 // along each axis
    Divider<int> filter_blocks, lanes;         // lanes: filters of a block, a power of 2 up to 32
    Divider<int> multiplier;                   // filters of a channel
    Divider<int> depths, row_tiles, column_tiles; // of an image's walks
};

template <class T, class Acc, int ROWS, int ACROSS, int COLUMNS> struct WeightGradRows {
    static constexpr int kThreads = 128, kWarps = kThreads / 32, kTaps = ROWS * ACROSS;
    static constexpr int kWindow = COLUMNS - 1 + ACROSS;

    // Where a walk stands: what exists of a row of x and of dy, a bit for each element.
    struct Walk {
        const T *x, *dy;
        int row, rows; // of x, the next one; of dy that are left
        unsigned x_bits, dy_bits;
    };
    // A row of both.
    struct Row { T x[kWindow], dy[COLUMNS]; };

    const WeightGradRowsParams& p;
    const T *x, *dy; // of the thread's filter
    int filter, worker, workers, part;
    int tap[3]; // first one of the tile
    Acc sums[ROWS][ACROSS];

    // ---- where things stand

    DEVICE void stand() {
        int tiles[3], block, lane;
        const int number = p.tap_tiles[0].split(
            p.tap_tiles[1].split(p.tap_tiles[2].split(block_number(), tiles[2]), tiles[1]), tiles[0]);
        part = p.filter_blocks.split(number, block);
        worker = p.lanes.split(threadIdx.x, lane);
        workers = kThreads / int(p.lanes.divisor);
        filter = block * int(p.lanes.divisor) + lane;
        tap[0] = tiles[0];
        tap[1] = first_tap<ROWS>(1, tiles[1]);
        tap[2] = first_tap<ACROSS>(2, tiles[2]);
        x = static_cast<const T*>(p.x) + p.multiplier.quotient(filter) * p.x_channel;
        dy = static_cast<const T*>(p.dy) + filter * p.dy_channel;
    }
    template <int COUNT> DEVICE int first_tap(int axis, int tile) const {
        int phase;
        return p.phases[axis].split(tile, phase) * COUNT * int(p.phases[axis].divisor) + phase;
    }
    // The first of `count` outputs of a tile along an axis.
    DEVICE int first_output(int axis, int tile, int count) const {
        int phase;
        return p.apart[axis].split(tile, phase) * count * int(p.apart[axis].divisor) + phase;
    }
    DEVICE int origin(int axis, int output) const {
        return output * p.stride[axis] - p.pad[axis] + tap[axis] * p.dilation[axis];
    }
    DEVICE Walk find(int item) const {
        int column_tile, row_tile, depth;
        const int image = p.depths.split(p.row_tiles.split(p.column_tiles.split(item, column_tile), row_tile), depth);
        const int row = first_output(1, row_tile, p.walk), column = first_output(2, column_tile, COLUMNS);
        const int at[3] = {origin(0, depth), origin(1, row), origin(2, column)};
        Walk walk;
        walk.row = at[1];
        walk.rows = inside(at[0], p.x_extent[0]) && row < p.dy_extent[1]
                      ? min(p.walk, p.apart[1].quotient(p.dy_extent[1] - row - 1) + 1)
                      : 0;
        walk.x_bits = walk.dy_bits = 0;
#pragma unroll
        for (int i = 0; i < kWindow; ++i) walk.x_bits |= unsigned(inside(at[2] + i * p.step[2], p.x_extent[2])) << i;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            walk.dy_bits |= unsigned(column + i * int(p.apart[2].divisor) < p.dy_extent[2]) << i;
        if (walk.dy_bits == 0) walk.rows = 0;
        walk.x = x + dot(at, p.x_stride, image * p.x_batch);
        walk.dy = dy + image * p.dy_batch + depth * p.dy_stride[0] + row * p.dy_stride[1] + column * p.dy_stride[2];
        return walk;
    }

    // ---- sums

    // Loads the next row, and steps down.
    DEVICE Row load(Walk& walk) const {
        Row row;
        const unsigned x_bits = inside(walk.row, p.x_extent[1]) ? walk.x_bits : 0;
        const unsigned dy_bits = walk.rows > 0 ? walk.dy_bits : 0;
        int x_step = p.step[2] * p.x_stride[2], dy_step = int(p.apart[2].divisor) * p.dy_stride[2];
#pragma unroll
        for (int i = 0; i < kWindow; ++i) {
            row.x[i] = T(0.f);
            if (x_bits >> i & 1) row.x[i] = walk.x[(long long)i * x_step];
        }
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            row.dy[i] = T(0.f);
            if (dy_bits >> i & 1) row.dy[i] = walk.dy[(long long)i * dy_step];
        }
        walk.row += p.step[1];
        walk.x += p.step[1] * p.x_stride[1];
        walk.dy += int(p.apart[1].divisor) * p.dy_stride[1];
        --walk.rows;
        return row;
    }
    DEVICE void accumulate(Walk walk) {
        int left = walk.rows + ROWS - 1;
        Acc gradients[ROWS][COLUMNS];
        clear(gradients);
        Row next = load(walk);
#pragma unroll 1
        while (left > 0) {
#pragma unroll
            for (int turn = 0; turn < ROWS; ++turn) {
                const Row row = next;
                if (--left > 0) next = load(walk);
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
    // The sums of a walk, product by product over what exists.
    DEVICE void accumulate_inside(const Walk& walk) {
#pragma unroll 1
        for (int row = 0; row < walk.rows; ++row)
#pragma unroll 1
            for (int i = 0; i < COLUMNS; ++i) {
                if (!(walk.dy_bits >> i & 1)) continue;
                const Acc gradient = widen(walk.dy[(long long)row * int(p.apart[1].divisor) * p.dy_stride[1]
                                                   + (long long)i * int(p.apart[2].divisor) * p.dy_stride[2]]);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    if (!inside(walk.row + (row + r) * p.step[1], p.x_extent[1])) continue;
                    const T* of_row = walk.x + (long long)(row + r) * p.step[1] * p.x_stride[1];
#pragma unroll
                    for (int a = 0; a < ACROSS; ++a)
                        if (walk.x_bits >> (i + a) & 1)
                            sums[r][a] = multiply_add(
                                gradient, widen(of_row[(long long)(i + a) * p.step[2] * p.x_stride[2]]), sums[r][a]);
                }
            }
    }
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
    DEVICE bool all_finite() const {
        bool finite = true;
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int a = 0; a < ACROSS; ++a) finite = finite && is_finite(sums[r][a]);
        return finite;
    }

    // ---- all of it

    // Adds up the sums of the threads of each filter.
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
                    shared[i][lane] = warp == 0 ? sums[i / ACROSS][i % ACROSS]
                                                : shared[i][lane] + sums[i / ACROSS][i % ACROSS];
            }
            __syncthreads();
        }
    }
    DEVICE void leave(const Acc (&shared)[kTaps][32]) const {
        const int lanes = int(p.lanes.divisor), first = filter - int(threadIdx.x) % lanes;
#pragma unroll 1
        for (int number = threadIdx.x; number < lanes * kTaps; number += kThreads) {
            const int of_block = number / kTaps, i = number % kTaps;
            const int row = tap[1] + i / ACROSS * int(p.phases[1].divisor);
            const int column = tap[2] + i % ACROSS * int(p.phases[2].divisor);
            if (first + of_block >= p.filters || row >= p.taps[1] || column >= p.taps[2]) continue;
            const int at = ((first + of_block) * p.taps[0] + tap[0]) * p.taps[1] + row;
            static_cast<Acc*>(p.sums)[(long long)part * p.all + at * p.taps[2] + column] = shared[i][of_block];
        }
    }
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
