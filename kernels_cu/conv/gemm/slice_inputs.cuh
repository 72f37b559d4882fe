// How the inputs of a slice of K come into shared memory, for the tensor cores.
//
//  - Pixel by pixel, 64 or 128 bytes of K each, as ldmatrix reads them: their 16-byte chunks are swizzled, in another
//    order for each of eight pixels, or of four with 8-byte elements, against bank conflicts. Chunks are copied whole
//    where channels are contiguous in x (Gather::kVector; Gather::kChunks and kHalves, of 8 bytes, each with a tap of
//    its own), else made of single 16-bit elements that pass through registers.
//  - Row of K by row of K, for wider elements, which are copied one by one.
//
// Where the block's pixels stand in x is in a table in shared memory, read where a new tap begins. If each thread has
// one pixel for itself, registers keep that. Gather::kRowwise, for channels that lie anywhere, kChunks and
// kHalves are for few channels: K is not padded tap by tap, and a second table has what the tap and the channel of a
// row, or of a chunk, add.
#pragma once
#include "conv/gather.cuh"
#include "base/ptx.cuh"

enum class Gather { kScalar, kVector, kRowwise, kChunks, kHalves };

// Place and input coordinates of a pixel's first tap, or how far a row or chunk of K is from these. Coordinates stay
// below 2^30; the first one of what does not exist is so far outside of x that its sum with any other is outside too.
struct alignas(16) Standing { int offset, coordinate[3]; };

DEVICE bool meets(const Standing& at, const int (&away)[3], const int (&extent)[3]) {
    return inside(at.coordinate[0] + away[0], extent[0]) & inside(at.coordinate[1] + away[1], extent[1])
         & inside(at.coordinate[2] + away[2], extent[2]);
}

