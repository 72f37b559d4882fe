// Depthwise Conv (one input channel per group, one or several filters) in channels-last layout, as a direct sum in
// FFMA; also depthwise ConvTranspose of stride 1, with its taps reversed. Chosen when channels are contiguous in x and
// y. Blocks stage the weights in shared memory; inputs go straight to registers.
//
// Block: a tile of pixels x a range of channels. Thread: kRows x COLUMNS pixels of one vector of channels (16 bytes of
// accumulators), in registers. Lanes run along the channels first, so that loads and stores are coalesced. Then they
// run along the row and down the column, so that inputs that threads share hit in L1.
//
//     global w -> shared weights[tap][channel], widened, some kernel rows at a time
//     for each row of x and each TAPS taps:  global x -> window[kWindow][channels] -> kRows x COLUMNS sums
//
// Each loaded window serves all of the thread's outputs. With dilation, the outputs of a thread are spaced so that they
// still share inputs. Bound by memory, by loads from L1 and shared memory, or, for large kernels, by FFMA.
//
// Forms: STRIDE = 1 or 2: adjacent windows overlap, shifted by STRIDE taps. STRIDE = 0: any strides and dilations, one
// tap at a time.
//
// Out-of-bounds inputs are zeros in the window. Zero times an infinite or NaN weight would be NaN, although padding
// must add nothing. So blocks that find such a weight compute each output over its valid taps only (`sum_inside`).
//
// If vectors of channels are incomplete or unaligned, or if a channel of x has several filters, elements are loaded and
// stored one by one. A thread's channels are then `vectors` apart, so that adjacent lanes still access adjacent
// channels.
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
    int channels; // channels of y
    int x_batch, x_channel, x_extent[3], x_stride[3];
    int y_batch, y_channel, y_extent[3], y_stride[3];
    int w_first, w_group, w_filter, w_stride[3]; // w_first: first tap (ConvTranspose: w's last)
    int b_stride;
    int stride[3], dilation[3], start[3]; // input coordinate: q * stride + start + tap * dilation
    int taps[3], step;                    // kernel size; kernel rows in shared memory at a time
    int row_advance;                      // kernel rows (taps) between adjacent output rows of a thread
    int window_step;                      // input columns between adjacent elements of a window
    int pitch;                            // words between the staged weights of adjacent taps
    int in_vectors;                // whether pixels are whole vectors of channels, with one filter per channel of x
    Divider<int> filters;          // filters per channel of x
    Divider<int> vectors, columns; // threads per block along channels and columns; the remaining threads are rows
    int rows, walk;                // rows of threads per block; row tiles that each thread processes in turn
    Divider<int> channel_blocks, column_blocks, row_blocks, depths;
    Divider<int> apart[2];            // distance between adjacent outputs of a thread: rows, columns
    Divider<int> step_taps, row_taps; // staged taps (rows x columns), taps per kernel row
    Divider<int> row_parts;           // pieces of `step` kernel rows per kernel depth
    int parts;                        // all pieces: kernel depth x row_parts
    Finish finish;
};

// One block. See the top of this file.
template <class T, class Acc, int STRIDE, int TAPS, int COLUMNS> struct Channels {
    static constexpr int kThreads = 128, kVector = 16 / sizeof(Acc);
    static constexpr int kRows = 16 / COLUMNS;
    static constexpr int kStep = STRIDE == 0 ? 1 : STRIDE, kWindow = (COLUMNS - 1) * kStep + TAPS;
    static_assert(STRIDE > 0 || TAPS == 1);

    using Loaded = Raw<kVector* int(sizeof(T))>;
    struct Sums { Acc values[kRows][COLUMNS][kVector]; };

    const ConvChannelsParams& p;
    Acc* shared;
    int image, depth, row, column; // coordinates of the thread's first output
    int lane, block_channel;       // the thread's vector in the block; the block's first channel of y
    int rows, columns;             // outputs of the thread that exist

    DEVICE Channels(const ConvChannelsParams& p, void* shared) : p(p), shared(static_cast<Acc*>(shared)) {}

    // ---- coordinates

    // The first output of a tile along an axis, and how many of its COUNT outputs exist.
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
    // Computes all coordinates. Recomputing them is cheaper than keeping them in registers during the main loop.
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
    // The thread's channel number e: adjacent (WHOLE), or `vectors` apart, so that adjacent lanes have adjacent
    // channels.
    template <bool WHOLE> DEVICE int channel(int e) const {
        return block_channel + (WHOLE ? lane * kVector + e : e * int(p.vectors.divisor) + lane);
    }
    // First element in x, and in w, that belongs to a channel of y.
    DEVICE const T* input(int of_channel) const {
        return static_cast<const T*>(p.x) + image * p.x_batch + p.filters.quotient(of_channel) * p.x_channel;
    }
    DEVICE const T* weight(int of_channel) const {
        int filter;
        const int group = p.filters.split(of_channel, filter);
        return static_cast<const T*>(p.w) + p.w_first + group * p.w_group + filter * p.w_filter;
    }

    // ---- weights

    // Stages the weights of `step` kernel rows from `first` on, channel fastest. Returns whether all of them are
    // finite.
    template <bool WHOLE> DEVICE bool stage(int kd, int first) const {
        int block;
        p.channel_blocks.split(block_number(), block);
        const int block_channel = block * int(p.vectors.divisor) * kVector;
        const int count = int(p.vectors.divisor) * kVector * int(p.step_taps.divisor);
        bool finite = true;
#pragma unroll 1
        for (int number = threadIdx.x; number < count;
             number += kThreads) { // adjacent threads read adjacent taps of a channel in w
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

    // Bit mask of the window's in-bounds elements along W; the first element is at column w. `count`: taps still
    // needed.
    DEVICE unsigned found(int w, int count) const {
        unsigned bits = 0;
#pragma unroll
        for (int c = 0; c < kWindow; ++c) bits |= unsigned(inside(w + c * p.window_step, p.x_extent[2])) << c;
        return bits & ((1u << (kWindow - TAPS + count)) - 1);
    }
    // Elements between the thread's first channel in x and its channel e (clamped to the last channel).
    DEVICE int offset(int first, int e) const {
        const int of_channel = min(first + e * int(p.vectors.divisor), p.channels - 1);
        return int(p.filters.quotient(of_channel) - p.filters.quotient(first)) * p.x_channel;
    }
    // Loads a window into registers, widened, with zeros for elements whose bit is not set.
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
                keep(first); // otherwise the compiler keeps all addresses of the window in registers
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
    // Multiplies one row of x. `i`: its kernel row for output row 0, counted from the first staged one; output row r
    // uses kernel row i - r * row_advance. `count`: taps to multiply; the window begins at the first of them.
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
    // Adds the products of the staged kernel rows, from row `first` on, at depth d of x.
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
    // Elements of y between the thread's first output and output (r, c).
    DEVICE int further(int r, int c) const {
        return r * int(p.apart[0].divisor) * p.y_stride[1] + c * int(p.apart[1].divisor) * p.y_stride[2];
    }
    // Finishes and stores COUNT adjacent channels, beginning at the thread's channel `first`.
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

    // ---- weights that are not finite: every output over its valid taps only

    // Computes and stores all outputs of the thread one by one.
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
    // The sum of output (r, c) of a channel over its valid taps.
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

    // ---- the whole block

    // Computes the block's outputs. Weights are staged once if all fit; otherwise again for each step, piece by piece.
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
                    __syncthreads(); // all threads have finished reading the previous weights
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
    // Chooses vectors or single elements, by the alignment of x, y and the residual.
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
