// A warp's sums of 16 output channels, as the tensor cores leave them, to y in wide stores: pairs of contiguous
// columns, or 16 bytes of contiguous channels. They are rounded before they pass through a piece of shared memory,
// where lanes find what they write.
#pragma once
#include "base/numeric.cuh"
#include "base/ptx.cuh"
#include "base/vectors.cuh"

enum class Outputs { kSingle, kPairs, kChunks };

// Two neighbouring columns, or filters, rounded.
template <class T> struct alignas(2 * sizeof(T)) Pair { T first, second; };

template <class T, int WARP_N> struct WideOutputs {
    static constexpr int kChunk = 16 / sizeof(T), kOfPixel = 16 / kChunk; // filters of a chunk, chunks of a column
    static constexpr int kRowPitch = WARP_N * sizeof(T) + 8 * sizeof(T);  // bytes of a filter, in pairs of columns
    static constexpr int kColumnPitch = 16 * sizeof(T) + (sizeof(T) == 4) * 16; // of a column, in chunks
    static constexpr int kBytes = WARP_N * kColumnPitch > 16 * kRowPitch ? WARP_N * kColumnPitch : 16 * kRowPitch;
    static constexpr int kRowsAtOnce = 64 / WARP_N, kLanes = WARP_N / 2; // lanes that write a filter's pairs
    static constexpr int kColumnsAtOnce = 32 / kOfPixel;

    static DEVICE int lane() { return threadIdx.x % 32; }
    // A pair of sums of one filter.
    static DEVICE Pair<T> rounded(const float* sums) { return {narrow<T>(sums[0]), narrow<T>(sums[1])}; }

    // ---- pairs of columns; `offset` is that of this lane's pair, `limit` the filters that there are of the 16

    static DEVICE int column() { return lane() % kLanes * 2; }
    static DEVICE void put_pairs(unsigned char* piece, const float (&sums)[WARP_N / 8][4]) {
        unsigned char* mine = piece + lane() / 4 * kRowPitch + lane() % 4 * int(sizeof(Pair<T>));
#pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *reinterpret_cast<Pair<T>*>(mine + half * 8 * kRowPitch + j * 8 * int(sizeof(T))) =
                    rounded(sums[j] + half * 2);
    }
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

    // Bytes before a chunk of a column: of 16-bit elements, four columns have their two in another order than the next.
    static DEVICE int place(int column, int chunk) { return (sizeof(T) == 2 ? chunk ^ column / 4 % 2 : chunk) * 16; }

    // ---- chunks of filters; `offsets` are those of the columns lane, lane + 32 ..., below 0 where there is none

    static DEVICE void put_chunks(unsigned char* piece, const float (&sums)[WARP_N / 8][4]) {
        const int row = lane() / 4, odd = row % 2;
#pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Pair<T> pair = rounded(sums[j] + half * 2);
                const int column = j * 8 + lane() % 4 * 2;
                if constexpr (sizeof(T) == 2) {
                    // With the lane of the next filter: each has both filters of one column.
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
    // What others have laid so into the piece, of the same sums.
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
