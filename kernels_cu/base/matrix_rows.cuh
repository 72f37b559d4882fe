// Tiles of plain matrices on their way to the tensor cores, 16 bytes a copy where all rows begin on 16 bytes.
//
//  - MatrixRows: rows of K, whose columns are contiguous in memory, as the inputs of one tap do, whose columns are
//  pixels.
//    Where rows begin on 8 or 4 bytes only, that much is a copy. Rows in shared memory are 16 or 32 bytes longer than a
//    tile: ldmatrix, or lanes that read single elements, find eight rows, or four, in different banks.
//  - MatrixColumns: columns of K, which are contiguous instead, as a filter's channels are. Of eight neighbours, each
//    has its 16-byte chunks in an order of its own.
//
// What lies outside of the matrix is zero in the tile, so that sums over K are not changed by it.
#pragma once
#include "base/numeric.cuh"
#include "base/ptx.cuh"

// The most bytes, of up to 16, that divide an address and distances: what can be copied at once.
DEVICE int copied_at_once(const void* address, int distances) {
    const int bits = int(reinterpret_cast<unsigned long long>(address)) | distances | 16;
    return bits & -bits;
}

template <class T> DEVICE void copy_element(unsigned target, const T* source, bool exists) {
    if constexpr (sizeof(T) == 2) store_shared(target, exists ? *source : T(0.f));
    else copy_async<sizeof(T)>(target, source, exists ? sizeof(T) : 0);
}

template <class T, int COLUMNS, int BLOCK_K, int THREADS> struct MatrixRows {
    static constexpr bool kPixelwise = false;
    static constexpr int kPitch = COLUMNS * sizeof(T) + (sizeof(T) == 2 ? 16 : 32), kBytes = BLOCK_K * kPitch;
    static constexpr int kLine = COLUMNS * sizeof(T);

    const T* next;  // of this thread, of the slice to be fetched next
    unsigned place; // where that goes in the first buffer
    int width;      // bytes copied at once
    int step, left; // elements from row to row; rows from that slice on
    bool exists;    // whether this thread's columns do

    // The first column of this thread, and its first row.
    static DEVICE int column(int width) { return threadIdx.x % (kLine / width) * (width / int(sizeof(T))); }
    static DEVICE int row(int width) { return threadIdx.x / (kLine / width); }
    // `first` is the element of the thread's column in row 0.
    DEVICE void start(const T* first, bool found, int distance, int rows, int copied, unsigned buffer) {
        width = copied;
        step = distance;
        next = first + row(width) * step;
        left = rows;
        exists = found;
        place = buffer + row(width) * kPitch + column(width) * int(sizeof(T));
        keep(place);
    }
    // Starts to fill the buffer so many bytes after the first with the next slice.
    DEVICE void fetch(unsigned buffer) {
        if (width == 16) copy<16>(place + buffer);
        else if (width == 8) copy<8>(place + buffer);
        else if (sizeof(T) == 4 || width == 4) copy<4>(place + buffer);
        else copy<sizeof(T)>(place + buffer);
        next += BLOCK_K * step;
        left -= BLOCK_K;
    }
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

template <class T, int COLUMNS, int BLOCK_K, int THREADS> struct MatrixColumns {
    static constexpr int kPitch = BLOCK_K * sizeof(T), kBytes = COLUMNS * kPitch;
    static constexpr int kChunk = 16 / sizeof(T), kStep = THREADS / 8; // columns that all threads copy at once
    static_assert(kPitch == 128 && kStep % 8 == 0 && COLUMNS % kStep == 0);

    const T* next;  // of this thread, of the slice to be fetched next
    unsigned place; // where that goes in the first buffer
    int step, left; // elements from column to column; of this thread's, from that slice on
    int columns;    // from this thread's first one on
    bool whole;     // all columns exist, and chunks are aligned

    static DEVICE unsigned chunk(int column, int number) { return column * kPitch + (number ^ column % 8) * 16; }
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
