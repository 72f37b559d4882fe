// Conv of stride 1 and ConvTranspose of any stride along H and W (undilated there), with up to eight output channels
// per group, as a direct sum in FFMA. A GEMM tile would be nearly empty there. A block stages a band of x, with its
// halo, and the weights in shared memory, and computes all filters and phases from it.
//
// ConvTranspose of stride S computes output q * S + phase (counted from the beginning of the padding) from the inputs
// q, q - 1, ... The taps are phase, phase + S, ...; all phases read the same inputs. So its phases along W are treated
// as additional filters of a Conv of stride 1 with a kernel S times shorter. Conv itself is the case S = 1. A
// "position" is an output pixel of that correlation of stride 1.
//
// Block: `height` x `width` positions of several jobs, where a job is FILTERS filters of one phase along H. Thread:
// kColumns adjacent positions x ROWS rows x FILTERS filters, in registers. Threads run along the columns, then the
// rows, then the jobs; if threads are left, groups of them ("parts") sum different channels.
//
//     global x -> shared band[channel][row][column], widened, zeros for padding  \
//                                                                                 FFMA -> registers
//     global w -> shared weights[channel][job][kernel row][chunk][tap][filter]   /
//     registers -> shared sums[filter][row][column], parts added -> global y, phases interleaved, coalesced
//
// KH kernel rows x KW taps are unrolled; longer kernels are processed in pieces of that size. Each row of the band is
// read once for all outputs of a thread, which keeps shared-memory traffic per FFMA low. Bound by instruction issue
// (FFMA) or by shared memory.
//
// Padding, and the zero taps that fill up a phase's kernel, can turn into NaN when multiplied by an infinity. Outputs
// that are not finite are recomputed over the valid taps only (`sum_inside`).
#include "conv/finish.cuh"
#include "base/geometry.cuh"
#include "base/ptx.cuh"

struct BandsAxis {
    int x_extent, x_stride, y_extent, y_stride, w_stride, kernel, taps; // taps: kernel size of the stride-1 form
    int scale, shift, advance; // input * phases = output * scale + shift + tap * advance
    Divider<int> phases;       // divisor: ConvTranspose's stride, or 1
};

// Axes are depth, row, column. Strides and offsets count elements; channels and filters are those of one group. Columns
// and rows of threads are positions (see above). Pitches and offsets in shared memory count words of the accumulator's
// type.
struct BandsParams {
    const void* x;
    const void* w;
    const void* b; // or null
    void* y;
    BandsAxis axes[3];
    int channels, filters;
    int x_batch, x_channel, y_batch, y_channel, w_group, w_filter, w_channel, b_stride;
    int start[2];    // input coordinate of the first tap at position 0: row, column
    int origin[2];   // output coordinate of phase 0 at position 0: row, column
    int fold;        // 1-D problems: the line is folded into rows of this many positions; otherwise 0
    int step, parts; // channels staged at a time; groups of threads that sum different channels
    int rows, row_pitch, channel_pitch; // size of the staged band
    int weights, channel_weights;       // offset of the weights in shared memory; words of weights per channel
    int width, height, plane;           // positions per block; words of one filter's sums
    // elements per copy along a row; if negative, x is channels last (-1: element by element; below -1: 16 bytes of
    // channels)
    int vectors;
    int channels_last;                       // whether y is channels last
    Divider<int> columns;                    // columns of the band, in units of one copy
    Divider<int> taps, chunks;               // kernel rows of the stride-1 form; chunks of KW taps in each
    Divider<int> threads_w, threads_h, jobs; // threads per block: along W, along H; jobs per block
    Divider<int> by_filters;                 // filters of a group
    Divider<int> tiles_w, tiles_h, depths, job_blocks, groups;
    Finish finish;
};