template <class T, int BLOCK_N, int BLOCK_K, int THREADS, Gather GATHER> struct SliceInputs {
    enum : int { kNoPixel = -0x7fffffff - 1, kNoRow = -0x40000000 };
    static constexpr bool kHalves = GATHER == Gather::kHalves, kOwnTaps = GATHER == Gather::kChunks || kHalves;
    static constexpr bool kUniformTap = GATHER == Gather::kVector || GATHER == Gather::kScalar;
    static constexpr bool kVector =
        GATHER == Gather::kVector || kOwnTaps; // chunks, or halves of them, are copied whole
    static constexpr bool kPixelwise = kVector || sizeof(T) == 2, kAsync = kVector || sizeof(T) > 2;
    static constexpr int kPitch =
        kPixelwise ? BLOCK_K * sizeof(T) : BLOCK_N * sizeof(T) + 32; // bytes of a pixel, of a row of K
    static constexpr int kBytes = kPitch * (kPixelwise ? BLOCK_N : BLOCK_K);
    static constexpr int kChunk = 16 / sizeof(T), kChunks = BLOCK_K / kChunk; // elements of a chunk, chunks of a pixel
    static constexpr int kPiece = kHalves ? kChunk / 2 : kChunk;              // elements that are copied at once
    static constexpr int kRowsOfEntry = kOwnTaps ? kPiece : 1;                // of K, in the second table
    static constexpr int kShares = kHalves ? 8 : kVector ? 4 : THREADS / BLOCK_N;        // threads of a pixel
    static constexpr int kPixelStep = THREADS / kShares, kPixels = BLOCK_N / kPixelStep; // of a thread
    static constexpr int kElements = BLOCK_K / kShares;                                  // of one pixel, of one thread
    // A thread's elements of a pixel are consecutive ones for chunks, else every so many.
    static constexpr int kRun = kPixelwise ? kElements : 1, kRunStep = kPixelwise ? 1 : kShares;
    static_assert(!kPixelwise || kChunks == 4 || kChunks == 8);
    static_assert(kPixels >= 1 && (kVector || kPixels == 1) && kElements % (kPixelwise ? kChunk : 1) == 0);
    static_assert(!kVector || kPixelStep % 8 == 0);
    static constexpr bool kKept = GATHER == Gather::kScalar && kShares == 1; // in registers: no table of pixels
    static constexpr int kTableBytes = kKept ? 0 : BLOCK_N * sizeof(Standing);

    const Correlation<int, 3>& p;
    const Taps<int, 3>& taps;
    Standing *pixels, *rows; // the tables: of pixels; of rows of K, or of chunks
    const T* x;              // of this block's group
    int plain;               // whether all chunks are aligned and whole
    Cursor<int, 3> next;     // of the slice to be fetched next, or
    int next_k;              // its first row
    int offset[kPixels];     // of this thread's pixels, at the tap of that slice
    int channels[kPixels];   // that they have there: none outside of x
    Standing mine[kPixels];  // of this thread's pixels, where a slice has several taps, or they are kept
    unsigned place;          // of this thread's first element or chunk in the first buffer
    unsigned gathered[kAsync ? 1 : kElements];

    DEVICE SliceInputs(const Correlation<int, 3>& p, const Taps<int, 3>& taps, void* tables)
        : p(p), taps(taps), pixels(static_cast<Standing*>(tables)), rows(pixels + BLOCK_N) {}
    DEVICE void stand(int group) { x = static_cast<const T*>(p.x) + group * p.channels * p.x_channel; }
    DEVICE void start(int column0, int slices, unsigned buffers) {
        if constexpr (kKept) {
            mine[0] = standing(column0 + threadIdx.x);
        } else {
            for (int i = threadIdx.x; i < BLOCK_N; i += THREADS) {
                const Standing at = standing(column0 + i);
                store(pixels + i, at.offset, at.coordinate[0], at.coordinate[1], at.coordinate[2]);
            }
        }
        if constexpr (!kUniformTap) {
            for (int i = threadIdx.x; i < slices * (BLOCK_K / kRowsOfEntry); i += THREADS) {
                const int k = i * kRowsOfEntry;
                int channel, tap[3], away[3];
                split_row(p, taps, k, tap, channel);
                advance_by(tap, away);
                store(rows + i, distance(away) + channel * p.x_channel, k < taps.rows ? away[0] : kNoRow, away[1],
                      away[2]);
            }
        }
        plain = aligned() && p.channels % BLOCK_K == 0;
        keep(plain);
        keep(x);
        next.start();
        next_k = 0;
        place = buffers
              + (kHalves      ? chunk(first_pixel(), share() / 2) + share() % 2 * 8
                 : kPixelwise ? chunk(first_pixel(), kVector ? share() : share() * (kElements / kChunk))
                              : share() * kPitch + first_pixel() * sizeof(T));
        keep(place);
        __syncthreads();
        if constexpr (kUniformTap) {
            find_pixels();
        } else {
#pragma unroll
            for (int i = 0; i < kPixels; ++i) mine[i] = pixels[first_pixel() + i * kPixelStep];
        }
    }
    // Where a column's pixel stands.
    DEVICE Standing standing(int column) const {
        Window<int, 3> window;
        window.place(p, taps, pixel(p, column));
        const int first = window.exists ? window.origin[0] : kNoPixel;
        return {window.image + distance(window.origin), {first, window.origin[1], window.origin[2]}};
    }
    // Goes to another slice than the first.
    DEVICE void skip(int slices) {
        next_k = slices * BLOCK_K;
        if constexpr (kUniformTap) {
            const int of_tap = (p.channels + BLOCK_K - 1) / BLOCK_K, number = slices / of_tap;
            unravel<3>(number, taps.count, next.tap);
            next.channel = (slices - number * of_tap) * BLOCK_K;
            find_pixels();
        }
    }
    static DEVICE void store(Standing* entry, int offset, int first, int second, int third) {
        store_shared(shared_address(entry), make_uint4(offset, first, second, third));
    }
    // Not dot: kernels of 128 registers spill with it.
    DEVICE int distance(const int (&coordinates)[3]) const {
        return coordinates[0] * p.x_stride[0] + coordinates[1] * p.x_stride[1] + coordinates[2] * p.x_stride[2];
    }
    DEVICE void advance_by(const int (&tap)[3], int (&coordinates)[3]) const {
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) coordinates[axis] = tap[axis] * taps.advance[axis];
    }

    // ---- places in a buffer

    // This thread's first pixel, and its share of each.
    DEVICE int first_pixel() const { return kVector ? threadIdx.x / kShares : threadIdx.x % BLOCK_N; }
    DEVICE int share() const { return kVector ? threadIdx.x % kShares : threadIdx.x / BLOCK_N; }
    // A chunk of a pixel; another chunk's place differs in some bits alone. Of neighbours, one has its first half of
    // chunks where the other has its second. Elements of 8 bytes are read from two chunks of four pixels at once,
    // others from one of eight.
    static DEVICE unsigned chunk(int pixel, int number) {
        const int quarter = sizeof(T) == 8 ? pixel / 2 % 2 * 2 : pixel / 2 % 4;
        return pixel * kPitch + (number ^ (quarter + (kChunks == 8 ? pixel % 2 * 4 : 0))) * 16;
    }

    // ---- one slice

    DEVICE bool aligned() const { return reinterpret_cast<unsigned long long>(x) % (kPiece * sizeof(T)) == 0; }
    // Starts to fill the buffer so many bytes after the first with the next slice; returns whether then a tap begins.
    DEVICE bool fetch(unsigned buffer) {
        bool begins = false;
        if constexpr (kUniformTap) {
            if constexpr (kVector) fetch_chunks(place + buffer);
            else if (next.channel + BLOCK_K <= p.channels) fetch_elements<true>(place + buffer);
            else fetch_elements<false>(place + buffer);
            begins = next.advance(p, taps, BLOCK_K);
            if (begins) find_pixels();
        } else {
            if constexpr (!kOwnTaps) fetch_rows(place + buffer);
            else if (aligned()) copy_pieces(place + buffer);
            else fetch_unaligned_pieces(place + buffer);
            next_k += BLOCK_K;
        }
        return begins;
    }
    DEVICE void find_pixels() {
        int away[3];
        advance_by(next.tap, away);
        const int further = distance(away) + share() * (kVector ? kChunk : kRun * p.x_channel);
        const int first = share() * (kVector ? kChunk : kRun);
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
            const Standing at = kKept ? mine[i] : pixels[first_pixel() + i * kPixelStep];
            channels[i] = meets(at, away, p.x_extent) ? p.channels - first : 0;
            offset[i] = at.offset + further;
        }
    }
    DEVICE void fetch_chunks(unsigned target) {
        if (plain) copy_chunks<true>(target);
        else if (aligned()) copy_chunks<false>(target);
        else fetch_unaligned(target);
    }
    template <bool WHOLE> DEVICE void copy_chunks(unsigned target) {
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
            const T* source = x + (offset[i] + next.channel);
#pragma unroll
            for (int k = 0; k < kChunks; k += kShares) {
                const bool exists = next.channel + (WHOLE ? 0 : k * kChunk) < channels[i];
                copy_async<16>((target ^ k * 16) + i * kPixelStep * kPitch, source + k * kChunk, exists ? 16 : 0);
            }
        }
    }
    DEVICE void fetch_unaligned(unsigned target) {
#pragma unroll 1
        for (int k = 0; k < BLOCK_K / kShares; ++k) {
            const int chunk = k / kChunk * kShares, element = k % kChunk, further = next.channel + chunk * kChunk;
#pragma unroll
            for (int i = 0; i < kPixels; ++i)
                store_shared((target ^ chunk * 16) + i * kPixelStep * kPitch + element * sizeof(T),
                             further < channels[i] ? x[offset[i] + further + element] : T(0.f));
        }
    }
    template <bool WHOLE> DEVICE void fetch_elements(unsigned target) {
        const char* source = reinterpret_cast<const char*>(x + (offset[0] + next.channel * p.x_channel));
        const int left = channels[0] - next.channel;
        if constexpr (WHOLE && !kAsync) {
            if (left <= 0) {
#pragma unroll
                for (int i = 0; i < kElements; ++i) gathered[i] = 0;
                return;
            }
        }
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
            const char* from = source + static_cast<long long>(p.x_channel) * (i * kRunStep * int(sizeof(T)));
            move(target, i, from, WHOLE ? kAsync ? left > 0 : true : i * kRunStep < left);
        }
    }
    DEVICE void fetch_rows(unsigned target) {
        const Standing* row = rows + next_k + share() * kRun;
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
            const Standing away = row[kRunStep * i];
            move(target, i, reinterpret_cast<const char*>(x + mine[0].offset + away.offset),
                 meets(mine[0], away.coordinate, p.x_extent));
        }
    }
    // Where a piece of a slice goes, so many pieces and pixels after this thread's first ones.
    static DEVICE unsigned piece(unsigned target, int further, int pixel) {
        return (target ^ (kHalves ? further / 2 : further) * 16) + pixel * kPixelStep * kPitch;
    }
    DEVICE void copy_pieces(unsigned target) {
        const Standing* entry = rows + next_k / kPiece + share();
#pragma unroll
        for (int k = 0; k < BLOCK_K / kPiece; k += kShares) {
            const Standing away = entry[k];
#pragma unroll
            for (int i = 0; i < kPixels; ++i)
                copy_async<kPiece * sizeof(T)>(piece(target, k, i), x + (mine[i].offset + away.offset),
                                               meets(mine[i], away.coordinate, p.x_extent) ? kPiece * sizeof(T) : 0);
        }
    }
    DEVICE void fetch_unaligned_pieces(unsigned target) {
        const Standing* entry = rows + next_k / kPiece + share();
#pragma unroll 1
        for (int k = 0; k < BLOCK_K / kPiece; k += kShares) {
            const Standing away = entry[k];
#pragma unroll
            for (int i = 0; i < kPixels; ++i) {
                const T* source = x + (mine[i].offset + away.offset);
                const bool exists = meets(mine[i], away.coordinate, p.x_extent);
#pragma unroll 1
                for (int e = 0; e < kPiece; ++e)
                    store_shared(piece(target, k, i) + e * sizeof(T), exists ? source[e] : T(0.f));
            }
        }
    }
    DEVICE void move(unsigned target, int which, const char* source, bool exists) {
        if constexpr (kAsync) copy_async<sizeof(T)>(target + which * kRunStep * kPitch, source, exists ? sizeof(T) : 0);
        else gathered[which] = exists ? load_half(source) : 0;
    }
    // Puts 16-bit elements, in chunks, where copies of wider ones go by themselves.
    DEVICE void deposit(unsigned buffer) const {
        if constexpr (!kAsync) {
#pragma unroll
            for (int i = 0; i < kElements; i += kChunk) {
                unsigned words[4];
#pragma unroll
                for (int k = 0; k < 4; ++k) words[k] = gathered[i + 2 * k] + (gathered[i + 2 * k + 1] << 16);
                store_shared((place + buffer) ^ i / kChunk * 16, make_uint4(words[0], words[1], words[2], words[3]));
            }
        }
    }
};
