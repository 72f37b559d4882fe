// Conv of few input channels: a block's outputs, and the band of inputs that they meet, whole in shared memory.
//
// Channels are the first of four axes of a correlation with one channel: rows of K are (channel, depth, row, column) of
// a tap, columns fastest. A block makes a box of kPixels neighbouring outputs, whose extents are powers of two; all
// inputs that any of them meets are the band. An output's place in it plus the distance of a row of K is where these
// meet.
//
// 16-bit elements are read as pairs that begin at an even column of K. So that pairs are aligned the band may stand an
// element before where it would; where columns of x are an odd number apart there are two copies, one of each kind.
#pragma once
#include "conv/epilogue.cuh"
#include "base/ptx.cuh"

enum StemRuns { kAnyOrder, kAlongColumns, kAlongChannels }; // which contiguous elements make whole vectors in x

struct StemParams {
    Correlation<int, 4> common;
    Taps<int, 4> taps;
    Divider<int> tiles[3];               // of the outputs' depths, rows and columns
    int row_bits, column_bits;           // of a box: log2 of its rows and columns
    int runs, lead;                      // StemRuns; elements of x before the first one needed, from a whole vector on
    Divider<int> chunks;                 // vectors of a row of the band, or of one with its channels
    Divider<int> band_rows, band_depths; // of the band
    int band_columns, units;             // chunks of all rows
    int pitch[3];                        // elements of the band from one channel, depth, row to the next
    int shift, copies;                   // elements that the first copy is shifted by
    int copy_bytes, band_bytes;          // of one copy of the band, and of all
    Divider<int> steps_of_row;           // entries of the table for the taps of one row
    int steps, step_bytes;               // entries; bytes of the band between two of one row
    int channel_vectors, pixel_vectors;  // whether channels, or columns, of y are whole vectors, if y is aligned
    int passes;                          // of BLOCK_M output channels that the block makes, one after the other
};

template <class T, int THREADS> struct StemBox {
    static constexpr int kPixelBits = 8, kPixels = 1 << kPixelBits;
    static constexpr int kVector = 16 / sizeof(T); // elements of a chunk

    const StemParams& p;
    int image, first[3]; // of the box's first output

    DEVICE StemBox(const StemParams& p, int number) : p(p) {
        image = unravel<3>(number, p.tiles, first);
        first[0] <<= kPixelBits - p.row_bits - p.column_bits;
        first[1] <<= p.row_bits;
        first[2] <<= p.column_bits;
    }
    DEVICE void split(int number, int (&at)[3]) const {
        at[2] = number & ((1 << p.column_bits) - 1);
        at[1] = number >> p.column_bits & ((1 << p.row_bits) - 1);
        at[0] = number >> (p.column_bits + p.row_bits);
    }
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
    // Bytes from the band's beginning to the first input of an output.
    DEVICE int place(int number) const {
        int at[3];
        split(number, at);
        const int elements = at[0] * p.common.stride[1] * p.pitch[1] + at[1] * p.common.stride[2] * p.pitch[2]
                           + at[2] * p.common.stride[3] + (p.runs == kAlongColumns ? p.lead : 0) - p.shift;
        if constexpr (sizeof(T) > 2) return elements * int(sizeof(T));
        return (elements & ~1) * int(sizeof(T)) + (elements & 1) * p.copy_bytes;
    }
    // Fills the table of how many bytes further the steps of K lie; those after the last one nowhere.
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

    // ---- the band

    // One chunk of a row of the band, as it comes from x.
    struct Chunk {
        const T* source; // of the row's column 0 in x
        int column, end; // first element in the row; elements that x has there
        int place;       // where the row begins in the band, in elements
        int at;          // first element in the row of the band
    };

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
    DEVICE void fill_band(unsigned char* band, const T* x) const {
        x += image * p.common.x_batch;
        const bool aligned = reinterpret_cast<unsigned long long>(x) % 16 == 0;
        const unsigned target = shared_address(band);
        if (p.runs == kAlongColumns && aligned) fill<false, true>(target, x);
        else if (p.runs != kAlongChannels) fill<false, false>(target, x);
        else if (aligned) fill<true, true>(target, x);
        else fill<true, false>(target, x);
    }
    template <bool CHANNELS, bool VECTORS> DEVICE void fill(unsigned target, const T* x) const {
        constexpr int kBatch = VECTORS ? 4 : 2; // chunks on their way at once
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
    // The place in the band of an element of a row with its channels, which are contiguous in x.
    DEVICE bool spread(int at, int& place) const {
        int channel;
        const int column = p.taps.count[0].split(at, channel);
        place += channel * p.pitch[0] + column;
        return at >= 0 && column < p.band_columns;
    }
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
