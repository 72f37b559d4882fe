// Bands: the inputs of one output tile, with halo, in shared memory, pixel by pixel. Each input is loaded once, and all
// taps read it there. Used by conv/gemm/grouped.cu.
//
// A tile is a box of columns along three axes. Along the outermost axis, the images are concatenated, so that tiles of
// small images span several images. Each image brings its own padding into the band.
//
//     shared band[outer][middle][inner][channels of the block], channels padded with zeros to whole fragments along K
//
// After each pixel come 16 unused bytes, so that the eight pixels of an ldmatrix fall into different banks.
#pragma once
#include "conv/gather.cuh"
#include "base/ptx.cuh"

// How outputs are divided into tiles, and the inputs that a tile needs.
struct Bands {
    int images;
    int channels;               // channels per block (of all its groups)
    int depths;                 // fragments along K that these channels fill
    int box_pitch[2];           // pixels in memory between steps along the outer and the middle axis of the box
    Divider<int> tile[3];       // columns per tile
    Divider<int> box[3];        // inputs that a tile reads, with halo
    Divider<int> pixels;        // pixels of the box
    Divider<int> tiles[3];      // tiles along each axis
    Divider<int> image_columns; // columns per image along the outermost axis
    Divider<int> image_inputs;  // inputs, with padding, that the columns of one image read along the outermost axis
};

