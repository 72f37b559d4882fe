// Conv of few channels a group, depthwise above all, as a direct sum; ConvTranspose of stride 1 with turned taps.
//
// A block makes a tile of outputs of one or several neighbouring groups: it copies the inputs that these meet, each
// once, to shared memory, with zeros where there is padding, and the weights beside them. A thread then makes FILTERS
// output channels x ROWS rows x kColumns columns in registers and meets every input row that it needs once. Lower ranks
// are of unit depth and height.
//
// Loads and stores of arrays are coalesced; inputs outside of x are predicated off and staged as zeros. Pitches in
// shared memory are chosen against bank conflicts.
//
// Forms: KERNEL > 0, both axes of the plane have so many taps and this STRIDE, all of it unrolled. KERNEL = 0 and
// STRIDE = 1, any number of taps, in chunks of kVector along the row; with LINE, of a single axis, where the thread's
// ROWS are strips of the line. STRIDE = 0, any strides and dilations, tap by tap; a thread's outputs then lie rows or
// columns apart, so that neighbouring threads make and read neighbours.
//
// A dilated Conv is several undilated ones, each of the rows and columns that lie a dilation apart: its phases. Forms
// of STRIDE = 1 make those. A block has the rows of one phase, and the columns of all phases, which neighbouring
// threads make: arrays are still met a row at a time. In shared memory the columns of a phase are neighbours, so that
// sums know nothing of dilations. Where strides divide the dilations, x is met at every stride-th place, and the same
// holds.
//
// Zero times an infinite or NaN weight would be NaN where the padding must add nothing: blocks with such a weight make
// their outputs one by one over the taps inside x (`sum_inside`).
#include "conv/finish.cuh"
#include "base/geometry.cuh"
#include "base/ptx.cuh"
#include "base/vectors.cuh"

// Strides and offsets count elements; axes are depth, row, column. Channels and filters are those of one group.
struct DirectParams {
    const void* x;
    const void* w;
    const void* b; // or null
    void* y;
    int groups, channels, filters;
    int x_batch, x_channel, x_extent[3], x_stride[3];
    int y_batch, y_channel, y_extent[3], y_stride[3];
    int w_first, w_group, w_filter, w_channel, w_stride[3];
    int b_stride;
    int stride[3], dilation[3], start[3]; // input coordinate: q * stride + start + tap * dilation
    int lead;      // taps before the first window, so that inputs stay aligned; counted in `start`
    int step;      // channels of a group in shared memory at a time
    int extent[3]; // of x in shared memory; of the columns with those that fill vectors up
    int phase_pitch, row_pitch, depth_pitch, channel_pitch; // columns of one phase are neighbours there
    int strip;                                              // of a line, from one to the next there
    int weights;                                            // where the weights begin
    int filter_weights, filter_pitch; // of FILTERS filters: how many, and to those of the next ones
    int lanes[3], row_lanes; // log2 of the threads that copy one row by one, two or four elements; of rows at a time
    int x_width, y_width;    // neighbours of a row that lie in one vector, as strides, extents and pads have it
    int outputs[3];          // of a block, along each axis
    int spread_row, spread_column;                       // from one output of a thread to the next
    int groups_here, filter_bits;                        // of a block; log2 of its tiles of filters
    Divider<int> tiles[3];                               // of threads in the block
    Divider<int> blocks[3], filter_blocks, group_blocks; // the rest are images
    Divider<int> taps[3], by_step;                       // weights; of the row with those that fill vectors up
    Divider<int> row_phases, column_phases;              // blocks that have one phase of rows each; columns
    int row_taps;
    int y_step; // from one row of a thread to the next in y
    Finish finish;
};

template <int BYTES> DEVICE bool aligned(const void* pointer) {
    return reinterpret_cast<unsigned long long>(pointer) % BYTES == 0;
}

