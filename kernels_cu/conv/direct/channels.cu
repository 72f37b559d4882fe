// Conv of one channel a group (depthwise) over channels that lie one after another (channels last), as a direct sum
// over taps; ConvTranspose of stride 1 with turned taps.
//
// A thread makes kRows x COLUMNS outputs of a vector of channels. Lanes follow each other along the channels, so that
// loads and stores are coalesced; then along the rows and down the columns, so that inputs that threads share come from
// the L1 cache. Of each row of x that its windows meet a thread holds the inputs of TAPS taps at a time in registers,
// where all its outputs find them. Weights lie in shared memory, widened, for some rows of the kernel at a time. Where
// taps are dilated, the outputs of a thread lie as far apart as lets them share inputs.
//
// Forms: STRIDE = 1 or 2, neighbouring windows are so many taps apart. STRIDE = 0, any strides and dilations.
//
// Zero times an infinite or NaN weight would be NaN where the padding must add nothing: blocks with such a weight make
// their outputs one by one over the taps inside x (`sum_inside`). Where vectors of channels are not whole, not aligned,
// or meet fewer channels of x, the thread makes one channel after another.
#include "conv/finish.cuh"
#include "base/geometry.cuh"
#include "base/ptx.cuh"
#include "base/vectors.cuh"

// Axes are depth, row, column. Strides count elements.
struct ConvChannelsParams {
    const void* x;
    const void* w;
    const void* b; // or null
    void* y;
    int channels; // of y
    int x_batch, x_channel, x_extent[3], x_stride[3];
    int y_batch, y_channel, y_extent[3], y_stride[3];
    int w_first, w_group, w_filter, w_stride[3];
    int b_stride;
    int stride[3], dilation[3], start[3]; // input coordinate: q * stride + start + tap * dilation
    int taps[3], step;                    // of the kernel; rows of it in shared memory at a time
    int row_advance;                      // taps from one row of a thread to the next
    int window_step;                      // coordinates from one input of a window in registers to the next
    int pitch;                            // of a tap's weights in shared memory
    int in_vectors;                       // pixels are made of whole vectors of channels, with a filter each
    Divider<int> filters;                 // of a channel of x
    Divider<int> vectors, columns;        // of a block: threads along the channels and the row; the rest are rows
    int rows, walk;                       // of threads in a block; how often these step on to the next rows
    Divider<int> channel_blocks, column_blocks, row_blocks, depths;
    Divider<int> apart[2];            // outputs of a thread: rows and columns from one to the next
    Divider<int> step_taps, row_taps; // of the staged weights
    Divider<int> row_parts;           // of a slice of the kernel, each of them so many rows
    int parts;
    Finish finish;
};

