// Vectorised stores for the tensor-core kernels. One warp's accumulators of 16 output channels x WARP_N columns go
// through a piece of shared memory to y. A store writes a pair of adjacent columns (NCHW) or 16 bytes of adjacent
// channels (NHWC).
//
// Sums are rounded to T before they enter the piece. The pitches of the piece, and a swizzle for 16-bit chunks, avoid
// bank conflicts on both sides:
//
//     accumulators --put_pairs-->  piece[16 filters][WARP_N]  --write_pairs-->  y  (two columns per store)
//     accumulators --put_chunks--> piece[WARP_N][16 filters]  --write_chunks--> y  (16 bytes of channels per store)
#pragma once
#include "base/numeric.cuh"
#include "base/ptx.cuh"
#include "base/vectors.cuh"

// How outputs are stored: one element, a pair of adjacent columns, or 16 bytes of adjacent channels at a time.
enum class Outputs { kSingle, kPairs, kChunks };

// Two adjacent columns or filters, rounded.
template <class T> struct alignas(2 * sizeof(T)) Pair { T first, second; };

// See the top of this file. T: type of y; WARP_N: columns of the warp.
template <class T, int WARP_N> struct WideOutputs {
    // filters per chunk; chunks per column (of 16 filters)
    static constexpr int kChunk = 16 / sizeof(T), kOfPixel = 16 / kChunk;
    static constexpr int kRowPitch = WARP_N * sizeof(T) + 8 * sizeof(T);        // bytes of one filter, for pairs
    static constexpr int kColumnPitch = 16 * sizeof(T) + (sizeof(T) == 4) * 16; // bytes of one column, for chunks
    static constexpr int kBytes = WARP_N * kColumnPitch > 16 * kRowPitch ? WARP_N * kColumnPitch : 16 * kRowPitch;
    // filters stored at once; lanes that store one filter's pairs
    static constexpr int kRowsAtOnce = 64 / WARP_N, kLanes = WARP_N / 2;
    static constexpr int kColumnsAtOnce = 32 / kOfPixel;

    static DEVICE int lane() { return threadIdx.x % 32; }
    // Rounds a pair of sums of one filter.
    static DEVICE Pair<T> rounded(const float* sums) { return {narrow<T>(sums[0]), narrow<T>(sums[1])}; }

    // ---- pairs of columns. `exists`: this lane's pair lies inside y; `limit`: filters of the 16 that exist

    static DEVICE int column() { return lane() % kLanes * 2; }
    // Rounds this lane's sums and stores them to the piece, filter by filter.
    static DEVICE void put_pairs(unsigned char* piece, const float (&sums)[WARP_N / 8][4]) {
        unsigned char* mine = piece + lane() / 4 * kRowPitch + lane() % 4 * int(sizeof(Pair<T>));
#pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *reinterpret_cast<Pair<T>*>(mine + half * 8 * kRowPitch + j * 8 * int(sizeof(T))) =
                    rounded(sums[j] + half * 2);
    }
    // Stores pairs from the piece to y; `y` is the address of this lane's pair in the first filter.
    static DEVICE void write_pairs(const unsigned char* piece, T* y, bool exists, int y_channel, int limit) {
        const int first = lane() / kLanes;
        const unsigned char* mine = piece + first * kRowPitch + column() * int(sizeof(T));
        if (!exists) return;
        y += first * y_channel;
#pragma unroll
        for (int row = 0; row < 16; row += kRowsAtOnce) {
            if (first + row < limit)
                *reinterpret_cast<Pair<T>*>(y) = *reinterpret_cast<const Pair<T>*>(mine + row * kRowPitch);
            y += kRowsAtOnce * y_channel;
        }
    }

    // Offset in bytes of a chunk within its column. For 16-bit elements, the two chunks are swapped in every other
    // group of four columns (a swizzle).
    static DEVICE int place(int column, int chunk) { return (sizeof(T) == 2 ? chunk ^ column / 4 % 2 : chunk) * 16; }

    // ---- chunks of filters. `offsets`: offsets in y of columns lane, lane + 32, ...; negative if there is no such
    // output

    // Rounds this lane's sums and stores them to the piece, column by column.
    static DEVICE void put_chunks(unsigned char* piece, const float (&sums)[WARP_N / 8][4]) {
        const int row = lane() / 4, odd = row % 2;
#pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Pair<T> pair = rounded(sums[j] + half * 2);
                const int column = j * 8 + lane() % 4 * 2;
                if constexpr (sizeof(T) == 2) {
                    // Exchanges words with the lane of the adjacent filter: afterwards each lane holds both filters of
                    // one column.
                    const unsigned word = reinterpret_cast<const unsigned&>(pair),
                                   other = __shfl_xor_sync(0xffffffff, word, 4);
                    unsigned char* target =
                        piece + (column + odd) * kColumnPitch + place(column, half) + (row - odd) * int(sizeof(T));
                    *reinterpret_cast<unsigned*>(target) = __byte_perm(word, other, odd ? 0x3276 : 0x5410);
                } else {
                    T* target = reinterpret_cast<T*>(piece + column * kColumnPitch) + row + half * 8;
                    target[0] = pair.first;
                    target[kColumnPitch / sizeof(T)] = pair.second;
                }
            }
    }
    // The inverse of put_chunks: calls take(j, half, first, second) with the two values, widened, that belong to each
    // pair of this lane's sums. Used for residuals, which read_chunks has loaded into the piece.
    template <class F> static DEVICE void get_chunks(const unsigned char* piece, F&& take) {
        const int row = lane() / 4, odd = row % 2;
#pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int column = j * 8 + lane() % 4 * 2;
                if constexpr (sizeof(T) == 2) {
                    const unsigned char* source =
                        piece + (column + odd) * kColumnPitch + place(column, half) + (row - odd) * int(sizeof(T));
                    const unsigned word = *reinterpret_cast<const unsigned*>(source),
                                   other = __shfl_xor_sync(0xffffffff, word, 4);
                    const unsigned pair = __byte_perm(word, other, odd ? 0x3276 : 0x5410);
                    take(j, half, Widened<T>::of(&pair, 0), Widened<T>::of(&pair, 1));
                } else {
                    const T* source = reinterpret_cast<const T*>(piece + column * kColumnPitch) + row + half * 8;
                    take(j, half, source[0], source[kColumnPitch / sizeof(T)]);
                }
            }
    }
    // Loads 16-byte chunks of adjacent channels from `y` (or an array with its strides) into the piece; zeros if there
    // is none.
    static DEVICE void read_chunks(unsigned char* piece, const T* y, const int (&offsets)[WARP_N / 32]) {
        const int chunk = lane() % kOfPixel;
#pragma unroll
        for (int first = 0; first < WARP_N; first += kColumnsAtOnce) {
            const int column = first + lane() / kOfPixel,
                      offset = __shfl_sync(0xffffffff, offsets[first / 32], column % 32);
            uint4 values = {};
            if (offset >= 0) values = *reinterpret_cast<const uint4*>(y + offset + chunk * kChunk);
            *reinterpret_cast<uint4*>(piece + column * kColumnPitch + place(column, chunk)) = values;
        }
    }
    // Stores chunks from the piece to y; `y` is the address of the first of the 16 filters.
    static DEVICE void write_chunks(const unsigned char* piece, T* y, const int (&offsets)[WARP_N / 32]) {
        const int chunk = lane() % kOfPixel;
#pragma unroll
        for (int first = 0; first < WARP_N; first += kColumnsAtOnce) {
            const int column = first + lane() / kOfPixel,
                      offset = __shfl_sync(0xffffffff, offsets[first / 32], column % 32);
            const uint4 values = *reinterpret_cast<const uint4*>(piece + column * kColumnPitch + place(column, chunk));
            if (offset >= 0) *reinterpret_cast<uint4*>(y + offset + chunk * kChunk) = values;
        }
    }
};