template <class T, class Acc, int FILTERS, int ROWS, int KERNEL, int STRIDE, bool LINE> struct Direct {
    static constexpr int kThreadBits = 7, kThreads = 1 << kThreadBits;
    static constexpr int kVector = 16 / sizeof(Acc);
    static constexpr int kColumns = kVector;
    static constexpr bool kChunked = KERNEL == 0 && STRIDE == 1; // kVector taps of a row lie above those of the next
    static constexpr bool kDeep = FILTERS > 1; // more than one channel a group, not all staged at once
    static constexpr bool kDilates = STRIDE == 1;
    static constexpr int kPhases = STRIDE == 0 ? 1 : STRIDE; // of columns that are read together
    // Windows of the unrolled form begin so far into a vector that inputs with equal padding stay aligned.
    static constexpr int kLead = (kVector - KERNEL / 2 % kVector) % kVector;

    using Vector = Elements<Acc, kVector>;

    const DirectParams& p;
    Acc* shared;
    int block[3], row_phase, filter_block, group_block, image; // of the block
    int tile[3], column_phase, group_tile, filter_tile;        // of the thread in it
    Acc sums[FILTERS][ROWS][kColumns];

    DEVICE Direct(const DirectParams& p, void* shared) : p(p), shared(static_cast<Acc*>(shared)), sums{} {}

    // Finds the tile, anew wherever that is better than keeping it in registers.
    DEVICE void stand() {
        int rest = block_number();
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) rest = p.blocks[axis].split(rest, block[axis]);
        image = p.group_blocks.split(p.filter_blocks.split(rest, filter_block), group_block);
        row_phase = column_phase = 0;
        if constexpr (kDilates) block[1] = p.row_phases.split(block[1], row_phase);
        rest = thread_number();
        filter_tile = rest & (filters_here() - 1); // neighbours read the same inputs
        rest >>= p.filter_bits;
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) rest = p.tiles[axis].split(rest, tile[axis]);
        if constexpr (kDilates) tile[2] = p.column_phases.split(tile[2], column_phase);
        group_tile = rest;
    }

    // ---- where things stand

    static constexpr int kTileRows = LINE || STRIDE == 0 ? 1 : ROWS;
    // From one row or column of a thread to the next.
    DEVICE int row_step() const { return kDilates ? p.spread_row : 1; }
    DEVICE int column_step() const { return kDilates ? p.spread_column : 1; }
    // Columns of a strip, of all phases.
    DEVICE int width() const { return int(p.tiles[2].divisor) * kColumns; }
    DEVICE int kernel_rows() const { return int(p.taps[1].divisor); }
    DEVICE int kernel_columns() const { return int(p.taps[2].divisor); }
    DEVICE int filters_here() const { return 1 << p.filter_bits; }
    DEVICE int group() const { return group_block * p.groups_here + group_tile; }
    DEVICE int filter() const { return (filter_block * filters_here() + filter_tile) * FILTERS; }
    DEVICE bool works() const { return group_tile < p.groups_here && group() < p.groups && filter() < p.filters; }
    // First output of the block along an axis.
    DEVICE int first(int axis) const { return block[axis] * p.outputs[axis] + (axis == 1 ? row_phase : 0); }
    DEVICE int depth() const { return first(0) + tile[0]; }
    DEVICE int row(int r, int j) const {
        if constexpr (STRIDE == 0) return first(1) + tile[1] + j * p.spread_row;
        return first(1) + (tile[1] * kTileRows + (LINE ? 0 : r)) * row_step();
    }
    DEVICE int column(int r, int j) const {
        if constexpr (STRIDE == 0) return first(2) + tile[2] + j * p.spread_column;
        return first(2) + (LINE ? r * width() : 0) + column_phase + (tile[2] * kColumns + j) * column_step();
    }
    DEVICE int channel() const { return group() * p.filters + filter(); }
    DEVICE int offset(int f, int r, int j) const {
        return image * p.y_batch + (channel() + f) * p.y_channel + depth() * p.y_stride[0] + row(r, j) * p.y_stride[1]
             + column(r, j);
    }
    DEVICE bool exists(int f, int r, int j) const {
        return filter() + f < p.filters && depth() < p.y_extent[0] && row(r, j) < p.y_extent[1]
            && column(r, j) < p.y_extent[2];
    }

    // ---- to shared memory

    // Where a column of a staged row stands. Several together have one phase, or two in turn.
    template <int WIDTH> DEVICE int place(int at) const {
        if constexpr (STRIDE == 1 && WIDTH > 1) return at;
        if constexpr (STRIDE == 2) return at % 2 * p.phase_pitch + at / 2;
        int phase;
        const int number = p.column_phases.split(at, phase);
        return phase * p.phase_pitch + number;
    }
    // Steps of a thread: in rows of x, in x and in shared memory, and how many.
    struct Run { int height, source, target, count; };
    // Copies so many contiguous channels of x, WIDTH elements of a row at a time. Threads go along a row (coalesced),
    // then to further rows, then to further channels; each goes on from there, first along the longer one of the two.
    template <int WIDTH> DEVICE void stage_inputs(const T* x, int planes) const {
        const int lanes = p.lanes[WIDTH / 2], rows = min(kThreadBits - lanes, p.row_lanes),
                  channels = kThreadBits - lanes - rows;
        const int lane = threadIdx.x & ((1 << lanes) - 1), line = threadIdx.x >> lanes;
        const int row = line & ((1 << rows) - 1), plane = line >> rows;
        const int step = kDilates ? p.dilation[1] : 1; // from one staged row to the next, in x
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
    template <int WIDTH> DEVICE void put(Acc* target, const T (&values)[WIDTH]) const {
        constexpr int kPart = WIDTH / kPhases; // neighbours of one phase
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
    // Copies the weights of some channels, with zeros for what is none; returns whether all of them are finite.
    DEVICE bool stage_weights(int first_channel) const {
        const T* w = static_cast<const T*>(p.w) + p.w_first;
        const int count = p.groups_here * filters_here() * p.filter_weights;
        bool finite = true;
#pragma unroll 1
        for (int number = threadIdx.x; number < count; number += kThreads) {
            int tap[3], channel, f, g, rest = number; // the taps of a filter, which lie next to each other in w, first
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

    // Of a window's first and last vector the compiler loads only what is used, in the same number of wavefronts.
    static DEVICE Vector load(const Acc* source) { return *reinterpret_cast<const Vector*>(source); }

    // One input row of the unrolled form meets every row of the kernel that an output row has there.
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
    // kVector taps of the row from kw on; those of output row r belong to kernel row i - r. Do all of them exist?
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

    // Rows of the thread's phase from one on.
    DEVICE int rows_from(int row) const {
        const int rows = p.y_extent[1] - row, apart = int(p.row_phases.divisor);
        return kDilates ? p.row_phases.quotient(rows + apart - 1) : rows;
    }
    // Where the thread's first output stands, in y and among the channels, and how far they go on: in rows, or along a
    // line in columns; in columns; in filters. It stays in registers during the sums.
    struct Output { int offset, channel, left, columns, filters; };
    DEVICE Output output() const {
        const bool here = works() && exists(0, 0, 0);
        const int columns = p.y_extent[2] - column(0, 0), rows = LINE ? columns : rows_from(row(0, 0));
        return {offset(0, 0, 0), channel(), here ? rows : 0, columns, p.filters - filter()};
    }
    DEVICE Acc bias(int channel, bool exists) const {
        return p.b == nullptr || !exists ? Acc(0) : widen(static_cast<const T*>(p.b)[channel * p.b_stride]);
    }
    DEVICE int further(int f, int r) const {
        return f * p.y_channel + r * (LINE ? width() : kDilates ? p.y_step : p.y_stride[1]);
    }
    DEVICE void store(T* target, Acc sum) const {
        if (p.finish.any()) sum = finished(p.finish, p.y, sum, target);
        *target = narrow<T>(sum);
    }
    DEVICE int taken(int r) const { return LINE ? r * width() : r; }
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
    // A warp transposes its vectors in shared memory, so that its stores are coalesced: those of one filter contiguous,
    // and a gap of one vector after each eight, so that neither side has bank conflicts. Of several phases, the columns
    // of as many neighbouring lanes alternate.
    DEVICE void write_turned(const Output& out) const {
        constexpr unsigned kAll = 0xffffffffu;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles = 32 >> p.filter_bits;
        Acc* piece = shared + p.weights + (warp - kThreads / 32) * (36 * kVector);
        const int place = (lane & (filters_here() - 1)) * tiles + (lane >> p.filter_bits);
        int sources[kVector], targets[kVector], left[kVector], filters[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) { // of the lane whose element this lane writes
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
    // Takes the vectors of one filter in groups of one for each phase, and of a group the first column of each, then
    // the next ones. Vectors that are too few for a group stay one after another.
    DEVICE void alternate(int tiles, int& vector, int& j) const {
        const int before = vector & -tiles, phases = p.spread_column;
        int phase;
        const int number = p.column_phases.split((vector - before) * kVector + j, phase), group = number / kVector;
        if ((group + 1) * phases > tiles) return;
        vector = before + group * phases + phase;
        j = number % kVector;
    }
    DEVICE void write_spread() const {
        if (!works()) return;
#pragma unroll
        for (int f = 0; f < FILTERS; ++f)
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
                if (exists(f, 0, j))
                    store(static_cast<T*>(p.y) + offset(f, 0, j), sums[f][0][j] + bias(channel() + f, true));
    }

    // ---- weights that are not finite

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

    DEVICE void run() {
        bool finite = true;
        int channel = 0;
        Output out;
        do {
            if (channel > 0) __syncthreads(); // all have left what is replaced now
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
