// Conv with few channels per group, mainly depthwise, in NCHW, as a direct sum in FFMA; also ConvTranspose of stride 1,
// with its taps reversed. A block stages the inputs of its output tile (with halo) and the weights in shared memory,
// once.
//
// Block: a tile of outputs (depth x rows x columns) of one or several adjacent groups and some filters. Thread: FILTERS
// output channels x ROWS rows x kColumns columns, in registers. 1-D and 2-D problems have depth or height 1.
//
//     global x -> shared x[channel][depth][row][column], widened, zeros for padding  \
//                                                                                     FFMA -> registers -> global y
//     global w -> shared w[group][filter][channel][tap], widened                     /
//
// A thread reads each input row that it needs once, as vectors, and uses it for all its output rows. Global accesses
// are coalesced; pitches in shared memory are chosen by the planner against bank conflicts. Bound by memory for small
// kernels, by FFMA or shared memory for large ones.
//
// Forms:
// - KERNEL > 0: both axes of the plane have KERNEL taps and this STRIDE; fully unrolled.
// - KERNEL = 0, STRIDE = 1: any number of taps, in chunks of kVector taps along the row. With LINE, for one spatial
//   axis: a thread's ROWS are strips of the line.
// - STRIDE = 0: any strides and dilations, tap by tap. Outputs of a thread are several rows or columns apart, so that
//   adjacent threads compute and read adjacent elements.
//
// A Conv with dilation d is d undilated Convs per axis, one per phase: the rows (columns) with equal remainder modulo
// d. Forms of STRIDE = 1 use this. A block has the rows of one phase, and the columns of all phases, distributed over
// adjacent threads, so x and y are still accessed by whole rows. In shared memory, the columns of a phase are adjacent,
// and the main loop does not know about dilation. The same works if strides divide the dilations; then only every
// stride-th column of x is staged.
//
// Out-of-bounds inputs are zeros in shared memory. Zero times an infinite or NaN weight would be NaN, although padding
// must add nothing. So blocks that find such a weight compute each output over its valid taps only (`sum_inside`).
#include "conv/finish.cuh"
#include "base/geometry.cuh"
#include "base/ptx.cuh"
#include "base/vectors.cuh"

// Axes are depth, row, column. Strides and offsets count elements; channels and filters are those of one group. Pitches
// in shared memory count words of the accumulator's type.
struct DirectParams {
    const void* x;
    const void* w;
    const void* b; // or null
    void* y;
    int groups, channels, filters;
    int x_batch, x_channel, x_extent[3], x_stride[3];
    int y_batch, y_channel, y_extent[3], y_stride[3];
    int w_first, w_group, w_filter, w_channel, w_stride[3]; // w_first: first tap (ConvTranspose: w's last)
    int b_stride;
    int stride[3], dilation[3], start[3]; // input coordinate: q * stride + start + tap * dilation
    int lead;      // zero taps before the first one, so that windows begin at whole vectors; included in `start`
    int step;      // channels of a group staged at a time
    int extent[3]; // size of the staged box of x; columns are rounded up to whole vectors
    // from one column phase, row, ... to the next, in shared memory
    int phase_pitch, row_pitch, depth_pitch, channel_pitch;
    int strip;                        // LINE: from one strip to the next, in shared memory
    int weights;                      // offset of the weights in shared memory
    int filter_weights, filter_pitch; // words of weights per FILTERS filters; pitch of these
    // log2 of the threads that copy one row by 1, 2 or 4 elements; log2 of rows copied at a time
    int lanes[3], row_lanes;
    int x_width, y_width; // widest aligned vector along a row that strides, extents and pads allow, in elements
    int outputs[3];       // outputs per block along each axis
    int spread_row, spread_column;                       // distance between adjacent outputs of a thread
    int groups_here, filter_bits;                        // groups per block; log2 of the filter tiles per block
    Divider<int> tiles[3];                               // threads per block along each axis
    Divider<int> blocks[3], filter_blocks, group_blocks; // blocks along each axis; the remaining factor is the images
    Divider<int> taps[3], by_step;                       // taps (columns include padding to whole vectors); `step`
    Divider<int> row_phases, column_phases;              // phases of rows (each in its own blocks), of columns
    int row_taps;                                        // taps along a row, without padding
    int y_step;                                          // elements of y between adjacent rows of a thread
    Finish finish;
};

