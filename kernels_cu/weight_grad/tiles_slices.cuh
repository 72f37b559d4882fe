// Loaders for weight_grad/tiles.cu: slices of output pixels of dy and x, global -> shared. Columns are (tap, channel)
// with the channel fastest, and the channels padded to whole units of kUnit.
//
// - ChannelSlices (channels last): stored pixel by pixel; 16 bytes of channels per cp.async. A thread copies the same
//   channels, at the same tap, of several pixels.
// - PixelSlices (any layout): stored filter by filter and column by column. A lane has its own pixels, and copies them
//   element by element, one channel of a unit after another. Where an image's pixels are contiguous in memory (NCHW),
//   several are copied at once: those of dy, and those of x for a single tap without stride and padding.
//
// A table in shared memory holds the offsets of a slice's pixels in both arrays; it is computed while earlier slices
// are multiplied. Zeros stand for out-of-bounds inputs, and for pixels, filters and columns that do not exist.
#pragma once
#include "base/matrix_rows.cuh"
#include "conv/gemm/slice_inputs.cuh"
#include "weight_grad/problem.cuh"

// Strides count elements.
struct WeightGradTileParams {
    WeightGradParams<int, 3> common;
    Divider<int> channels; // channels of a group, padded to whole units: columns per tap
    int x_group, dy_group; // strides between groups
    Divider<int> image;    // outputs per image and channel
    int dy_rows, x_rows;   // whether pixels of an image are contiguous: in dy; in x at its only tap
    int dy_chunks;         // whether pixels of dy are whole 16-byte chunks of channels
};

enum : int { kUnit = 4, kNoPixel = -0x7fffffff - 1, kNoColumn = -0x40000000 };

// Finds a column's tap, channel and displacement from tap 0. Returns false if there is no such column.
DEVICE bool find_column(const WeightGradTileParams& tile, int number, int& tap, int& channel, Standing& away) {
    const WeightGradParams<int, 3>& p = tile.common;
    tap = tile.channels.split(number, channel);
    int taps[3];
    const bool exists = unravel<3>(tap, p.count, taps) == 0 && channel < p.channels;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) away.coordinate[axis] = taps[axis] * p.dilation[axis];
    away.offset = dot(away.coordinate, p.x_stride, channel * p.x_channel);
    if (!exists) away = {0, kNoColumn, 0, 0};
    return exists;
}

// Tables in shared memory, after the slices.
template <int BLOCK_N, int BLOCK_K, int STAGES> struct WeightGradTables {
    Standing pixels[STAGES][BLOCK_K], columns[BLOCK_N / kUnit];
    int in_dy[STAGES][BLOCK_K];
    int left[BLOCK_N / kUnit]; // channels that remain from a unit's first one on
};

// What both loaders share: the block's position, and the tables. One thread per pixel fills in its entry.
template <class T, int BLOCK_N, int BLOCK_K, int STAGES> struct WeightGradPlace {
    const WeightGradTileParams& tile;
    WeightGradTables<BLOCK_N, BLOCK_K, STAGES>& tables;
    const T *x, *dy;             // of this block's group
    int filter0, column0, limit; // limit: end of this block's part of the pixels
    int next, found;             // first pixel of the slice to load next, and of the slice to enter into the table next

    DEVICE const WeightGradParams<int, 3>& p() const { return tile.common; }
    // Selects the block's group, first filter and first column.
    DEVICE void stand(int group, int filter, int column) {
        filter0 = filter;
        column0 = column;
        x = static_cast<const T*>(p().x) + group * tile.x_group;
        dy = static_cast<const T*>(p().dy) + group * tile.dy_group;
    }
    // Enters the next slice's pixels into the table.
    DEVICE void find(int stage) {
        if (threadIdx.x < BLOCK_K) {
            Output<int, 3> output;
            output.find(p(), found + int(threadIdx.x), limit);
            tables.pixels[stage][threadIdx.x] = {
                output.in_x, {output.exists ? output.origin[0] : int(kNoPixel), output.origin[1], output.origin[2]}};
            tables.in_dy[stage][threadIdx.x] = output.in_dy;
        }
        found += BLOCK_K;
    }
    // Fills the tables for the first slices.
    DEVICE void start(int first, int end) {
        next = found = first;
        limit = end;
        for (int i = threadIdx.x; i < BLOCK_N / kUnit; i += blockDim.x) {
            int tap, channel;
            find_column(tile, column0 + i * kUnit, tap, channel, tables.columns[i]);
            tables.left[i] = p().channels - channel;
        }
#pragma unroll 1
        for (int stage = 0; stage < STAGES; ++stage) find(stage);
        __syncthreads();
    }
};

