// The band of inputs for conv/gemm/stem.cu: everything that a block's outputs read, with halo, in shared memory.
//
// Channels become the first of four spatial axes of a correlation with one channel, so rows of K are (channel, depth,
// row, column) of a tap, columns fastest. A block computes a box of kPixels adjacent outputs, whose extents are powers
// of two. The input of (output, row of K) is at place(output) + table[row of K].
//
// 16-bit elements are read as aligned pairs, which begin at even columns of K. To align them, the band may be shifted
// by one element. If adjacent outputs are an odd number of columns apart, there are two copies of the band, one for
// each parity.
#pragma once
#include "conv/epilogue.cuh"
#include "base/ptx.cuh"

// which elements of x are contiguous and may be loaded as vectors
enum StemRuns { kAnyOrder, kAlongColumns, kAlongChannels };

// Axes of the correlation: channel, depth, row, column. Strides count elements.
struct StemParams {
    Correlation<int, 4> common;
    Taps<int, 4> taps;
    Divider<int> tiles[3];               // boxes along depth, rows and columns of the outputs
    int row_bits, column_bits;           // log2 of a box's rows and columns
    int runs, lead;                      // a StemRuns; unneeded elements at the beginning of the first vector of a row
    Divider<int> chunks;                 // vectors per row of the band (kAlongChannels: of a row with all channels)
    Divider<int> band_rows, band_depths; // rows and depths of the band
    int band_columns, units;             // columns of the band; vectors of all its rows
    int pitch[3];                        // elements of the band between channels, depths, rows
    int shift, copies;                   // elements by which the first copy is shifted; number of copies
    int copy_bytes, band_bytes;          // bytes of one copy, and of all
    Divider<int> steps_of_row;           // table entries per row of taps
    int steps, step_bytes;               // table entries; bytes of the band between two entries of one row
    int channel_vectors, pixel_vectors;  // whether channels, or columns, of y form whole vectors (if y is aligned)
    int passes;                          // passes of BLOCK_M output channels
};

