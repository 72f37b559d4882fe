// Bands of inputs in shared memory: all that a tile of outputs meets through all taps, read once, pixel by pixel.
//
// A tile has columns along three axes. Along the outermost one the images follow each other, so that tiles of small
// images have rows of several: its columns are counted through all images, and so are the inputs that these meet, with
// those in the padding, which each image has for itself. A pixel of the box has the block's channels contiguous, filled
// up with zeros to whole fragments along K, and 16 bytes between it and the next: ldmatrix reads eight neighbours
// without bank conflicts.
#pragma once
#include "conv/gather.cuh"
#include "base/ptx.cuh"

// How the outputs are cut into tiles.
struct Bands {
    int images;
    int channels;         // of a block: those of all its groups
    int depths;           // fragments along K that these fill
    int box_pitch[2];     // pixels in memory from one step along the outer axes of the box to the next
    Divider<int> tile[3]; // columns of a tile
    Divider<int> box[3];  // inputs that they meet
    Divider<int> pixels;  // of the box
    Divider<int> tiles[3];
    Divider<int> image_columns; // of one image along the outermost axis
    Divider<int> image_inputs;  // that these meet
};

template <class T, int THREADS> struct Band {
    static constexpr int kChunk = 16 / sizeof(T), kDepth = 2 * kChunk; // elements; a fragment has two chunks along K
    static constexpr int kGap = 16;                                    // bytes between pixels

    const Correlation<int, 3>& p;
    const Taps<int, 3>& taps;
    const Bands& bands;
    unsigned memory; // where the box begins
    const T* x;      // the block's channels
    int lowest[3];   // input coordinate that column 0 meets first
    int first[3];    // columns of the tile: through all images, in an image
    int above;       // inputs before the tile's first one, through all images

    DEVICE Band(const Correlation<int, 3>& p, const Taps<int, 3>& taps, const Bands& bands, unsigned memory)
        : p(p), taps(taps), bands(bands), memory(memory) {}
    DEVICE void stand(int first_group) {
        x = static_cast<const T*>(p.x) + first_group * p.channels * p.x_channel;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) lowest[axis] = taps.start[axis] - before(axis);
    }
    // Inputs that the taps along an axis lead back to.
    DEVICE int before(int axis) const {
        const int last = (int(taps.count[axis].divisor) - 1) * taps.advance[axis];
        return last < 0 ? -last : 0;
    }
    DEVICE int pitch() const { return bands.depths * 32 + kGap; }
    DEVICE int tiles() const { return int(bands.tiles[0].divisor * bands.tiles[1].divisor * bands.tiles[2].divisor); }
    DEVICE void go_to(int number) {
        int at[3];
        unravel<3>(number, bands.tiles, at);
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) first[axis] = at[axis] * int(bands.tile[axis].divisor);
        above = inputs_above(first[0]);
    }
    // Inputs that come, through all images, before the first one that a column meets.
    DEVICE int inputs_above(int column) const {
        int inside_image;
        const int image = bands.image_columns.split(column, inside_image);
        return image * int(bands.image_inputs.divisor) + inside_image * p.stride[0];
    }

    // ---- outputs

    // One column of the tile, which may be none.
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
    // Where the inputs of a column begin in shared memory; somewhere in the box if there is no such column.
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
    // Bytes from the inputs that a column begins with to those of a tap.
    DEVICE int away(const int (&tap)[3]) const {
        int step[3];
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) step[axis] = before(axis) + tap[axis] * taps.advance[axis];
        return number(step[0], step[1], step[2]) * pitch();
    }

    // ---- inputs

    // Where a pixel of the box belongs, and where it stands in x; false if in the padding.
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
    // Whether channels can be copied 16 bytes at a time, wherever a pixel stands.
    DEVICE bool whole_chunks() const {
        const int steps = p.x_batch | p.x_stride[0] | p.x_stride[1] | p.x_stride[2] | bands.channels;
        return p.x_channel == 1 && steps % kChunk == 0 && reinterpret_cast<unsigned long long>(x) % 16 == 0;
    }
    // Goes to a tile, if there is one, and starts to read its box.
    DEVICE void start(int tile) {
        if (tile < tiles()) {
            go_to(tile);
            if (whole_chunks()) copy_chunks();
            else gather();
        }
        copy_async_commit();
    }
    // Neighbouring threads copy the chunks of a pixel.
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
    // Neighbouring threads read neighbouring pixels, the channels of a fragment each, for two fragments at a time.
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
    DEVICE void read(int item, int items, unsigned& target, unsigned (&values)[kDepth]) const {
        int pixel;
        const int depth = bands.pixels.split(item, pixel);
        const T* source;
        const bool exists = find(pixel, target, source) && item < items;
        const int left = exists ? bands.channels - depth * kDepth : 0;
        target += depth * 32;
        int step = p.x_channel * int(sizeof(T));
        keep(step); // its multiples are not kept over the main loop
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
