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
// their outputs one by one over the taps inside x (`sum_inside`).
//
// Where vectors of channels are not whole, not aligned, or meet fewer channels of x, elements are loaded and written
// one by one. A thread's channels are then not neighbours, those of neighbouring lanes are. Weights lie in shared
// memory as threads have them: a vector of each.
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

    using Loaded = Raw<kVector* int(sizeof(T))>;
    struct Sums { Acc values[kRows][COLUMNS][kVector]; };

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
    // The thread's channels: neighbours, or as many apart as there are lanes, so that these have neighbours.
    template <bool WHOLE> DEVICE int channel(int e) const {
        return block_channel + (WHOLE ? lane * kVector + e : e * int(p.vectors.divisor) + lane);
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
    template <bool WHOLE> DEVICE bool stage(int kd, int first) const {
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
            int lane, e = p.vectors.split(of_channel, lane);
            shared[tap * p.pitch + (WHOLE ? of_channel : lane * kVector + e)] = value;
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
    // How far apart elements of a pixel of x lie: the thread's first one and another, or the last one of all.
    DEVICE int offset(int first, int e) const {
        const int of_channel = min(first + e * int(p.vectors.divisor), p.channels - 1);
        return int(p.filters.quotient(of_channel) - p.filters.quotient(first)) * p.x_channel;
    }
    // The inputs of a window, zeros for those that lie outside x.
    template <bool WHOLE>
    DEVICE void load(const char* x, int step, unsigned bits, Acc (&window)[kWindow][kVector]) const {
        if constexpr (WHOLE) {
            Loaded elements[kWindow];
#pragma unroll
            for (int c = 0; c < kWindow; ++c) {
                elements[c] = {};
                if (bits >> c & 1) elements[c] = *reinterpret_cast<const Loaded*>(x + (long long)c * step);
            }
#pragma unroll
            for (int c = 0; c < kWindow; ++c) widen_all<T>(elements[c], window[c]);
        } else {
#pragma unroll
            for (int e = 0; e < kVector; ++e) {
                int first = channel<WHOLE>(0);
                keep(first); // else all places of a window stay in registers
                const char* element = x + (e > 0 ? offset(first, e) * int(sizeof(T)) : 0);
                keep_global(element);
#pragma unroll
                for (int c = 0; c < kWindow; ++c) {
                    window[c][e] = 0;
                    if (bits >> c & 1) window[c][e] = widen(*reinterpret_cast<const T*>(element + (long long)c * step));
                }
            }
        }
    }
    // Row i of the staged ones of the kernel, as output row 0 counts them: `count` taps, of which the first meets x.
    template <bool WHOLE>
    DEVICE void take(Sums& sums, const char* x, int step, unsigned bits, const Acc* weights, int i, int staged,
                     int count) const {
        Acc window[kWindow][kVector];
        load<WHOLE>(x, step, bits, window);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int kh = i - r * p.row_advance;
            if (r >= rows || !inside(kh, staged)) continue;
            const Acc* of_row = weights + kh * p.taps[2] * p.pitch;
#pragma unroll
            for (int k = 0; k < TAPS; ++k) {
                if (k >= count) break;
                const auto factors = *reinterpret_cast<const Elements<Acc, kVector>*>(of_row + k * p.pitch);
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
                    for (int e = 0; e < kVector; ++e)
                        sums.values[r][c][e] =
                            multiply_add(factors.values[e], window[c * kStep + k][e], sums.values[r][c][e]);
            }
        }
    }
    // The staged rows of the kernel from `first` on, at depth d of x.
    template <bool WHOLE> DEVICE void accumulate(Sums& sums, int d, int first) const {
        const int staged = min(p.step, p.taps[1] - first), end = staged + (rows - 1) * p.row_advance;
        const int h0 = row * p.stride[1] + p.start[1] + first * p.dilation[1];
#pragma unroll 1
        for (int kw = 0; kw < p.taps[2]; kw += TAPS) {
            const int count = min(TAPS, p.taps[2] - kw), w = column * p.stride[2] + p.start[2] + kw * p.dilation[2];
            const unsigned bits = found(w, count);
            const Acc* weights = shared + kw * p.pitch + lane * kVector;
            const T* x = input(channel<WHOLE>(0)) + d * p.x_stride[0] + h0 * p.x_stride[1] + w * p.x_stride[2];
            int h = h0, step = p.window_step * p.x_stride[2] * int(sizeof(T));
            keep(step);
#pragma unroll 1
            for (int i = 0; i < end; ++i) {
                if (inside(h, p.x_extent[1]))
                    take<WHOLE>(sums, reinterpret_cast<const char*>(x), step, bits, weights, i, staged, count);
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
    // Channels [first, first + COUNT) of the thread's, which are neighbours.
    template <int COUNT> DEVICE void write(const Sums& sums, int first, int of_channel) const {
        T* y = output(of_channel);
        Acc added[COUNT];
#pragma unroll
        for (int e = 0; e < COUNT; ++e) added[e] = bias(of_channel + e);
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                if (r >= rows || c >= columns) continue;
                Acc row[COUNT];
#pragma unroll
                for (int e = 0; e < COUNT; ++e) row[e] = sums.values[r][c][first + e] + added[e];
                if (p.finish.any()) finish_all(p.finish, p.y, row, y + further(r, c));
                store_narrowed(y + further(r, c), row);
            }
    }
    template <bool WHOLE> DEVICE void write_all(const Sums& sums) const {
        constexpr int kCount = WHOLE ? kVector : 1;
#pragma unroll
        for (int e = 0; e < kVector; e += kCount)
            if (WHOLE || channel<WHOLE>(e) < p.channels) write<kCount>(sums, e, channel<WHOLE>(e));
    }

    // ---- weights that are not finite

    template <bool WHOLE> DEVICE void write_inside() const {
#pragma unroll 1
        for (int r = 0; r < rows; ++r)
#pragma unroll 1
            for (int c = 0; c < columns; ++c)
#pragma unroll 1
                for (int e = 0; e < kVector; ++e) {
                    const int of_channel = channel<WHOLE>(e);
                    if (of_channel >= p.channels) break;
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

    template <bool WHOLE> DEVICE void make() {
        bool finite = true;
#pragma unroll 1
        for (int step = 0; step < p.walk; ++step) {
            Sums sums{};
#pragma unroll 1
            for (int part = p.parts - 1; part >= 0; --part) {
                int first;
                const int kd = p.row_parts.split(part, first);
                first *= p.step;
                if (step == 0 || p.parts > 1) {
                    __syncthreads(); // all threads have left the weights
                    finite = __syncthreads_and(stage<WHOLE>(kd, first)) && finite;
                }
                stand(step);
                const int d = depth * p.stride[0] + p.start[0] + kd * p.dilation[0];
                if (exists<WHOLE>() && inside(d, p.x_extent[0])) accumulate<WHOLE>(sums, d, first);
            }
            stand(step);
            if (!exists<WHOLE>()) continue;
            if (finite) write_all<WHOLE>(sums);
            else write_inside<WHOLE>();
        }
    }
    template <bool WHOLE> DEVICE bool exists() const { return rows > 0 && channel<WHOLE>(0) < p.channels; }
    DEVICE void run() {
        constexpr int kBytes = sizeof(Loaded);
        if (p.in_vectors && reinterpret_cast<unsigned long long>(p.x) % kBytes == 0
            && vectors_aligned(p.finish, p.y, kBytes))
            make<true>();
        else make<false>();
    }
};

template <class T, class Acc, int STRIDE, int TAPS, int COLUMNS>
DEVICE void conv_channels(const ConvChannelsParams& p) {
    extern __shared__ __align__(16) unsigned char shared[];
    Channels<T, Acc, STRIDE, TAPS, COLUMNS>(p, shared).run();
}