// See the top of this file.
template <class T, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREADS, int STAGES>
struct ChannelSlices : WeightGradPlace<T, BLOCK_N, BLOCK_K, STAGES> {
    using Place = WeightGradPlace<T, BLOCK_N, BLOCK_K, STAGES>;
    static constexpr bool kPixelwise = true;
    static constexpr int kChunk = 16 / sizeof(T);
    static constexpr bool kTurned = sizeof(T) == 2; // chunks are XOR-swizzled by the pixel's number
    template <int WIDTH> static constexpr int kPitch = WIDTH * sizeof(T) + (kTurned ? 0 : 32); // bytes per pixel
    static constexpr int kBytesM = BLOCK_K * kPitch<BLOCK_M>, kBytes = kBytesM + BLOCK_K * kPitch<BLOCK_N>;

    unsigned buffers;
    bool aligned; // both arrays begin at a multiple of 16 bytes

    // Offset of a pixel's chunk. Pixels with fewer than 8 chunks share a 128-byte line, and all pixels of a line have
    // the same swizzle.
    template <int WIDTH> static DEVICE unsigned place(int pixel, int chunk) {
        constexpr int kOrders = WIDTH / kChunk < 8 ? WIDTH / kChunk : 8;
        const int order = pixel / (8 / kOrders) % kOrders;
        return pixel * kPitch<WIDTH> + (kTurned ? chunk ^ order : chunk) * 16;
    }
    // Prepares for the first slice. `memory`: shared-memory address of the buffers.
    DEVICE void start(int first, int end, unsigned memory) {
        Place::start(first, end);
        buffers = memory;
        aligned =
            ((reinterpret_cast<unsigned long long>(this->x) | reinterpret_cast<unsigned long long>(this->dy)) & 15)
            == 0;
    }
    // Starts to load the next slice.
    DEVICE void fetch(int stage) {
        if (aligned) copy_slice<true>(stage);
        else copy_slice<false>(stage);
        this->next += BLOCK_K;
    }
    template <bool WHOLE> DEVICE void copy_slice(int stage) const {
        const unsigned target = buffers + stage * kBytes;
        copy_dy<WHOLE>(target, stage);
        copy_x<WHOLE>(target + kBytesM, stage);
    }
    // Copies 16 bytes at once (WHOLE), or element by element.
    template <bool WHOLE> static DEVICE void copy(unsigned target, const T* source, bool exists) {
        if constexpr (WHOLE) {
            copy_async<16>(target, source, exists ? 16 : 0);
        } else {
#pragma unroll 1
            for (int i = 0; i < kChunk; ++i) copy_element(target + i * int(sizeof(T)), source + i, exists);
        }
    }
    // Copies the filters' chunks of dy.
    template <bool WHOLE> DEVICE void copy_dy(unsigned target, int stage) const {
        constexpr int kChunks = BLOCK_M / kChunk, kStep = THREADS / kChunks;
        static_assert(BLOCK_K % kStep == 0);
        const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks, filter = this->filter0 + chunk * kChunk;
        const T* source = this->dy + filter;
        const int end = filter < this->p().filters ? this->limit - this->next : 0;
#pragma unroll(WHOLE ? BLOCK_K / kStep : 1)
        for (int i = 0; i < BLOCK_K; i += kStep) {
            const int k = first + i;
            copy<WHOLE>(target + place<BLOCK_M>(k, chunk), source + this->tables.in_dy[stage][k], k < end);
        }
    }
    // Copies the columns' chunks of x.
    template <bool WHOLE> DEVICE void copy_x(unsigned target, int stage) const {
        constexpr int kChunks = BLOCK_N / kChunk, kStep = THREADS / kChunks;
        static_assert(BLOCK_K % kStep == 0);
        const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
        const int unit = chunk * kChunk / kUnit, further = chunk * kChunk % kUnit;
        const Standing away = this->tables.columns[unit];
        const T* source = this->x + (away.offset + further);
        const bool some = further < this->tables.left[unit];
#pragma unroll(WHOLE ? BLOCK_K / kStep : 1)
        for (int i = 0; i < BLOCK_K; i += kStep) {
            const int k = first + i;
            const Standing pixel = this->tables.pixels[stage][k];
            copy<WHOLE>(target + place<BLOCK_N>(k, chunk), source + pixel.offset,
                        some & meets(pixel, away.coordinate, this->p().x_extent));
        }
    }
    DEVICE void deposit(int) const {}
};

