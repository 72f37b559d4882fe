// Asynchronous copies (cp.async) of tiles of a plain row-major or column-major matrix, global -> shared, ahead of
// tensor-core instructions. A copy moves 16 bytes if every row begins at a multiple of 16 bytes, less otherwise.
//
// - MatrixRows: the rows of K are contiguous in memory. Example: the inputs of one tap in NCHW, whose columns are
//   pixels. The copy width is 16, 8 or 4 bytes, or one element, by the alignment of the rows. Rows in shared memory are
//   padded by 16 bytes (32 for 32-bit elements), so that the eight rows of an ldmatrix, or the four rows that lanes
//   read element by element, fall into different banks.
// - MatrixColumns: the columns are contiguous along K. Example: the channels of a filter, or of an NHWC pixel. The
//   16-byte chunks of a column are XOR-swizzled by the column's number modulo 8, again against bank conflicts.
//
// Elements outside of the matrix are stored as zero, so they add nothing to the sums over K.
#pragma once
#include "base/numeric.cuh"
#include "base/ptx.cuh"

// Returns the widest copy, in bytes (a power of two up to 16), for which `address` and `distances` are multiples.
// `distances` is the bitwise OR of all strides in bytes.
DEVICE int copied_at_once(const void* address, int distances) {
    const int bits = int(reinterpret_cast<unsigned long long>(address)) | distances | 16;
    return bits & -bits;
}

// Copies one element, or zero if it does not exist. cp.async has no 2-byte form, so 16-bit elements are stored
// directly.
template <class T> DEVICE void copy_element(unsigned target, const T* source, bool exists) {
    if constexpr (sizeof(T) == 2) store_shared(target, exists ? *source : T(0.f));
    else copy_async<sizeof(T)>(target, source, exists ? sizeof(T) : 0);
}

// See the top of this file. Each thread copies the same `width` bytes of columns in every kStep-th row of the slice.
template <class T, int COLUMNS, int BLOCK_K, int THREADS> struct MatrixRows {
    static constexpr bool kPixelwise = false;
    static constexpr int kPitch = COLUMNS * sizeof(T) + (sizeof(T) == 2 ? 16 : 32), kBytes = BLOCK_K * kPitch;
    static constexpr int kLine = COLUMNS * sizeof(T);

    const T* next;  // this thread's source in the next slice
    unsigned place; // its destination in the first buffer (shared-memory address)
    int width;      // bytes per copy
    int step, left; // elements between rows of K; rows of K that remain, from the next slice on
    bool exists;    // whether this thread's columns lie inside the matrix

    // The first column, and the first row of a slice, that this thread copies.
    static DEVICE int column(int width) { return threadIdx.x % (kLine / width) * (width / int(sizeof(T))); }
    static DEVICE int row(int width) { return threadIdx.x / (kLine / width); }
    // `first`: element of the thread's column in row 0. `rows`: K. `copied`: bytes per copy, see copied_at_once.
    DEVICE void start(const T* first, bool found, int distance, int rows, int copied, unsigned buffer) {
        width = copied;
        step = distance;
        next = first + row(width) * step;
        left = rows;
        exists = found;
        place = buffer + row(width) * kPitch + column(width) * int(sizeof(T));
        keep(place);
    }
    // Starts copying the next slice into the buffer at byte offset `buffer`.
    DEVICE void fetch(unsigned buffer) {
        if (width == 16) copy<16>(place + buffer);
        else if (width == 8) copy<8>(place + buffer);
        else if (sizeof(T) == 4 || width == 4) copy<4>(place + buffer);
        else copy<sizeof(T)>(place + buffer);
        next += BLOCK_K * step;
        left -= BLOCK_K;
    }
    // Copies one slice by copies of WIDTH bytes; the last, incomplete slice is checked row by row.
    template <int WIDTH> DEVICE void copy(unsigned target) const {
        constexpr int kStep = THREADS / (kLine / WIDTH); // rows that all threads copy at once
        static_assert(kStep > 0 && BLOCK_K % kStep == 0);
        if (WIDTH >= 4 && left >= BLOCK_K) {
            const char* source = reinterpret_cast<const char*>(next);
#pragma unroll
            for (int k = 0; k < BLOCK_K; k += kStep)
                copy_async < WIDTH<4 ? 4 : WIDTH>(target + k * kPitch,
                                                  source + static_cast<long long>(step) * (k * int(sizeof(T))),
                                                  exists ? WIDTH : 0);
            return;
        }
        const T* source = next;
        const int mine = exists ? left - row(WIDTH) : 0;
#pragma unroll 1
        for (int k = 0; k < BLOCK_K; k += kStep, source += kStep * step) {
            if constexpr (WIDTH < 4) copy_element(target + k * kPitch, source, k < mine);
            else copy_async<WIDTH>(target + k * kPitch, source, k < mine ? WIDTH : 0);
        }
    }
};