template <int BYTES> DEVICE bool aligned(const void* pointer) {
    return reinterpret_cast<unsigned long long>(pointer) % BYTES == 0;
}

// One block. See the top of this file.
template <class T, class Acc, int FILTERS, int ROWS, int KERNEL, int STRIDE, bool LINE> struct Direct {
    static constexpr int kThreadBits = 7, kThreads = 1 << kThreadBits;
    static constexpr int kVector = 16 / sizeof(Acc);
    static constexpr int kColumns = kVector;
    static constexpr bool kChunked = KERNEL == 0 && STRIDE == 1; // weights: [chunk of kVector taps][kernel row][tap]
    static constexpr bool kDeep = FILTERS > 1;                   // several channels per group, possibly staged in turns
    static constexpr bool kDilates = STRIDE == 1;
    static constexpr int kPhases = STRIDE == 0 ? 1 : STRIDE; // input columns, modulo the stride, are stored apart
    // Offset of a window in its first vector. With symmetric padding, input vectors then stay aligned.
    static constexpr int kLead = (kVector - KERNEL / 2 % kVector) % kVector;

    using Vector = Elements<Acc, kVector>;

    const DirectParams& p;
    Acc* shared;
    int block[3], row_phase, filter_block, group_block, image; // coordinates of the block
    int tile[3], column_phase, group_tile, filter_tile;        // coordinates of the thread in the block
    Acc sums[FILTERS][ROWS][kColumns];

    DEVICE Direct(const DirectParams& p, void* shared) : p(p), shared(static_cast<Acc*>(shared)), sums{} {}

    // Computes all coordinates. Recomputing them is cheaper than keeping them in registers during the main loop.
    DEVICE void stand() {
        int rest = block_number();
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) rest = p.blocks[axis].split(rest, block[axis]);
        image = p.group_blocks.split(p.filter_blocks.split(rest, filter_block), group_block);
        row_phase = column_phase = 0;
        if constexpr (kDilates) block[1] = p.row_phases.split(block[1], row_phase);
        rest = thread_number();
        filter_tile = rest & (filters_here() - 1); // adjacent threads read the same inputs
        rest >>= p.filter_bits;
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) rest = p.tiles[axis].split(rest, tile[axis]);
        if constexpr (kDilates) tile[2] = p.column_phases.split(tile[2], column_phase);
        group_tile = rest;
    }

    // ---- coordinates

    static constexpr int kTileRows = LINE || STRIDE == 0 ? 1 : ROWS;
    // Distance between adjacent rows, and adjacent columns, of a thread.
    DEVICE int row_step() const { return kDilates ? p.spread_row : 1; }
    DEVICE int column_step() const { return kDilates ? p.spread_column : 1; }
    // Columns of a strip or block, over all phases.
    DEVICE int width() const { return int(p.tiles[2].divisor) * kColumns; }
    DEVICE int kernel_rows() const { return int(p.taps[1].divisor); }
    DEVICE int kernel_columns() const { return int(p.taps[2].divisor); }
    DEVICE int filters_here() const { return 1 << p.filter_bits; }
    DEVICE int group() const { return group_block * p.groups_here + group_tile; }
    DEVICE int filter() const { return (filter_block * filters_here() + filter_tile) * FILTERS; }
    // Whether this thread has any outputs.
    DEVICE bool works() const { return group_tile < p.groups_here && group() < p.groups && filter() < p.filters; }
    // First output of the block along an axis.
    DEVICE int first(int axis) const { return block[axis] * p.outputs[axis] + (axis == 1 ? row_phase : 0); }
    // Output coordinates of the thread: depth; row and column of its output (r, j).
    DEVICE int depth() const { return first(0) + tile[0]; }
    DEVICE int row(int r, int j) const {
        if constexpr (STRIDE == 0) return first(1) + tile[1] + j * p.spread_row;
        return first(1) + (tile[1] * kTileRows + (LINE ? 0 : r)) * row_step();
    }
    DEVICE int column(int r, int j) const {
        if constexpr (STRIDE == 0) return first(2) + tile[2] + j * p.spread_column;
        return first(2) + (LINE ? r * width() : 0) + column_phase + (tile[2] * kColumns + j) * column_step();
    }
    // First output channel of the thread in y; offset in y, and existence, of output (f, r, j).
    DEVICE int channel() const { return group() * p.filters + filter(); }
    DEVICE int offset(int f, int r, int j) const {
        return image * p.y_batch + (channel() + f) * p.y_channel + depth() * p.y_stride[0] + row(r, j) * p.y_stride[1]
             + column(r, j);
    }
    DEVICE bool exists(int f, int r, int j) const {
        return filter() + f < p.filters && depth() < p.y_extent[0] && row(r, j) < p.y_extent[1]
            && column(r, j) < p.y_extent[2];
    }

    // ---- staging: global -> shared

    // Word of a staged row at which column `at` (the first of WIDTH columns) is stored. Columns are sorted by phase.
    template <int WIDTH> DEVICE int place(int at) const {
        if constexpr (STRIDE == 1 && WIDTH > 1) return at;
        if constexpr (STRIDE == 2) return at % 2 * p.phase_pitch + at / 2;
        int phase;
        const int number = p.column_phases.split(at, phase);
        return phase * p.phase_pitch + number;
    }
    // One loop of a thread's copies: steps in rows of x, in elements of x, in words of shared memory; number of
    // iterations.
    struct Run { int height, source, target, count; };
    // Stages `planes` contiguous channels of x, WIDTH elements of a row at a time. Threads are laid out along the row
    // first (coalesced), then over rows, then over channels. Each thread's inner loop runs over the longer one of the
    // last two.
    template <int WIDTH> DEVICE void stage_inputs(const T* x, int planes) const {
        const int lanes = p.lanes[WIDTH / 2], rows = min(kThreadBits - lanes, p.row_lanes),
                  channels = kThreadBits - lanes - rows;
        const int lane = threadIdx.x & ((1 << lanes) - 1), line = threadIdx.x >> lanes;
        const int row = line & ((1 << rows) - 1), plane = line >> rows;
        const int step = kDilates ? p.dilation[1] : 1; // rows of x between adjacent staged rows
        const Run down{step << rows, p.x_stride[1] * step << rows, p.row_pitch << rows,
                       (p.extent[1] - row + (1 << rows) - 1) >> rows};
        const Run across{0, p.x_channel << channels, p.channel_pitch << channels,
                         (planes - plane + (1 << channels) - 1) >> channels};
        const bool turned = planes >= 4;
        const Run outer = turned ? down : across, inner = turned ? across : down;
        const int h0 = first(1) * p.stride[1] + p.start[1] + row * step;
        x += plane * p.x_channel + h0 * p.x_stride[1];
        Acc* staged = shared + plane * p.channel_pitch + row * p.row_pitch;
#pragma unroll 1
        for (int depth = 0; depth < p.extent[0]; ++depth) {
            const int d = first(0) * p.stride[0] + p.start[0] + depth;
#pragma unroll 1
            for (int at = lane * WIDTH; at < p.extent[2]; at += WIDTH << lanes) {
                const int w = first(2) * p.stride[2] + p.start[2] + (kDilates && WIDTH == 1 ? at * p.stride[2] : at);
                const bool found = inside(d, p.x_extent[0]) && inside(w, p.x_extent[2]);
                const T* source = x + d * p.x_stride[0] + w;
                Acc* target = staged + depth * p.depth_pitch + place<WIDTH>(at);
                int h = h0;
#pragma unroll 1
                for (int left = outer.count; left > 0; --left) {
                    stage_run<WIDTH>(source, target, h, inner, found);
                    h += outer.height;
                    source += outer.source;
                    target += outer.target;
                }
            }
        }
    }
    // The inner loop: loads kBatch vectors ahead, then stores them. Out-of-bounds rows become zeros.
    template <int WIDTH> DEVICE void stage_run(const T* source, Acc* target, int h, const Run& run, bool found) const {
        constexpr int kBatch = WIDTH * sizeof(T) < 16 ? 8 : 4; // loads of a thread in flight
#pragma unroll 1
        for (int left = run.count; left > 0; left -= kBatch) {
            Elements<T, WIDTH> elements[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const bool real = found && i < left && inside(h, p.x_extent[1]);
                elements[i] = real ? *reinterpret_cast<const Elements<T, WIDTH>*>(source) : Elements<T, WIDTH>{};
                h += run.height;
                source += run.source;
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                if (i < left) put<WIDTH>(target, elements[i].values);
                target += run.target;
            }
        }
    }
    // Widens one vector and stores it, split by column phase.
    template <int WIDTH> DEVICE void put(Acc* target, const T (&values)[WIDTH]) const {
        constexpr int kPart = WIDTH / kPhases; // adjacent elements of one phase
        if constexpr (WIDTH == 1) {
            *target = widen(values[0]);
        } else {
#pragma unroll
            for (int phase = 0; phase < kPhases; ++phase) {
                Elements<Acc, kPart> part;
#pragma unroll
                for (int i = 0; i < kPart; ++i) part.values[i] = widen(values[i * kPhases + phase]);
                *reinterpret_cast<Elements<Acc, kPart>*>(target + phase * p.phase_pitch) = part;
            }
        }
    }
    // Stages the weights of `step` channels; zeros for those that do not exist. Returns whether all of them are finite.
    DEVICE bool stage_weights(int first_channel) const {
        const T* w = static_cast<const T*>(p.w) + p.w_first;
        const int count = p.groups_here * filters_here() * p.filter_weights;
        bool finite = true;
#pragma unroll 1
        for (int number = threadIdx.x; number < count; number += kThreads) {
            int tap[3], channel, f, g, rest = number; // adjacent threads read adjacent taps of a filter in w
#pragma unroll
            for (int axis = 2; axis >= 0; --axis) rest = p.taps[axis].split(rest, tap[axis]);
            rest = p.by_step.split(rest, channel);
            const int m = rest % FILTERS;
            f = rest / FILTERS & (filters_here() - 1);
            g = rest / FILTERS >> p.filter_bits;
            int at = number - rest * (p.filter_weights / FILTERS);
            if constexpr (kChunked)
                at += tap[2] / kVector * ((kernel_rows() - 1) * kVector) - tap[1] * (kernel_columns() - kVector);
            const int to = (g * filters_here() + f) * p.filter_pitch + at * FILTERS + m,
                      kw = kChunked ? tap[2] - p.lead : tap[2];
            g += group_block * p.groups_here;
            f = (filter_block * filters_here() + f) * FILTERS + m;
            channel += first_channel;
            Acc value = 0;
            if (g < p.groups && f < p.filters && channel < p.channels && inside(kw, p.row_taps))
                value = widen(w[g * p.w_group + f * p.w_filter + channel * p.w_channel + tap[0] * p.w_stride[0]
                                + tap[1] * p.w_stride[1] + kw * p.w_stride[2]]);
            finite = finite && is_finite(value);
            shared[p.weights + to] = value;
        }
        return finite;
    }
    // Stages inputs and weights of `step` channels. Returns whether all weights are finite.
    DEVICE bool stage(int first_channel) const {
        const int channel = group_block * p.groups_here * p.channels + first_channel;
        const int here =
            p.step < p.channels ? p.channels - first_channel : (p.groups - group_block * p.groups_here) * p.channels;
        const int most = p.step * p.groups_here, planes = here < most ? here : most;
        const T* x = static_cast<const T*>(p.x) + image * p.x_batch + channel * p.x_channel;
        if (STRIDE > 0 && p.x_width == kVector && aligned<kVector * sizeof(T)>(p.x))
            stage_inputs<STRIDE == 0 ? 1 : kVector>(x, planes);
        else if (STRIDE > 0 && p.x_width > 1 && aligned<2 * sizeof(T)>(p.x))
            stage_inputs<STRIDE == 0 ? 1 : 2>(x, planes);
        else stage_inputs<1>(x, planes);
        return stage_weights(first_channel);
    }

    // ---- sums

    // The compiler narrows loads of a window's first and last vector to the elements used; the wavefronts stay the
    // same.
    static DEVICE Vector load(const Acc* source) { return *reinterpret_cast<const Vector*>(source); }

    // Unrolled form: multiplies one input row with every kernel row that pairs it with one of the thread's output rows.
    static constexpr int kPitch = (KERNEL + kVector - 1) / kVector * kVector;
    DEVICE void take_row(const Acc* x, const Vector* weights, int i) {
        constexpr int kLast = kLead + (kColumns - 1) * STRIDE + KERNEL - 1, kVectors = kLast / STRIDE / kVector + 1;
        Vector window[kPhases][kVectors];
#pragma unroll
        for (int phase = 0; phase < kPhases; ++phase)
#pragma unroll
            for (int v = 0; v < kVectors; ++v) window[phase][v] = load(x + phase * p.phase_pitch + v * kVector);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int kh = i - r * STRIDE;
            if (kh < 0 || kh >= KERNEL) continue;
#pragma unroll
            for (int kw = 0; kw < KERNEL; ++kw)
#pragma unroll
                for (int f = 0; f < FILTERS; ++f) {
                    const int number = (kh * kPitch + kw) * FILTERS + f;
                    const Acc weight = weights[number / kVector].values[number % kVector];
#pragma unroll
                    for (int j = 0; j < kColumns; ++j) {
                        const int at = kLead + j * STRIDE + kw, element = at / STRIDE;
                        sums[f][r][j] = multiply_add(
                            weight, window[at % STRIDE][element / kVector].values[element % kVector], sums[f][r][j]);
                    }
                }
        }
    }
    // Multiplies one plane (kernel depth) of one channel.
    DEVICE void take_plane(const Acc* x, const Acc* weights) {
        if constexpr (KERNEL > 0) {
            constexpr int kWeights = KERNEL * kPitch * FILTERS / kVector;
            Vector kernel[kWeights];
#pragma unroll
            for (int v = 0; v < kWeights; ++v) kernel[v] = load(weights + v * kVector);
#pragma unroll
            for (int i = 0; i < (ROWS - 1) * STRIDE + KERNEL; ++i) take_row(x + i * p.row_pitch, kernel, i);
        } else if constexpr (STRIDE == 0) {
            take_taps(x, weights);
        } else {
            static_assert(FILTERS == 1);
            const int taps = kernel_rows(), rows = LINE ? 1 : taps + ROWS - 1, end = p.lead + p.row_taps;
#pragma unroll 1
            for (int i = 0; i < rows; ++i) {
                const bool whole = LINE || (i >= ROWS - 1 && i < taps);
                const Acc* from = weights;
#pragma unroll 1
                for (int kw = 0; kw < end; kw += kVector) {
                    const bool chunk = kw >= p.lead && kw + kVector <= end;
                    if (whole && chunk) take_chunk<true, true>(x + kw, from, i, kw);
                    else if (chunk) take_chunk<false, true>(x + kw, from, i, kw);
                    else take_chunk<false, false>(x + kw, from, i, kw);
                    from += taps * kVector;
                }
                x += p.row_pitch;
                weights += kVector;
            }
        }
    }
    // Multiplies kVector taps of an input row, from tap kw on. Input row i pairs output row r with kernel row i - r.
    // ALL_ROWS, ALL_TAPS: every such kernel row, and every such tap, exists, so no checks are needed.
    template <bool ALL_ROWS, bool ALL_TAPS> DEVICE void take_chunk(const Acc* x, const Acc* weights, int i, int kw) {
        Vector window[2];
        if constexpr (!LINE) {
            window[0] = load(x);
            window[1] = load(x + kVector);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (!ALL_ROWS && !LINE && !inside(i - r, kernel_rows())) continue;
            const Vector weight = load(weights - (LINE ? 0 : r * kVector));
            if constexpr (LINE) {
                window[0] = load(x + r * p.strip);
                window[1] = load(x + r * p.strip + kVector);
            }
#pragma unroll
            for (int k = 0; k < kVector; ++k) {
                if (!ALL_TAPS && !inside(kw + k - p.lead, p.row_taps)) continue;
#pragma unroll
                for (int j = 0; j < kColumns; ++j)
                    sums[0][r][j] = multiply_add(weight.values[k], window[(j + k) / kVector].values[(j + k) % kVector],
                                                 sums[0][r][j]);
            }
        }
    }
    // STRIDE = 0: tap by tap, with outputs `spread` apart.
    DEVICE void take_taps(const Acc* x, const Acc* weights) {
        const int spread = p.spread_row * p.stride[1] * p.row_pitch + p.spread_column;
#pragma unroll 1
        for (int kh = 0; kh < kernel_rows(); ++kh)
#pragma unroll 1
            for (int kw = 0; kw < p.row_taps; ++kw) {
                const Acc* from = x + kh * p.dilation[1] * p.row_pitch + place<1>(kw * p.dilation[2]);
                Acc weight[FILTERS];
#pragma unroll
                for (int f = 0; f < FILTERS; ++f) weight[f] = weights[(kh * kernel_columns() + kw) * FILTERS + f];
#pragma unroll
                for (int j = 0; j < kColumns; ++j)
#pragma unroll
                    for (int f = 0; f < FILTERS; ++f)
                        sums[f][0][j] = multiply_add(weight[f], from[j * spread], sums[f][0][j]);
            }
    }
    // Adds the products of all staged channels and kernel depths.
    DEVICE void accumulate(int first_channel) {
        const int channels = kDeep ? min(p.channels - first_channel, p.step) : 1;
        const Acc* x = shared + group_tile * p.step * p.channel_pitch + tile[0] * p.stride[0] * p.depth_pitch
                     + tile[1] * kTileRows * (STRIDE == 0 ? p.stride[1] : STRIDE) * p.row_pitch
                     + column_phase * p.phase_pitch + tile[2] * (STRIDE == 0 ? 1 : kColumns);
        const Acc* weights = shared + p.weights + (group_tile * filters_here() + filter_tile) * p.filter_pitch;
        const int plane = kernel_rows() * kernel_columns() * FILTERS;
#pragma unroll 1
        for (int channel = 0; channel < channels; ++channel) {
#pragma unroll 1
            for (int kd = 0; kd < int(p.taps[0].divisor); ++kd) {
                take_plane(x + kd * p.dilation[0] * p.depth_pitch, weights);
                weights += plane;
            }
            x += p.channel_pitch;
        }
    }

    // ---- writing

    // Number of rows of this thread's phase, from `row` to the end of y.
    DEVICE int rows_from(int row) const {
        const int rows = p.y_extent[1] - row, apart = int(p.row_phases.divisor);
        return kDilates ? p.row_phases.quotient(rows + apart - 1) : rows;
    }
    // The thread's first output (offset in y, channel) and what exists from there: rows (LINE: columns left on the
    // line), columns, filters. It is computed before the main loop and stays in registers.
    struct Output { int offset, channel, left, columns, filters; };
    DEVICE Output output() const {
        const bool here = works() && exists(0, 0, 0);
        const int columns = p.y_extent[2] - column(0, 0), rows = LINE ? columns : rows_from(row(0, 0));
        return {offset(0, 0, 0), channel(), here ? rows : 0, columns, p.filters - filter()};
    }
    DEVICE Acc bias(int channel, bool exists) const {
        return p.b == nullptr || !exists ? Acc(0) : widen(static_cast<const T*>(p.b)[channel * p.b_stride]);
    }
    // Elements of y between the thread's first output and filter f, row r.
    DEVICE int further(int f, int r) const {
        return f * p.y_channel + r * (LINE ? width() : kDilates ? p.y_step : p.y_stride[1]);
    }
    DEVICE void store(T* target, Acc sum) const {
        if (p.finish.any()) sum = finished(p.finish, p.y, sum, target);
        *target = narrow<T>(sum);
    }
    // Rows (LINE: columns) before output row r, to compare with Output::left.
    DEVICE int taken(int r) const { return LINE ? r * width() : r; }
    // Stores whole vectors of a row, directly from registers.
    DEVICE void write_vectors(const Output& out) const {
        T* y = static_cast<T*>(p.y) + out.offset;
#pragma unroll
        for (int f = 0; f < FILTERS; ++f) {
            const bool exists = out.left > 0 && f < out.filters;
            const Acc b = bias(out.channel + f, exists);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                Acc row[kColumns];
#pragma unroll
                for (int j = 0; j < kColumns; ++j) row[j] = sums[f][r][j] + b;
                const bool here = exists && taken(r) < out.left;
                if (p.finish.any() && here) finish_all(p.finish, p.y, row, y + further(f, r));
                if (here) store_narrowed(y + further(f, r), row);
            }
        }
    }
    // Transposes a warp's vectors in shared memory, so that stores of single elements are coalesced. In the piece, the
    // vectors of one filter are contiguous, with a gap of one vector after every eight against bank conflicts. With
    // several column phases, elements of adjacent lanes' phases alternate.
    DEVICE void write_turned(const Output& out) const {
        constexpr unsigned kAll = 0xffffffffu;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles = 32 >> p.filter_bits;
        Acc* piece = shared + p.weights + (warp - kThreads / 32) * (36 * kVector);
        const int place = (lane & (filters_here() - 1)) * tiles + (lane >> p.filter_bits);
        int sources[kVector], targets[kVector], left[kVector], filters[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) { // which lane's element this lane stores
            int vector = (lane + i * 32) / kVector, j = lane % kVector;
            sources[i] = lane + i * 32 + vector / 8 * kVector;
            if (kDilates && p.spread_column > 1) {
                alternate(tiles, vector, j);
                sources[i] = (vector + vector / 8) * kVector + j;
            }
            const int from = (vector % tiles << p.filter_bits) + vector / tiles, column = j * column_step();
            const int columns = __shfl_sync(kAll, out.columns, from);
            targets[i] = __shfl_sync(kAll, out.offset, from) + column;
            left[i] = __shfl_sync(kAll, out.left, from);
            left[i] = LINE ? left[i] - column : column < columns ? left[i] : 0;
            filters[i] = FILTERS == 1 ? 1 : __shfl_sync(kAll, out.filters, from);
        }
        T* y = static_cast<T*>(p.y);
#pragma unroll
        for (int f = 0; f < FILTERS; ++f) {
            const Acc b = bias(out.channel + f, out.left > 0 && f < out.filters);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                Acc part[kVector];
#pragma unroll
                for (int k = 0; k < kVector; ++k) part[k] = sums[f][r][k] + b;
                store_shared(piece + (place + place / 8) * kVector, part);
                __syncwarp();
#pragma unroll
                for (int i = 0; i < kVector; ++i)
                    if (taken(r) < left[i] && f < filters[i]) store(y + targets[i] + further(f, r), piece[sources[i]]);
                __syncwarp();
            }
        }
    }
    // Column phases: takes a filter's vectors in groups of one per phase, and interleaves each group's columns. Vectors
    // that are too few for a whole group keep their order.
    DEVICE void alternate(int tiles, int& vector, int& j) const {
        const int before = vector & -tiles, phases = p.spread_column;
        int phase;
        const int number = p.column_phases.split((vector - before) * kVector + j, phase), group = number / kVector;
        if ((group + 1) * phases > tiles) return;
        vector = before + group * phases + phase;
        j = number % kVector;
    }
    // STRIDE = 0: stores element by element; adjacent threads have adjacent outputs.
    DEVICE void write_spread() const {
        if (!works()) return;
#pragma unroll
        for (int f = 0; f < FILTERS; ++f)
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
                if (exists(f, 0, j))
                    store(static_cast<T*>(p.y) + offset(f, 0, j), sums[f][0][j] + bias(channel() + f, true));
    }

    // ---- weights that are not finite: every output over its valid taps only

    // Computes and stores all outputs of the thread one by one.
    DEVICE void write_inside() const {
        if (!works()) return;
#pragma unroll 1
        for (int f = 0; f < FILTERS; ++f)
#pragma unroll 1
            for (int r = 0; r < ROWS; ++r)
#pragma unroll 1
                for (int j = 0; j < kColumns; ++j)
                    if (exists(f, r, j))
                        store(static_cast<T*>(p.y) + offset(f, r, j), sum_inside(f, r, j) + bias(channel() + f, true));
    }
    // The sum of output (f, r, j) over its valid taps.
    DEVICE Acc sum_inside(int f, int r, int j) const {
        const T* x = static_cast<const T*>(p.x) + image * p.x_batch + group() * p.channels * p.x_channel;
        const T* w = static_cast<const T*>(p.w) + p.w_first + group() * p.w_group + (filter() + f) * p.w_filter;
        const int d0 = depth() * p.stride[0] + p.start[0], h0 = row(r, j) * p.stride[1] + p.start[1];
        const int w0 = column(r, j) * p.stride[2] + p.start[2] + p.lead * p.dilation[2];
        Acc sum = 0;
#pragma unroll 1
        for (int channel = 0; channel < p.channels; ++channel)
#pragma unroll 1
            for (int kd = 0; kd < int(p.taps[0].divisor); ++kd)
#pragma unroll 1
                for (int kh = 0; kh < kernel_rows(); ++kh)
#pragma unroll 1
                    for (int kw = 0; kw < p.row_taps; ++kw) {
                        const int at[3] = {d0 + kd * p.dilation[0], h0 + kh * p.dilation[1], w0 + kw * p.dilation[2]};
                        if (!inside(at[0], p.x_extent[0]) || !inside(at[1], p.x_extent[1])
                            || !inside(at[2], p.x_extent[2]))
                            continue;
                        const T weight =
                            w[channel * p.w_channel + kd * p.w_stride[0] + kh * p.w_stride[1] + kw * p.w_stride[2]];
                        const T input =
                            x[channel * p.x_channel + at[0] * p.x_stride[0] + at[1] * p.x_stride[1] + at[2]];
                        sum = multiply_add(widen(weight), widen(input), sum);
                    }
        return sum;
    }

    // For each group of channels: stage, accumulate. Then write by the widest stores that y allows.
    DEVICE void run() {
        bool finite = true;
        int channel = 0;
        Output out;
        do {
            if (channel > 0) __syncthreads(); // all threads have finished reading the previous channels
            stand();
            finite = __syncthreads_and(stage(channel)) && finite;
            out = output();
            if (works()) accumulate(channel);
            channel += p.step;
        } while (kDeep && channel < p.channels);
        if (finite) {
            if constexpr (STRIDE == 0) write_spread();
            else if (p.y_width == kVector && vectors_aligned(p.finish, p.y, kVector * sizeof(T))) write_vectors(out);
            else write_turned(out);
        } else {
            stand();
            write_inside();
        }
    }
};

template <class T, class Acc, int FILTERS, int ROWS, int KERNEL, int STRIDE, bool LINE>
DEVICE void conv_direct(const DirectParams& p) {
    extern __shared__ __align__(16) unsigned char shared[];
    Direct<T, Acc, FILTERS, ROWS, KERNEL, STRIDE, LINE>(p, shared).run();
}