// See the top of this file.
template <class T, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREADS, int STAGES>
struct PixelSlices : WeightGradPlace<T, BLOCK_N, BLOCK_K, STAGES> {
    using Place = WeightGradPlace<T, BLOCK_N, BLOCK_K, STAGES>;
    static constexpr bool kPixelwise = false, kAsync = sizeof(T) > 2;
    static constexpr int kLine = BLOCK_K * sizeof(T),
                         kPitch = kLine + (sizeof(T) == 8 ? 32 : 0); // bytes per filter or column
    static constexpr int kBytesM = BLOCK_M * kPitch, kBytes = kBytesM + BLOCK_N * kPitch;
    static constexpr int kPixels = kAsync ? 1 : 2; // adjacent pixels per lane
    static constexpr int kLanes = BLOCK_K / kPixels, kStripes = THREADS / kLanes;
    static constexpr int kUnits = BLOCK_N / kUnit / kStripes; // units of columns per thread
    // For dy with channels last: 16 bytes of channels of a lane's pixels, which are transposed in registers. If enough
    // registers are free (kHolds), they wait there until `deposit`.
    static constexpr int kChunk = 16 / sizeof(T), kGroups = BLOCK_K / kPixels,
                         kPieces = BLOCK_M / kChunk * kGroups / THREADS;
    static constexpr bool kHolds = BLOCK_M == 64 && BLOCK_N == 64 && sizeof(T) <= 4;
    static_assert(kLine == 64 || kLine == 128);
    static_assert(BLOCK_M / kChunk % 4 == 0 && kPieces * THREADS * kChunk * kPixels == BLOCK_M * BLOCK_K);
    static_assert(kUnits * kStripes * kUnit == BLOCK_N && kLanes <= 32);

    unsigned buffers;
    int dy_width, x_width; // bytes of adjacent pixels per copy: 16, 8, or 0 for single elements
    bool chunks;           // dy is loaded by 16 bytes of channels
    uint4 held[kHolds ? kPieces : 1][kPixels];
    unsigned gathered[kAsync ? 1 : kUnits][kUnit][kAsync ? 1 : 2];

    // Offset of a chunk of a filter or column: XOR-swizzled by its number, so that one chunk of eight of them falls
    // into different banks.
    static DEVICE unsigned place(int row, int chunk) {
        if constexpr (sizeof(T) == 8) return row * kPitch + chunk * 16;
        else return row * kPitch + (chunk ^ (kLine == 64 ? row / 2 % 4 : row % 8)) * 16;
    }
    static DEVICE unsigned place_of(int row, int pixel) {
        return place(row, pixel * int(sizeof(T)) / 16) + pixel * int(sizeof(T)) % 16;
    }
    DEVICE int lane() const { return threadIdx.x % kLanes; }
    DEVICE int stripe() const { return threadIdx.x / kLanes; }
    // Prepares for the first slice, and chooses how each array is copied.
    DEVICE void start(int first, int end, unsigned memory) {
        Place::start(first, end);
        buffers = memory;
        const WeightGradParams<int, 3>& p = this->p();
        const int image = int(this->tile.image.divisor);
        dy_width = this->tile.dy_rows ? width(this->dy, (image | p.dy_channel | p.dy_batch) * int(sizeof(T))) : 0;
        chunks = this->tile.dy_chunks && reinterpret_cast<unsigned long long>(this->dy) % 16 == 0;
        x_width = this->tile.x_rows ? width(this->x, (image | p.x_channel | p.x_batch) * int(sizeof(T))) : 0;
    }
    // Usable copy width, in bytes; 0 if it is not more than one element or 8 bytes.
    static DEVICE int width(const T* address, int distances) {
        const int found = copied_at_once(address, distances);
        return found >= 8 && found > int(sizeof(T)) ? found : 0;
    }
    // Starts to load the next slice.
    DEVICE void fetch(int stage) {
        const unsigned target = buffers + stage * kBytes;
        const WeightGradParams<int, 3>& p = this->p();
        if (dy_width)
            copy_rows<BLOCK_M>(target, dy_width, this->dy + this->filter0 * p.dy_channel, p.dy_batch, p.dy_channel,
                               p.filters - this->filter0);
        else if (chunks) fetch_chunks(target, stage);
        else fetch_dy(target, stage);
        if (x_width)
            copy_rows<BLOCK_N>(target + kBytesM, x_width, this->x + this->column0 * p.x_channel, p.x_batch, p.x_channel,
                               p.channels - this->column0);
        else if (p.channels % kUnit == 0) fetch_x<true>(target + kBytesM, stage);
        else fetch_x<false>(target + kBytesM, stage);
        this->next += BLOCK_K;
    }