// The block's box of outputs.
template <class T, int THREADS> struct StemBox {
    static constexpr int kPixelBits = 8, kPixels = 1 << kPixelBits;
    static constexpr int kVector = 16 / sizeof(T); // elements per 16-byte vector

    const StemParams& p;
    int image, first[3]; // the box's image and first output

    DEVICE StemBox(const StemParams& p, int number) : p(p) {
        image = unravel<3>(number, p.tiles, first);
        first[0] <<= kPixelBits - p.row_bits - p.column_bits;
        first[1] <<= p.row_bits;
        first[2] <<= p.column_bits;
    }
    // Coordinates of an output in the box, columns fastest.
    DEVICE void split(int number, int (&at)[3]) const {
        at[2] = number & ((1 << p.column_bits) - 1);
        at[1] = number >> p.column_bits & ((1 << p.row_bits) - 1);
        at[0] = number >> (p.column_bits + p.row_bits);
    }
    // The output pixel number `number` of the box; it may not exist.
    DEVICE Pixel<int, 4> pixel(int number) const {
        int at[3];
        split(number, at);
        Pixel<int, 4> result{image, {}, true};
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            result.q[axis + 1] = first[axis] + at[axis];
            result.exists = result.exists && result.q[axis + 1] < int(p.common.extent[axis + 1].divisor);
        }
        return result;
    }
    // Offset in bytes of an output's first input in the band.
    DEVICE int place(int number) const {
        int at[3];
        split(number, at);
        const int elements = at[0] * p.common.stride[1] * p.pitch[1] + at[1] * p.common.stride[2] * p.pitch[2]
                           + at[2] * p.common.stride[3] + (p.runs == kAlongColumns ? p.lead : 0) - p.shift;
        if constexpr (sizeof(T) > 2) return elements * int(sizeof(T));
        return (elements & ~1) * int(sizeof(T)) + (elements & 1) * p.copy_bytes;
    }
    // Fills the table with the offset in bytes of each step of K. Entries past the last step repeat entry 0; their
    // weights are zero.
    DEVICE void fill_table(int* table, int entries) const {
        for (int i = threadIdx.x; i < entries; i += THREADS) {
            int along, tap[3];
            const int row = p.steps_of_row.split(i < p.steps ? i : 0, along);
            tap[0] = p.taps.count[1].split(p.taps.count[2].split(row, tap[2]), tap[1]);
            const int elements =
                tap[0] * p.pitch[0] + tap[1] * p.taps.advance[1] * p.pitch[1] + tap[2] * p.taps.advance[2] * p.pitch[2];
            table[i] = elements * int(sizeof(T)) + along * p.step_bytes;
        }
    }

    // ---- filling the band

    // One 16-byte vector of a row of the band, and its source in x.
    struct Chunk {
        const T* source; // column 0 of the row in x
        int column, end; // first element within the row; elements that x has there (0 if the row is out of bounds)
        int place;       // offset of the row in the band, in elements
        int at;          // first element within the band's row
    };

    // Decodes a vector's number. CHANNELS: rows are interleaved with their channels (kAlongChannels).
    template <bool CHANNELS> DEVICE Chunk chunk(const T* x, int number) const {
        Chunk result;
        int k, row, depth;
        const int channel = p.band_depths.split(p.band_rows.split(p.chunks.split(number, k), row), depth);
        result.place = channel * p.pitch[0] + depth * p.pitch[1] + row * p.pitch[2];
        depth += first[0] * p.common.stride[1] + p.taps.start[1];
        row += first[1] * p.common.stride[2] + p.taps.start[2];
        const bool found = inside(depth, p.common.x_extent[1]) && inside(row, p.common.x_extent[2]);
        const int wide = CHANNELS ? int(p.taps.count[0].divisor) : 1;
        result.at = k * kVector - (CHANNELS ? p.lead : 0);
        result.column = (first[2] * p.common.stride[3] + p.taps.start[3]) * wide - p.lead + k * kVector;
        result.end = found ? p.common.x_extent[3] * wide : 0;
        result.source = x;
        if (found)
            result.source += channel * p.common.x_stride[0] + depth * p.common.x_stride[1] + row * p.common.x_stride[2];
        return result;
    }
    // Fills the band with the inputs of this block, zeros where they are out of bounds.
    DEVICE void fill_band(unsigned char* band, const T* x) const {
        x += image * p.common.x_batch;
        const bool aligned = reinterpret_cast<unsigned long long>(x) % 16 == 0;
        const unsigned target = shared_address(band);
        if (p.runs == kAlongColumns && aligned) fill<false, true>(target, x);
        else if (p.runs != kAlongChannels) fill<false, false>(target, x);
        else if (aligned) fill<true, true>(target, x);
        else fill<true, false>(target, x);
    }
    // CHANNELS: as above. VECTORS: x is aligned, so each vector is one load.
    template <bool CHANNELS, bool VECTORS> DEVICE void fill(unsigned target, const T* x) const {
        constexpr int kBatch = VECTORS ? 4 : 2; // vectors in flight per thread
        if constexpr (sizeof(T) > 2) {
#pragma unroll 1
            for (int i = threadIdx.x; i < p.units; i += THREADS)
                copy_chunk<CHANNELS, VECTORS>(target, chunk<CHANNELS>(x, i));
        } else {
#pragma unroll 1
            for (int i = threadIdx.x; i < p.units; i += kBatch * THREADS) {
                uint4 values[kBatch];
                int places[kBatch], columns[kBatch];
#pragma unroll
                for (int j = 0; j < kBatch; ++j) {
                    if (i + j * THREADS >= p.units) break;
                    const Chunk one = chunk<CHANNELS>(x, i + j * THREADS);
                    values[j] = load_chunk<CHANNELS, VECTORS>(one);
                    places[j] = one.place;
                    columns[j] = one.at;
                }
#pragma unroll
                for (int j = 0; j < kBatch; ++j) {
                    if (i + j * THREADS >= p.units) break;
                    if constexpr (CHANNELS) spread_chunk(target, places[j], columns[j], values[j]);
                    else store_chunk(target, places[j] + columns[j], values[j]);
                }
            }
        }
    }
    // kAlongChannels: position in the band of element `at` of a row with its channels interleaved. Returns whether the
    // band needs it.
    DEVICE bool spread(int at, int& place) const {
        int channel;
        const int column = p.taps.count[0].split(at, channel);
        place += channel * p.pitch[0] + column;
        return at >= 0 && column < p.band_columns;
    }
    // Copies one vector asynchronously (elements above 16 bits).
    template <bool CHANNELS, bool VECTORS> DEVICE void copy_chunk(unsigned target, const Chunk& one) const {
        if constexpr (VECTORS && !CHANNELS) {
            const bool exists = inside(one.column, one.end);
            copy_async<16>(target + (one.place + one.at) * int(sizeof(T)),
                           exists ? one.source + one.column : one.source, exists ? 16 : 0);
        } else {
            const int stride = CHANNELS ? 1 : p.common.x_stride[3];
#pragma unroll
            for (int i = 0; i < kVector; ++i) {
                int place = one.place;
                bool wanted = true;
                if constexpr (CHANNELS) wanted = spread(one.at + i, place);
                else place += one.at + i;
                const bool exists = inside(one.column + i, one.end);
                const T* source = exists ? one.source + (one.column + i) * stride : one.source;
                if (wanted) copy_async<sizeof(T)>(target + place * int(sizeof(T)), source, exists ? sizeof(T) : 0);
            }
        }
    }
    // Loads one vector into registers (16-bit elements).
    template <bool CHANNELS, bool VECTORS> DEVICE uint4 load_chunk(const Chunk& one) const {
        if constexpr (VECTORS) {
            return inside(one.column, one.end) ? *reinterpret_cast<const uint4*>(one.source + one.column)
                                               : make_uint4(0, 0, 0, 0);
        } else {
            const int stride = CHANNELS ? 1 : p.common.x_stride[3];
            unsigned words[kVector / 2];
#pragma unroll
            for (int i = 0; i < kVector; ++i) {
                const unsigned half =
                    inside(one.column + i, one.end) ? load_half(one.source + (one.column + i) * stride) : 0;
                words[i / 2] = i % 2 == 0 ? half : words[i / 2] + (half << 16);
            }
            return make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
    // Stores a vector of interleaved channels element by element, to each copy of the band.
    DEVICE void spread_chunk(unsigned target, int row, int at, const uint4& values) const {
        const unsigned words[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            int place = row;
            if (!spread(at + i, place)) continue;
            const unsigned short half = words[i / 2] >> i % 2 * 16;
            store_shared(target + place * 2, half);
            if (p.copies == 2 && place > 0) store_shared(target + place * 2 - 2 + p.copy_bytes, half);
        }
    }
    // Stores a vector of a row, shifted by one element where a copy needs it.
    DEVICE void store_chunk(unsigned target, int place, const uint4& values) const {
        const unsigned words[4] = {values.x, values.y, values.z, values.w}, row = target + place * 2;
        if (p.shift == 0) store_shared(row, values);
        if (p.shift == 0 && p.copies == 1) return;
        const unsigned shifted = row + (p.copies == 2 ? p.copy_bytes : 0);
        if (place > 0) store_shared(shifted - 2, static_cast<unsigned short>(words[0]));
#pragma unroll
        for (int i = 0; i < 3; ++i) store_word(shifted + 4 * i, __byte_perm(words[i], words[i + 1], 0x5432));
        store_shared(shifted + 12, static_cast<unsigned short>(words[3] >> 16));
    }
};