// One block. See the top of this file.
template <class T, class Acc, int FILTERS, int ROWS, int KH, int KW> struct Bands {
    static constexpr int kThreads = 128;
    static constexpr int kVector = 16 / sizeof(Acc), kColumns = kVector;
    static constexpr int kWindow = (kColumns + KW - 2) / kVector + 1; // vectors of a row that a chunk's taps read
    // words of a chunk, padded to whole vectors
    static constexpr int kTaps = (KW * FILTERS + kVector - 1) / kVector * kVector;
    static constexpr bool kWhole = KW % 4 != 0; // a kernel row is a single chunk

    using Vector = Elements<Acc, kVector>;

    const BandsParams& p;
    Acc* shared;
    int tile_w, tile_h, depth, first_job, group, image; // the block's coordinates
    int at_w, at_h, job, part;                          // the thread's position, job and channel group
    Acc sums[FILTERS][ROWS][kColumns];

    // Decodes the numbers of block and thread.
    DEVICE Bands(const BandsParams& p, void* shared) : p(p), shared(static_cast<Acc*>(shared)), sums{} {
        int rest = p.tiles_h.split(p.tiles_w.split(block_number(), tile_w), tile_h);
        rest = p.job_blocks.split(p.depths.split(rest, depth), first_job);
        first_job *= p.jobs.divisor;
        image = p.groups.split(rest, group);
        part = p.jobs.split(p.threads_h.split(p.threads_w.split(threadIdx.x, at_w), at_h), job);
    }

    // ---- staging: global -> shared

    // Row and column in x of the block's position 0. A folded line has a column only.
    DEVICE int first_row() const { return p.start[0] + (p.fold ? 0 : tile_h * p.height); }
    DEVICE int first_column() const { return p.start[1] + tile_w * p.width + tile_h * p.height * p.fold; }

    // Offset in x (without channel) of an element of the band. Returns whether it lies inside x.
    DEVICE bool find(int row, int column, int& offset) const {
        const int h = first_row() + (p.fold ? 0 : row), w = first_column() + column + row * p.fold;
        offset = h * p.axes[1].x_stride + w * p.axes[2].x_stride;
        return inside(h, p.axes[1].x_extent) && inside(w, p.axes[2].x_extent);
    }
    // NCHW: copies WIDTH adjacent elements of a row at once, for all staged channels.
    template <int WIDTH> DEVICE void stage_rows(const T* x, int count) const {
        const int all = p.rows * int(p.columns.divisor);
#pragma unroll 1
        for (int number = threadIdx.x; number < all; number += kThreads) {
            int column, offset;
            const int row = p.columns.split(number, column);
            const bool found = find(row, column * WIDTH, offset);
            copy<WIDTH>(x + offset, p.x_channel, shared + row * p.row_pitch + column * WIDTH, p.channel_pitch, found,
                        count);
        }
    }
    // Copies one vector of each of `count` channels; stores zeros if `found` is false.
    template <int WIDTH>
    static DEVICE void copy(const T* source, int step, Acc* target, int pitch, bool found, int count) {
        constexpr int kBatch = 4; // loads of a thread in flight
        int channel = 0;
#pragma unroll 1
        for (; found && channel + kBatch <= count; channel += kBatch) {
            Elements<T, WIDTH> elements[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i)
                elements[i] = *reinterpret_cast<const Elements<T, WIDTH>*>(source + i * step);
#pragma unroll
            for (int i = 0; i < kBatch; ++i) put<WIDTH>(target + i * pitch, elements[i].values);
            source += kBatch * step;
            target += kBatch * pitch;
        }
#pragma unroll 1
        for (; channel < count; ++channel) {
            const Elements<T, WIDTH> elements =
                found ? *reinterpret_cast<const Elements<T, WIDTH>*>(source) : Elements<T, WIDTH>{};
            put<WIDTH>(target, elements.values);
            source += step;
            target += pitch;
        }
    }
    // Widens and stores one vector.
    template <int WIDTH> static DEVICE void put(Acc* target, const T (&values)[WIDTH]) {
        Elements<Acc, WIDTH> words;
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) words.values[j] = widen(values[j]);
        *reinterpret_cast<Elements<Acc, WIDTH>*>(target) = words;
    }
    // NHWC: WIDTH adjacent channels per load. NEIGHBOURS adjacent threads read about one sector of channels of a pixel;
    // the others of the warp go along the row.
    static constexpr int kWidth = 16 / sizeof(T);
    // Copies the band, pixel by pixel; see above.
    template <int WIDTH, int NEIGHBOURS> DEVICE void stage_channels(const T* x, int count) const {
        const int lane = threadIdx.x % 32, first = lane % NEIGHBOURS * WIDTH;
#pragma unroll 1
        for (int row = threadIdx.x / 32; row < p.rows; row += kThreads / 32) {
            const int h = first_row() + (p.fold ? 0 : row), w = first_column() + row * p.fold;
            const T* source = x + h * p.axes[1].x_stride + w * p.axes[2].x_stride + first;
            const bool exists = inside(h, p.axes[1].x_extent);
            Acc* line = shared + first * p.channel_pitch + row * p.row_pitch;
#pragma unroll 1
            for (int column = lane / NEIGHBOURS; column < int(p.columns.divisor); column += 32 / NEIGHBOURS)
                copy_channels<WIDTH, NEIGHBOURS>(source + column * p.axes[2].x_stride, line + column,
                                                 exists && inside(w + column, p.axes[2].x_extent), count - first);
        }
    }
    // Copies the channels of one pixel that belong to this thread; zeros if `found` is false.
    template <int WIDTH, int NEIGHBOURS>
    DEVICE void copy_channels(const T* source, Acc* target, bool found, int count) const {
        using Channels = Elements<T, WIDTH>;
        constexpr int kBatch = WIDTH > 1 ? 2 : 4, kStep = NEIGHBOURS * WIDTH;
        int channel = 0;
#pragma unroll 1
        for (; found && channel + (kBatch - 1) * kStep < count; channel += kBatch * kStep) {
            Channels elements[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) elements[i] = *reinterpret_cast<const Channels*>(source + i * kStep);
#pragma unroll
            for (int i = 0; i < kBatch; ++i) target = put_channels<kStep>(target, elements[i].values);
            source += kBatch * kStep;
        }
#pragma unroll 1
        for (; channel < count; channel += kStep) {
            const Channels elements = found ? *reinterpret_cast<const Channels*>(source) : Channels{};
            target = put_channels<kStep>(target, elements.values);
            source += kStep;
        }
    }
    // Stores one vector of channels, a channel pitch apart. Returns where the thread's next channels go.
    template <int STEP, int WIDTH> DEVICE Acc* put_channels(Acc* target, const T (&values)[WIDTH]) const {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) target[j * p.channel_pitch] = widen(values[j]);
        return target + STEP * p.channel_pitch;
    }
    // Chooses the copy: vectors along rows (NCHW), 16 bytes of channels or single channels (NHWC), or single elements.
    DEVICE void stage_inputs(const T* x, int count) const {
        const unsigned long long address = reinterpret_cast<unsigned long long>(p.x);
        if (p.vectors == kVector && address % (kVector * sizeof(T)) == 0) stage_rows<kVector>(x, count);
        else if (p.vectors >= 0) stage_scalars(x, count);
        else if (p.vectors < -1 && address % 16 == 0) stage_channels<kWidth, 2>(x, count);
        else stage_channels<1, 8>(x, count);
    }
    // Element by element: for arrays whose address is less aligned than their strides allow.
    DEVICE void stage_scalars(const T* x, int count) const {
        if (p.vectors != kVector) return stage_rows<1>(x, count);
        const int all = p.rows * int(p.columns.divisor) * kVector;
#pragma unroll 1
        for (int number = threadIdx.x; number < all; number += kThreads) {
            int column, offset;
            const int row = p.columns.split(number / kVector, column), at = column * kVector + number % kVector;
            const bool found = find(row, at, offset);
            copy<1>(x + offset, p.x_channel, shared + row * p.row_pitch + at, p.channel_pitch, found, count);
        }
    }
    // Maps tap `number` of the stride-1 kernel to a tap of w. It may lie outside the kernel (then the weight is zero).
    DEVICE int tap(const BandsAxis& axis, int phase, int number) const {
        return axis.advance > 0 ? number : phase + (axis.taps - 1 - number) * int(axis.phases.divisor);
    }
    // Stages the weights of `count` channels in the order [channel][job][kernel row][chunk][tap][filter].
    DEVICE void stage_weights(const T* w, int count) const {
        const int all = p.channel_weights;
#pragma unroll 1
        for (int number = threadIdx.x; number < all; number += kThreads) {
            int chunk = 0, row, phase_h, phase_w, rest = number / kTaps;
            if (!kWhole) rest = p.chunks.split(rest, chunk);
            const int word = number % kTaps,
                      tile = p.axes[1].phases.split(first_job + p.taps.split(rest, row), phase_h);
            const int m = p.axes[2].phases.split(tile * FILTERS + word % FILTERS, phase_w);
            const int kh = tap(p.axes[1], phase_h, row), kw = tap(p.axes[2], phase_w, chunk * KW + word / FILTERS);
            const bool found =
                word < KW * FILTERS && m < p.filters && inside(kh, p.axes[1].kernel) && inside(kw, p.axes[2].kernel);
            const T* source = w + m * p.w_filter + kh * p.axes[1].w_stride + kw * p.axes[2].w_stride;
            Acc* target = shared + p.weights + number;
            copy<1>(source, p.w_channel, target, p.channel_weights, found, count);
        }
    }

    // ---- sums

    static DEVICE Vector load(const Acc* source) { return *reinterpret_cast<const Vector*>(source); }

    // The main loop's body: COUNT kernel rows of one chunk, with the band's rows from `x` on.
    template <int COUNT> DEVICE void take(const Acc* x, const Acc* weights, int pitch) {
        Vector kernel[COUNT][kTaps / kVector];
#pragma unroll
        for (int kh = 0; kh < COUNT; ++kh)
#pragma unroll
            for (int v = 0; v < kTaps / kVector; ++v) kernel[kh][v] = load(weights + kh * pitch + v * kVector);
#pragma unroll
        for (int i = 0; i < ROWS + COUNT - 1; ++i) {
            Vector window[kWindow];
#pragma unroll
            for (int v = 0; v < kWindow; ++v) window[v] = load(x + i * p.row_pitch + v * kVector);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int kh = i - r;
                if (kh < 0 || kh >= COUNT) continue;
#pragma unroll
                for (int number = 0; number < KW * FILTERS; ++number) {
                    const Acc weight = kernel[kh][number / kVector].values[number % kVector];
                    const int kw = number / FILTERS, f = number % FILTERS;
#pragma unroll
                    for (int j = 0; j < kColumns; ++j)
                        sums[f][r][j] =
                            multiply_add(weight, window[(j + kw) / kVector].values[(j + kw) % kVector], sums[f][r][j]);
                }
            }
        }
    }
    // Adds the products of COUNT kernel rows, for every p.parts-th of the staged channels.
    template <int COUNT> DEVICE void take_channels(const Acc* x, const Acc* weights, int pitch, int count) {
#pragma unroll 1
        for (int channel = part; channel < count; channel += p.parts) {
            take<COUNT>(x, weights, pitch);
            x += p.parts * p.channel_pitch;
            weights += p.parts * p.channel_weights;
        }
    }
    // Adds the products of all staged channels, in pieces of KH kernel rows and KW taps.
    DEVICE void accumulate(int count) {
        int phase;
        p.axes[1].phases.split(first_job + job, phase);
        const int stride = p.axes[1].phases.divisor, taps = p.taps.divisor,
                  rows = (p.axes[1].kernel + stride - 1 - phase) / stride;
        const int chunks = kWhole ? 1 : p.chunks.divisor, pitch = chunks * kTaps;
        const Acc* x = shared + part * p.channel_pitch + (at_h * ROWS + taps - rows) * p.row_pitch + at_w * kColumns;
        const Acc* kernel = shared + p.weights + part * p.channel_weights + (job * taps + taps - rows) * pitch;
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; ++chunk) {
            const Acc* from = x + chunk * KW;
            const Acc* weights = kernel + chunk * kTaps;
            int left = rows;
#pragma unroll 1
            for (; left >= KH; left -= KH) {
                take_channels<KH>(from, weights, pitch, count);
                from += KH * p.row_pitch;
                weights += KH * pitch;
            }
            if constexpr (KH == 3) {
                if (left == 2) take_channels<2>(from, weights, pitch, count);
            }
            if constexpr (KH <= 3) {
                if (left == 1) take_channels<1>(from, weights, pitch, count);
            }
        }
    }

    // ---- writing

    // Stores all sums to shared memory, one plane per filter. Channel groups take turns to add theirs, in a fixed
    // order.
    DEVICE void lay() const {
        Acc* target = shared + job * FILTERS * p.plane + at_h * ROWS * p.width + at_w * kColumns;
#pragma unroll 1
        for (int turn = 0; turn < p.parts; ++turn) {
            __syncthreads();
            if (turn != part) continue;
#pragma unroll
            for (int f = 0; f < FILTERS; ++f)
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    Vector& place = *reinterpret_cast<Vector*>(target + f * p.plane + r * p.width);
                    Vector sum{};
                    if (turn > 0) sum = place;
#pragma unroll
                    for (int j = 0; j < kColumns; ++j) sum.values[j] += sums[f][r][j];
                    place = sum;
                }
        }
        __syncthreads();
    }
    DEVICE Acc bias(int m) const {
        return p.b == nullptr ? Acc(0) : widen(static_cast<const T*>(p.b)[(group * p.filters + m) * p.b_stride]);
    }
    // Writes the block's outputs. Lanes go along a row of y: of one filter (NCHW), or of all filters (NHWC). Warps take
    // different rows. Returns whether this thread wrote a value that is not finite. With REPAIR, it recomputes just
    // these values.
    template <bool REPAIR> DEVICE bool write() const {
        const int all = p.width * int(p.axes[2].phases.divisor) * (p.channels_last ? p.filters : 1);
        bool suspect = false;
#pragma unroll 1
        for (int first = 0; first < (p.channels_last ? 1 : p.filters); ++first)
#pragma unroll 1
            for (int number = threadIdx.x % 32; number < all; number += 32) {
                int m = first, at = number;
                if (p.channels_last) at = p.by_filters.split(number, m);
                suspect = write_column<REPAIR>(m, at) || suspect;
            }
        return suspect;
    }
    // Writes column `at` (phases included) of filter m in this warp's rows.
    template <bool REPAIR> DEVICE bool write_column(int m, int at) const {
        int phase_w;
        const int column = p.axes[2].phases.split(at, phase_w), stride = p.axes[2].phases.divisor,
                  filter = m * stride + phase_w;
        const int phases = p.axes[1].phases.divisor, its_job = filter / FILTERS * phases - first_job;
        const int first_w = p.origin[1] + tile_w * p.width * stride + at,
                  first_h = p.origin[0] + tile_h * p.height * phases;
        const Acc* sums = shared + (its_job * FILTERS + filter % FILTERS) * p.plane + column;
        T* y = static_cast<T*>(p.y) + image * p.y_batch + (group * p.filters + m) * p.y_channel
             + depth * p.axes[0].y_stride;
        const Acc b = bias(m);
        bool suspect = false;
#pragma unroll 1
        for (int row = threadIdx.x / 32; row < p.height; row += kThreads / 32) {
            const int w = first_w + (tile_h * p.height + row) * p.fold * stride;
            if (!inside(w, p.axes[2].y_extent)) continue;
#pragma unroll 1
            for (int phase = 0; phase < phases; ++phase) {
                const int h = p.fold ? 0 : first_h + row * phases + phase;
                if (!inside(its_job + phase, int(p.jobs.divisor)) || !inside(h, p.axes[1].y_extent)) continue;
                Acc sum = sums[phase * FILTERS * p.plane + row * p.width] + b;
                const bool finite = is_finite(sum);
                if (REPAIR && finite) continue;
                if (REPAIR) sum = sum_inside(m, h, w) + b;
                suspect = suspect || !finite;
                T& target = y[h * p.axes[1].y_stride + w * p.axes[2].y_stride];
                if (p.finish.any()) sum = finished(p.finish, p.y, sum, &target);
                target = narrow<T>(sum);
            }
        }
        return suspect;
    }
    // Whether an output uses this tap, and the input coordinate that it reads.
    DEVICE bool meets(const BandsAxis& axis, int output, int tap, int& input) const {
        const int number = output * axis.scale + axis.shift + tap * axis.advance;
        int rest;
        input = axis.phases.split(number < 0 ? 0 : number, rest);
        return number >= 0 && rest == 0 && input < axis.x_extent;
    }
    // The sum of one output over its valid taps.
    DEVICE Acc sum_inside(int m, int h, int w) const {
        Acc sum = 0;
        int at[3];
#pragma unroll 1
        for (int kd = 0; kd < p.axes[0].kernel; ++kd) {
            if (!meets(p.axes[0], depth, kd, at[0])) continue;
#pragma unroll 1
            for (int channel = 0; channel < p.channels; ++channel)
#pragma unroll 1
                for (int kh = 0; kh < p.axes[1].kernel; ++kh) {
                    if (!meets(p.axes[1], h, kh, at[1])) continue;
#pragma unroll 1
                    for (int kw = 0; kw < p.axes[2].kernel; ++kw) {
                        if (!meets(p.axes[2], w, kw, at[2])) continue;
                        const int offset = at[1] * p.axes[1].x_stride + at[2] * p.axes[2].x_stride;
                        const int place = m * p.w_filter + kh * p.axes[1].w_stride + kw * p.axes[2].w_stride;
                        sum = multiply_add(widen(weights(kd, channel)[place]), widen(inputs(at[0], channel)[offset]),
                                           sum);
                    }
                }
        }
        return sum;
    }

    // ---- the whole block

    // First input of a channel at depth `at`; first weight of a channel at kernel depth `kd`.
    DEVICE const T* inputs(int at, int channel) const {
        return static_cast<const T*>(p.x) + image * p.x_batch + (group * p.channels + channel) * p.x_channel
             + at * p.axes[0].x_stride;
    }
    DEVICE const T* weights(int kd, int channel) const {
        return static_cast<const T*>(p.w) + group * p.w_group + channel * p.w_channel + kd * p.axes[0].w_stride;
    }
    // For each kernel depth and each group of channels: stage, accumulate. Then write, and repair if needed.
    DEVICE void run() {
#pragma unroll 1
        for (int kd = 0; kd < p.axes[0].kernel; ++kd) {
            int at;
            if (!meets(p.axes[0], depth, kd, at)) continue;
#pragma unroll 1
            for (int first = 0; first < p.channels; first += p.step) {
                const int count = min(p.step, p.channels - first);
                __syncthreads(); // all threads have finished reading the previous channels
                stage_inputs(inputs(at, first), count);
                stage_weights(weights(kd, first), count);
                __syncthreads();
                if (part < p.parts) accumulate(count);
            }
        }
        lay();
        if (write<false>()) write<true>();
    }
};

template <class T, class Acc, int FILTERS, int ROWS, int KH, int KW> DEVICE void conv_bands(const BandsParams& p) {
    extern __shared__ __align__(16) unsigned char shared[];
    Bands<T, Acc, FILTERS, ROWS, KH, KW>(p, shared).run();
}