    // ---- several adjacent pixels per copy

    template <int ROWS>
    DEVICE void copy_rows(unsigned target, int width, const T* source, int batch, int channel, int rows) const {
        if (width == 16) copy_rows<ROWS, 16>(target, source, batch, channel, rows);
        else copy_rows<ROWS, 8>(target, source, batch, channel, rows);
    }
    // ROWS rows (filters or columns) by WIDTH bytes of pixels.
    template <int ROWS, int WIDTH>
    DEVICE void copy_rows(unsigned target, const T* source, int batch, int channel, int rows) const {
        constexpr int kPieces = kLine / WIDTH, kStep = THREADS / kPieces;
        static_assert(ROWS % kStep == 0);
        const int pixel = threadIdx.x % kPieces * (WIDTH / int(sizeof(T))), first = threadIdx.x / kPieces;
        int at;
        const int image = this->tile.image.split(this->next + pixel, at);
        const char* from = reinterpret_cast<const char*>(source + (image * batch + at + first * channel));
        const int some = this->next + pixel < this->limit ? rows : 0;
#pragma unroll
        for (int row = 0; row < ROWS; row += kStep)
            copy_async<WIDTH>(target + place_of(first + row, pixel),
                              from + static_cast<long long>(channel) * (row * int(sizeof(T))),
                              first + row < some ? WIDTH : 0);
    }

    // ---- dy by 16 bytes of channels, for each of a lane's pixels