template <class T, class Acc, int STRIDE, int TAPS, int COLUMNS> struct Channels {
    static constexpr int kThreads = 128, kVector = 16 / sizeof(Acc);
    static constexpr int kRows = 16 / COLUMNS;
    static constexpr int kStep = STRIDE == 0 ? 1 : STRIDE, kWindow = (COLUMNS - 1) * kStep + TAPS;
    static_assert(STRIDE > 0 || TAPS == 1);

    template <int COUNT> using Loaded = Raw<COUNT* int(sizeof(T))>;
    template <int COUNT> struct Sums { Acc values[kRows][COLUMNS][COUNT]; };

    const ConvChannelsParams& p;
    Acc* shared;
    int image, depth, row, column; // of the thread's first output
    int lane, block_channel;       // of its vector in the block; the block's first channel of y
    int rows, columns;             // outputs that exist

    DEVICE Channels(const ConvChannelsParams& p, void* shared) : p(p), shared(static_cast<Acc*>(shared)) {}

    // ---- where things stand

    // First output of a tile along an axis; how many of COUNT outputs exist.
    template <int COUNT> static DEVICE int first_of(const Divider<int>& apart, int tile) {
        int phase;
        const int number = apart.split(tile, phase);
        return number * COUNT * int(apart.divisor) + phase;
    }
    template <int COUNT> static DEVICE int existing(const Divider<int>& apart, int first, int extent) {
        int count = 0;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) count += first + i * int(apart.divisor) < extent;
        return count;
    }
    // Finds all of it, anew wherever that is better than keeping it in registers.
    DEVICE void stand(int step) {
        int block, column_block, row_block, column_tile, rest = p.channel_blocks.split(block_number(), block);
        rest = p.row_blocks.split(p.column_blocks.split(rest, column_block), row_block);
        image = p.depths.split(rest, depth);
        const int row_tile = p.columns.split(p.vectors.split(thread_number(), lane), column_tile);
        block_channel = block * int(p.vectors.divisor) * kVector;
        column = first_of<COLUMNS>(p.apart[1], column_block * int(p.columns.divisor) + column_tile);
        row = first_of<kRows>(p.apart[0], (row_block * p.walk + step) * p.rows + row_tile);
        columns = row_tile < p.rows ? existing<COLUMNS>(p.apart[1], column, p.y_extent[2]) : 0;
        rows = columns > 0 ? existing<kRows>(p.apart[0], row, p.y_extent[1]) : 0;
    }
    // Of COUNT channels at once the thread has neighbours; of single ones every lane-th, so that lanes have neighbours.
    template <int COUNT> DEVICE int channel(int turn) const {
        return COUNT == 1 ? turn * int(p.vectors.divisor) + lane : lane * COUNT;
    }
    DEVICE const T* input(int of_channel) const {
        return static_cast<const T*>(p.x) + image * p.x_batch + p.filters.quotient(of_channel) * p.x_channel;
    }
    DEVICE const T* weight(int of_channel) const {
        int filter;
        const int group = p.filters.split(of_channel, filter);
        return static_cast<const T*>(p.w) + p.w_first + group * p.w_group + filter * p.w_filter;
    }

    // ---- weights

    // Copies those of some rows of the kernel, the channel fastest; returns whether all of them are finite.
    DEVICE bool stage(int kd, int first) const {
        int block;
        p.channel_blocks.split(block_number(), block);
        const int block_channel = block * int(p.vectors.divisor) * kVector;
        const int count = int(p.vectors.divisor) * kVector * int(p.step_taps.divisor);
        bool finite = true;
#pragma unroll 1
        for (int number = threadIdx.x; number < count;
             number += kThreads) { // taps of a channel lie next to each other in w
            int tap, kw;
            const int of_channel = p.step_taps.split(number, tap), kh = first + p.row_taps.split(tap, kw);
            Acc value = 0;
            if (block_channel + of_channel < p.channels && kh < p.taps[1])
                value = widen(
                    weight(block_channel + of_channel)[kd * p.w_stride[0] + kh * p.w_stride[1] + kw * p.w_stride[2]]);
            finite = finite && is_finite(value);
            shared[tap * p.pitch + of_channel] = value;
        }
        return finite;
    }

    // ---- sums

    // Which inputs of a window in registers lie inside x, the first one at column w: a bit each.
    DEVICE unsigned found(int w, int count) const {
        unsigned bits = 0;
#pragma unroll
        for (int c = 0; c < kWindow; ++c) bits |= unsigned(inside(w + c * p.window_step, p.x_extent[2])) << c;
        return bits & ((1u << (kWindow - TAPS + count)) - 1);
    }
    // Row i of the staged ones of the kernel, as output row 0 counts them: `count` taps, of which the first meets x.
    template <int COUNT>
    DEVICE void take(Sums<COUNT>& sums, const char* x, int step, unsigned bits, const Acc* weights, int i, int staged,
                     int count) const {
        Loaded<COUNT> elements[kWindow];
        Acc window[kWindow][COUNT];
#pragma unroll
        for (int c = 0; c < kWindow; ++c) {
            elements[c] = {};
            if (bits >> c & 1) elements[c] = *reinterpret_cast<const Loaded<COUNT>*>(x + (long long)c * step);
        }
#pragma unroll
        for (int c = 0; c < kWindow; ++c) widen_all<T>(elements[c], window[c]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int kh = i - r * p.row_advance;
            if (r >= rows || !inside(kh, staged)) continue;
            const Acc* of_row = weights + kh * p.taps[2] * p.pitch;
#pragma unroll
            for (int k = 0; k < TAPS; ++k) {
                if (k >= count) break;
                const auto factors = *reinterpret_cast<const Elements<Acc, COUNT>*>(of_row + k * p.pitch);
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
                    for (int e = 0; e < COUNT; ++e)
                        sums.values[r][c][e] =
                            multiply_add(factors.values[e], window[c * kStep + k][e], sums.values[r][c][e]);
            }
        }
    }
    // The staged rows of the kernel from `first` on, at depth d of x.
    template <int COUNT> DEVICE void accumulate(Sums<COUNT>& sums, int turn, int d, int first) const {
        const int staged = min(p.step, p.taps[1] - first), end = staged + (rows - 1) * p.row_advance;
        const int h0 = row * p.stride[1] + p.start[1] + first * p.dilation[1];
#pragma unroll 1
        for (int kw = 0; kw < p.taps[2]; kw += TAPS) {
            const int count = min(TAPS, p.taps[2] - kw), w = column * p.stride[2] + p.start[2] + kw * p.dilation[2];
            const unsigned bits = found(w, count);
            const Acc* weights = shared + kw * p.pitch + channel<COUNT>(turn);
            const T* x = input(block_channel + channel<COUNT>(turn)) + d * p.x_stride[0] + h0 * p.x_stride[1]
                       + w * p.x_stride[2];
            int h = h0, step = p.window_step * p.x_stride[2] * int(sizeof(T));
            keep(step);
#pragma unroll 1
            for (int i = 0; i < end; ++i) {
                if (inside(h, p.x_extent[1]))
                    take(sums, reinterpret_cast<const char*>(x), step, bits, weights, i, staged, count);
                h += p.dilation[1];
                x += p.dilation[1] * p.x_stride[1];
            }
        }
    }

    // ---- writing

    DEVICE Acc bias(int of_channel) const {
        return p.b == nullptr ? Acc(0) : widen(static_cast<const T*>(p.b)[of_channel * p.b_stride]);
    }
    DEVICE T* output(int of_channel) const {
        return static_cast<T*>(p.y) + image * p.y_batch + of_channel * p.y_channel + depth * p.y_stride[0]
             + row * p.y_stride[1] + column * p.y_stride[2];
    }
    DEVICE int further(int r, int c) const {
        return r * int(p.apart[0].divisor) * p.y_stride[1] + c * int(p.apart[1].divisor) * p.y_stride[2];
    }
    template <int COUNT> DEVICE void write(const Sums<COUNT>& sums, int first) const {
        T* y = output(first);
        Acc added[COUNT];
#pragma unroll
        for (int e = 0; e < COUNT; ++e) added[e] = bias(first + e);
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                if (r >= rows || c >= columns) continue;
                Acc row[COUNT];
#pragma unroll
                for (int e = 0; e < COUNT; ++e) row[e] = sums.values[r][c][e] + added[e];
                if (p.finish.any()) finish_all(p.finish, p.y, row, y + further(r, c));
                store_narrowed(y + further(r, c), row);
            }
    }

    // ---- weights that are not finite

    template <int COUNT> DEVICE void write_inside(int first) const {
#pragma unroll 1
        for (int r = 0; r < rows; ++r)
#pragma unroll 1
            for (int c = 0; c < columns; ++c)
#pragma unroll 1
                for (int of_channel = first; of_channel < first + COUNT; ++of_channel) {
                    T& target = output(of_channel)[further(r, c)];
                    target =
                        narrow<T>(finished(p.finish, p.y, sum_inside(r, c, of_channel) + bias(of_channel), &target));
                }
    }
    DEVICE Acc sum_inside(int r, int c, int of_channel) const {
        const T *x = input(of_channel), *w = weight(of_channel);
        const int d0 = depth * p.stride[0] + p.start[0];
        const int h0 = (row + r * int(p.apart[0].divisor)) * p.stride[1] + p.start[1];
        const int w0 = (column + c * int(p.apart[1].divisor)) * p.stride[2] + p.start[2];
        Acc sum = 0;
#pragma unroll 1
        for (int kd = 0; kd < p.taps[0]; ++kd)
#pragma unroll 1
            for (int kh = 0; kh < p.taps[1]; ++kh)
#pragma unroll 1
                for (int kw = 0; kw < p.taps[2]; ++kw) {
                    const int at[3] = {d0 + kd * p.dilation[0], h0 + kh * p.dilation[1], w0 + kw * p.dilation[2]};
                    if (!inside(at[0], p.x_extent[0]) || !inside(at[1], p.x_extent[1]) || !inside(at[2], p.x_extent[2]))
                        continue;
                    const T factor = w[kd * p.w_stride[0] + kh * p.w_stride[1] + kw * p.w_stride[2]];
                    sum = multiply_add(widen(factor), widen(x[dot(at, p.x_stride)]), sum);
                }
        return sum;
    }

    // ---- all of it

    template <int COUNT> DEVICE bool exists(int turn) const {
        return rows > 0 && block_channel + channel<COUNT>(turn) < p.channels;
    }
    template <int COUNT> DEVICE void make(int turn) {
        bool finite = true;
#pragma unroll 1
        for (int step = 0; step < p.walk; ++step) {
            Sums<COUNT> sums{};
#pragma unroll 1
            for (int part = p.parts - 1; part >= 0; --part) {
                int first;
                const int kd = p.row_parts.split(part, first);
                first *= p.step;
                if (step == 0 || p.parts > 1) {
                    __syncthreads(); // all threads have left the weights
                    finite = __syncthreads_and(stage(kd, first)) && finite;
                }
                stand(step);
                const int d = depth * p.stride[0] + p.start[0] + kd * p.dilation[0];
                if (exists<COUNT>(turn) && inside(d, p.x_extent[0])) accumulate(sums, turn, d, first);
            }
            stand(step);
            if (!exists<COUNT>(turn)) continue;
            if (finite) write(sums, block_channel + channel<COUNT>(turn));
            else write_inside<COUNT>(block_channel + channel<COUNT>(turn));
        }
    }
    DEVICE void run() {
        constexpr int kBytes = sizeof(Loaded<kVector>);
        if (p.in_vectors && reinterpret_cast<unsigned long long>(p.x) % kBytes == 0
            && vectors_aligned(p.finish, p.y, kBytes)) {
            make<kVector>(0);
            return;
        }
#pragma unroll 1
        for (int turn = 0; turn < kVector; ++turn) make<1>(turn);
    }
};

template <class T, class Acc, int STRIDE, int TAPS, int COLUMNS>
DEVICE void conv_channels(const ConvChannelsParams& p) {
    extern __shared__ __align__(16) unsigned char shared[];
    Channels<T, Acc, STRIDE, TAPS, COLUMNS>(p, shared).run();
}