// The band of one block. T: element type.
template <class T, int THREADS> struct Band {
    // elements per 16-byte chunk; elements per fragment along K (two chunks)
    static constexpr int kChunk = 16 / sizeof(T), kDepth = 2 * kChunk;
    static constexpr int kGap = 16; // bytes between pixels

    const Correlation<int, 3>& p;
    const Taps<int, 3>& taps;
    const Bands& bands;
    unsigned memory; // shared-memory address of the box
    const T* x;      // the block's first channel
    int lowest[3];   // lowest input coordinate that column 0 reads
    int first[3];    // first column of the tile; the outermost axis counts through all images
    int above;       // inputs before the tile's first one, counted through all images

    DEVICE Band(const Correlation<int, 3>& p, const Taps<int, 3>& taps, const Bands& bands, unsigned memory)
        : p(p), taps(taps), bands(bands), memory(memory) {}
    // Selects the block's groups.
    DEVICE void stand(int first_group) {
        x = static_cast<const T*>(p.x) + first_group * p.channels * p.x_channel;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) lowest[axis] = taps.start[axis] - before(axis);
    }
    // How far taps reach back (to lower input coordinates) along an axis.
    DEVICE int before(int axis) const {
        const int last = (int(taps.count[axis].divisor) - 1) * taps.advance[axis];
        return last < 0 ? -last : 0;
    }
    // Bytes of shared memory per pixel.
    DEVICE int pitch() const { return bands.depths * 32 + kGap; }
    DEVICE int tiles() const { return int(bands.tiles[0].divisor * bands.tiles[1].divisor * bands.tiles[2].divisor); }
    // Selects a tile.
    DEVICE void go_to(int number) {
        int at[3];
        unravel<3>(number, bands.tiles, at);
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) first[axis] = at[axis] * int(bands.tile[axis].divisor);
        above = inputs_above(first[0]);
    }
    // Number of inputs along the outermost axis, through all images, before the first one that a column reads.
    DEVICE int inputs_above(int column) const {
        int inside_image;
        const int image = bands.image_columns.split(column, inside_image);
        return image * int(bands.image_inputs.divisor) + inside_image * p.stride[0];
    }

    // ---- outputs

    // The output pixel of a column of the tile; it may not exist.
    DEVICE Pixel<int, 3> pixel(int column) const {
        Pixel<int, 3> result;
        int at[3];
        const bool within = unravel<3>(column, bands.tile, at) == 0;
        result.n = bands.image_columns.split(first[0] + at[0], result.q[0]);
        result.q[1] = first[1] + at[1];
        result.q[2] = first[2] + at[2];
        result.exists = within && result.n < bands.images && result.q[1] < int(p.extent[1].divisor)
                     && result.q[2] < int(p.extent[2].divisor);
        return result;
    }
    // Shared-memory address of a column's first input. For columns that do not exist, any address of the box.
    DEVICE unsigned place(int column) const {
        int at[3];
        if (unravel<3>(column, bands.tile, at) != 0
            || first[0] + at[0] >= bands.images * int(bands.image_columns.divisor))
            return memory;
        return memory
             + number(inputs_above(first[0] + at[0]) - above, at[1] * p.stride[1], at[2] * p.stride[2]) * pitch();
    }
    DEVICE int number(int outer, int middle, int inner) const {
        return outer * bands.box_pitch[0] + middle * bands.box_pitch[1] + inner;
    }
    // Bytes in the band between a column's first input and the input of a tap.
    DEVICE int away(const int (&tap)[3]) const {
        int step[3];
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) step[axis] = before(axis) + tap[axis] * taps.advance[axis];
        return number(step[0], step[1], step[2]) * pitch();
    }

    // ---- inputs

    // Address of a pixel of the box in shared memory and in x. Returns false if the pixel is padding.
    DEVICE bool find(int pixel, unsigned& target, const T*& source) const {
        int at[3];
        unravel<3>(pixel, bands.box, at);
        target = memory + number(at[0], at[1], at[2]) * pitch();
        const int image = bands.image_inputs.split(above + at[0], at[0]);
        at[0] += lowest[0];
        at[1] += lowest[1] + first[1] * p.stride[1];
        at[2] += lowest[2] + first[2] * p.stride[2];
        source = x + dot(at, p.x_stride, image * p.x_batch);
        return image < bands.images && inside(at[0], p.x_extent[0]) && inside(at[1], p.x_extent[1])
            && inside(at[2], p.x_extent[2]);
    }
    // Whether all pixels' channels can be copied 16 bytes at a time: channels last, strides and address aligned.
    DEVICE bool whole_chunks() const {
        const int steps = p.x_batch | p.x_stride[0] | p.x_stride[1] | p.x_stride[2] | bands.channels;
        return p.x_channel == 1 && steps % kChunk == 0 && reinterpret_cast<unsigned long long>(x) % 16 == 0;
    }
    // Selects a tile, if it exists, and starts loading its box.
    DEVICE void start(int tile) {
        if (tile < tiles()) {
            go_to(tile);
            if (whole_chunks()) copy_chunks();
            else gather();
        }
        copy_async_commit();
    }
    // cp.async: adjacent threads copy adjacent 16-byte chunks of a pixel.
    DEVICE void copy_chunks() const {
        const int chunks = 2 * bands.depths;
        int chunk = threadIdx.x % chunks, pixel = threadIdx.x / chunks;
        const int further = THREADS % chunks, pixels = THREADS / chunks;
#pragma unroll 2
        while (pixel < int(bands.pixels.divisor)) {
            const T* source;
            unsigned target;
            const bool exists = find(pixel, target, source) && chunk * kChunk < bands.channels;
            copy_async<16>(target + chunk * 16, source + chunk * kChunk, exists ? 16 : 0);
            chunk += further;
            pixel += pixels + (chunk >= chunks);
            chunk -= chunk >= chunks ? chunks : 0;
        }
    }
    // Through registers: adjacent threads read adjacent pixels, kDepth channels each, two such items at a time.
    DEVICE void gather() const {
        const int items = int(bands.pixels.divisor) * bands.depths;
#pragma unroll 1
        for (int item = threadIdx.x; item < items; item += 2 * THREADS) {
            unsigned target[2], values[2][kDepth];
#pragma unroll
            for (int i = 0; i < 2; ++i) read(item + i * THREADS, items, target[i], values[i]);
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (item + i * THREADS < items) write(target[i], values[i]);
        }
    }
    // Loads kDepth channels of one pixel; zeros past the last channel and for padding.
    DEVICE void read(int item, int items, unsigned& target, unsigned (&values)[kDepth]) const {
        int pixel;
        const int depth = bands.pixels.split(item, pixel);
        const T* source;
        const bool exists = find(pixel, target, source) && item < items;
        const int left = exists ? bands.channels - depth * kDepth : 0;
        target += depth * 32;
        int step = p.x_channel * int(sizeof(T));
        keep(step); // otherwise its multiples stay in registers during the main loop
        const char* from = reinterpret_cast<const char*>(source) + static_cast<long long>(step) * (depth * kDepth);
        if (left >= kDepth) {
#pragma unroll
            for (int k = 0; k < kDepth; ++k, from += step) values[k] = load(from);
            return;
        }
#pragma unroll
        for (int k = 0; k < kDepth; ++k, from += step) values[k] = k < left ? load(from) : 0;
    }
    static DEVICE unsigned load(const char* source) {
        if constexpr (sizeof(T) == 2) return load_half(source);
        else return *reinterpret_cast<const unsigned*>(source);
    }
    // Packs the channels of one item into 32 bytes and stores them.
    static DEVICE void write(unsigned target, const unsigned (&values)[kDepth]) {
        unsigned words[8];
#pragma unroll
        for (int k = 0; k < 8; ++k)
            words[k] = sizeof(T) == 2 ? values[2 * k % kDepth] + (values[(2 * k + 1) % kDepth] << 16) : values[k];
#pragma unroll
        for (int k = 0; k < 8; k += 4)
            store_shared(target + k * 4, make_uint4(words[k], words[k + 1], words[k + 2], words[k + 3]));
    }
};