    static DEVICE int group_of(int piece) { return (threadIdx.x + piece * THREADS) / 4 % kGroups; }
    static DEVICE int filter_of(int piece) {
        const int number = threadIdx.x + piece * THREADS;
        return (number / (4 * kGroups) * 4 + number % 4) * kChunk;
    }
    // Loads piece number `piece` of this thread: 16 bytes of channels of each of its pixels.
    DEVICE void load_chunk(int piece, int stage, uint4 (&chunk)[kPixels]) const {
        const int filter = this->filter0 + filter_of(piece);
#pragma unroll
        for (int k = 0; k < kPixels; ++k) {
            const int pixel = group_of(piece) * kPixels + k;
            const bool exists = this->next + pixel < this->limit && filter < this->p().filters;
            chunk[k] = exists ? *reinterpret_cast<const uint4*>(this->dy + (this->tables.in_dy[stage][pixel] + filter))
                              : make_uint4(0, 0, 0, 0);
        }
    }
    // Transposes a piece into rows of pixels.
    static DEVICE void store_chunk(unsigned target, int piece, const uint4 (&chunk)[kPixels]) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
            const unsigned at = target + place_of(filter_of(piece) + i, group_of(piece) * kPixels);
            if constexpr (sizeof(T) == 8)
                store_pair(at, i ? make_uint2(chunk[0].z, chunk[0].w) : make_uint2(chunk[0].x, chunk[0].y));
            else if constexpr (kAsync) store_word(at, word(chunk[0], i));
            else store_word(at, __byte_perm(word(chunk[0], i / 2), word(chunk[1], i / 2), i % 2 ? 0x7632 : 0x5410));
        }
    }
    static DEVICE unsigned word(const uint4& v, int number) {
        return number == 0 ? v.x : number == 1 ? v.y : number == 2 ? v.z : v.w;
    }
    static DEVICE void store_pair(unsigned address, const uint2& v) {
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
    }
    // Loads all pieces of the slice; they are stored at once, or by `deposit`.
    DEVICE void fetch_chunks(unsigned target, int stage) {
        if constexpr (kHolds) {
#pragma unroll
            for (int i = 0; i < kPieces; ++i) load_chunk(i, stage, held[i]);
        } else {
#pragma unroll 2
            for (int i = 0; i < kPieces; ++i) {
                uint4 chunk[kPixels];
                load_chunk(i, stage, chunk);
                store_chunk(target, i, chunk);
            }
        }
    }

    // ---- single elements

    // Loads dy element by element.
    DEVICE void fetch_dy(unsigned target, int stage) const {
        const WeightGradParams<int, 3>& p = this->p();
        const int pixel = lane() * kPixels, filters = p.filters - this->filter0;
        const T* source = this->dy + this->filter0 * p.dy_channel;
        const int (&in_dy)[BLOCK_K] = this->tables.in_dy[stage];
        if constexpr (kAsync) {
            const int end = this->next + pixel < this->limit ? filters : 0;
#pragma unroll 8
            for (int row = stripe(); row < BLOCK_M; row += kStripes)
                copy_async<sizeof(T)>(target + place_of(row, pixel), source + (in_dy[pixel] + row * p.dy_channel),
                                      row < end ? sizeof(T) : 0);
        } else {
            constexpr int kAtOnce = BLOCK_M / kStripes < 16 ? BLOCK_M / kStripes : 16;
            static_assert(BLOCK_M % (kAtOnce * kStripes) == 0);
            const int left = this->limit - this->next - pixel;
#pragma unroll 1
            for (int first = stripe(); first < BLOCK_M; first += kAtOnce * kStripes) {
                unsigned pairs[kAtOnce][2];
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) {
                    const int row = first + i * kStripes;
#pragma unroll
                    for (int k = 0; k < 2; ++k)
                        pairs[i][k] =
                            k < left && row < filters ? load_half(source + (in_dy[pixel + k] + row * p.dy_channel)) : 0;
                }
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i)
                    store_word(target + place_of(first + i * kStripes, pixel), pairs[i][0] + (pairs[i][1] << 16));
            }
        }
    }
    // The column of a unit that is copied as number i. Of two lanes whose columns are eight apart, one starts with the
    // odd column, so that their pairs of 16-bit elements fall into different banks.
    DEVICE int turned(int i) const { return kAsync ? i : i ^ stripe() % 2; }
    // Loads x element by element. WHOLE: all channels of each unit exist.
    template <bool WHOLE> DEVICE void fetch_x(unsigned target, int stage) {
        const long long step = this->p().x_channel * int(sizeof(T));
        const Standing* pixels = this->tables.pixels[stage] + lane() * kPixels;
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
            const int number = stripe() + unit * kStripes;
            const Standing away = this->tables.columns[number];
            const int left = WHOLE ? 0 : this->tables.left[number];
#pragma unroll
            for (int k = 0; k < kPixels; ++k) {
                const Standing pixel = pixels[k];
                const bool exists = meets(pixel, away.coordinate, this->p().x_extent);
                const char* source = reinterpret_cast<const char*>(this->x + (pixel.offset + away.offset));
#pragma unroll
                for (int i = 0; i < kUnit; ++i) {
                    const bool some = exists && (WHOLE || turned(i) < left);
                    const char* from =
                        kAsync ? source + step * i : source + (i % 2 ? -1 : 1) * (stripe() % 2 * step) + step * i;
                    if constexpr (kAsync)
                        copy_async<sizeof(T)>(target + place_of(number * kUnit + i, lane()), from,
                                              some ? sizeof(T) : 0);
                    else gathered[unit][i][k] = some ? load_half(from) : 0;
                }
            }
        }
    }
    // Stores to shared memory what was loaded into registers. Other elements arrive by cp.async.
    DEVICE void deposit(int stage) const {
        const unsigned target = buffers + stage * kBytes;
        if constexpr (kHolds) {
            if (!dy_width && chunks) {
#pragma unroll
                for (int i = 0; i < kPieces; ++i) store_chunk(target, i, held[i]);
            }
        }
        if constexpr (!kAsync) {
            if (x_width) return;
#pragma unroll
            for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
                for (int i = 0; i < kUnit; ++i)
                    store_word(target + kBytesM
                                   + place_of((stripe() + unit * kStripes) * kUnit + turned(i), lane() * 2),
                               gathered[unit][i][0] + (gathered[unit][i][1] << 16));
        }
    }
};