// See the top of this file. Eight threads share a column: each copies one 16-byte chunk of every kStep-th column.
template <class T, int COLUMNS, int BLOCK_K, int THREADS> struct MatrixColumns {
    static constexpr int kPitch = BLOCK_K * sizeof(T), kBytes = COLUMNS * kPitch;
    static constexpr int kChunk = 16 / sizeof(T), kStep = THREADS / 8; // columns that all threads copy at once
    static_assert(kPitch == 128 && kStep % 8 == 0 && COLUMNS % kStep == 0);

    const T* next;  // this thread's source in the next slice
    unsigned place; // its destination in the first buffer (shared-memory address)
    int step, left; // elements between columns; elements of K that remain from this thread's next chunk on
    int columns;    // columns of the tile that exist, counted from this thread's first one
    bool whole;     // all columns exist and all chunks are aligned: copy without checks

    // Swizzled offset in bytes of a column's 16-byte chunk in the buffer.
    static DEVICE unsigned chunk(int column, int number) { return column * kPitch + (number ^ column % 8) * 16; }
    // `first`: element 0 of the tile's first column. `rows`: K. `count`: columns from the tile's first one to the
    // matrix's end.
    DEVICE void start(const T* first, int distance, int rows, int count, unsigned buffer) {
        const int column = threadIdx.x / 8, number = threadIdx.x % 8;
        step = distance;
        next = first + column * step + number * kChunk;
        left = rows - number * kChunk;
        columns = count - column;
        whole = count >= COLUMNS && copied_at_once(first, step * int(sizeof(T))) == 16;
        place = buffer + chunk(column, number);
        keep(place);
    }
    // Starts copying the next slice into the buffer at byte offset `buffer`.
    DEVICE void fetch(unsigned buffer) {
        const unsigned target = place + buffer;
        if (whole) {
            const T* source = next;
            const int bytes = left > 0 ? 16 : 0;
#pragma unroll
            for (int m = 0; m < COLUMNS; m += kStep, source += kStep * step)
                copy_async<16>(target + m * kPitch, source, bytes);
        } else {
            copy_some(target);
        }
        next += BLOCK_K;
        left -= BLOCK_K;
    }
    // The checked path: the tile is partly outside of the matrix, or chunks are not aligned and go element by element.
    DEVICE void copy_some(unsigned target) const {
        const bool chunks = copied_at_once(next, step * int(sizeof(T))) == 16;
#pragma unroll 1
        for (int m = 0; m < COLUMNS; m += kStep) {
            const T* source = next + m * step;
            const bool exists = left > 0 && m < columns;
            if (chunks) {
                copy_async<16>(target + m * kPitch, source, exists ? 16 : 0);
            } else {
#pragma unroll 1
                for (int k = 0; k < kChunk; ++k)
                    copy_element(target + m * kPitch + k * int(sizeof(T)), source + k, exists);
            }
        }
    }
};
