// Input loader of the tensor-core kernels: gathers a slice of K x BLOCK_N pixels of x into shared memory.
//
// Two layouts in shared memory:
// - Pixelwise: 64 or 128 bytes of K per pixel, as ldmatrix reads them. The 16-byte chunks of a pixel are XOR-swizzled
//   by the pixel's number (modulo 8, or modulo 4 for 8-byte elements) against bank conflicts. Chunks are copied whole
//   where channels are contiguous in x (Gather::kVector, kChunks, kHalves); otherwise (kScalar, kRowwise) they are
//   assembled in registers from 16-bit elements.
// - By rows of K: for wider elements with other strides, copied one by one.
//
// How the tap of a row of K is found (Gather):
//
//     kScalar, kVector  one tap per slice (channels padded to whole slices); a pixel is tested once per tap
//     kRowwise          few channels: every row of K has its own tap
//     kChunks, kHalves  few channels: every 16 bytes, or 8 bytes, of K have their own tap
//
// A table in shared memory holds the offset and coordinates of each pixel of the block; it is read when a new tap
// begins. If each thread has one pixel for itself, registers hold that instead. The last three kinds pad K only as a
// whole; a second table holds what the tap and channel of each row or chunk add to offset and coordinates.
#pragma once
#include "conv/gather.cuh"
#include "base/ptx.cuh"

enum class Gather { kScalar, kVector, kRowwise, kChunks, kHalves };

// Offset and input coordinates of a pixel's first tap; or the displacement that a row or chunk of K adds to them.
// Coordinates stay below 2^30. The first coordinate of a pixel or row that does not exist is so far out of bounds that
// every sum is.
struct alignas(16) Standing { int offset, coordinate[3]; };

// Whether pixel + displacement lies inside x.
DEVICE bool meets(const Standing& at, const int (&away)[3], const int (&extent)[3]) {
    return inside(at.coordinate[0] + away[0], extent[0]) & inside(at.coordinate[1] + away[1], extent[1])
         & inside(at.coordinate[2] + away[2], extent[2]);
}

// See the top of this file. T: element type; THREADS: threads of the block.
template <class T, int BLOCK_N, int BLOCK_K, int THREADS, Gather GATHER> struct SliceInputs {
    enum : int { kNoPixel = -0x7fffffff - 1, kNoRow = -0x40000000 };
    static constexpr bool kHalves = GATHER == Gather::kHalves, kOwnTaps = GATHER == Gather::kChunks || kHalves;
    static constexpr bool kUniformTap = GATHER == Gather::kVector || GATHER == Gather::kScalar;
    static constexpr bool kVector =
        GATHER == Gather::kVector || kOwnTaps; // chunks, or halves of them, are copied whole
    static constexpr bool kPixelwise = kVector || sizeof(T) == 2, kAsync = kVector || sizeof(T) > 2;
    static constexpr int kPitch =
        kPixelwise ? BLOCK_K * sizeof(T) : BLOCK_N * sizeof(T) + 32; // bytes per pixel, or per row of K
    static constexpr int kBytes = kPitch * (kPixelwise ? BLOCK_N : BLOCK_K);
    static constexpr int kChunk = 16 / sizeof(T), kChunks = BLOCK_K / kChunk; // elements per chunk, chunks per pixel
    static constexpr int kPiece = kHalves ? kChunk / 2 : kChunk;              // elements per copy
    static constexpr int kRowsOfEntry = kOwnTaps ? kPiece : 1;                // rows of K per entry of the second table
    static constexpr int kShares = kHalves ? 8 : kVector ? 4 : THREADS / BLOCK_N;        // threads per pixel
    static constexpr int kPixelStep = THREADS / kShares, kPixels = BLOCK_N / kPixelStep; // pixels per thread
    static constexpr int kElements = BLOCK_K / kShares; // elements of one pixel per thread
    // A thread's elements of a pixel are consecutive (pixelwise), or every kShares-th.
    static constexpr int kRun = kPixelwise ? kElements : 1, kRunStep = kPixelwise ? 1 : kShares;
    static_assert(!kPixelwise || kChunks == 4 || kChunks == 8);
    static_assert(kPixels >= 1 && (kVector || kPixels == 1) && kElements % (kPixelwise ? kChunk : 1) == 0);
    static_assert(!kVector || kPixelStep % 8 == 0);
    static constexpr bool kKept = GATHER == Gather::kScalar && kShares == 1; // the pixel stays in registers: no table
    static constexpr int kTableBytes = kKept ? 0 : BLOCK_N * sizeof(Standing);

    const Correlation<int, 3>& p;
    const Taps<int, 3>& taps;
    Standing *pixels, *rows; // the tables: pixels; rows or chunks of K
    const T* x;              // channel 0 of this block's group
    int plain;               // whether all chunks are aligned and complete
    Cursor<int, 3> next;     // the slice to fetch next: its tap and channel (one tap per slice), or
    int next_k;              // its first row of K
    int offset[kPixels];     // this thread's pixels at the current tap: offset in x
    int channels[kPixels];   // and number of channels, at most 0 if out of bounds
    Standing mine[kPixels];  // this thread's pixels at tap 0, if they stay in registers
    unsigned place;          // this thread's first destination in the first buffer (shared-memory address)
    unsigned gathered[kAsync ? 1 : kElements];

    DEVICE SliceInputs(const Correlation<int, 3>& p, const Taps<int, 3>& taps, void* tables)
        : p(p), taps(taps), pixels(static_cast<Standing*>(tables)), rows(pixels + BLOCK_N) {}
    // Selects the block's group.
    DEVICE void stand(int group) { x = static_cast<const T*>(p.x) + group * p.channels * p.x_channel; }
    // Fills the tables and prepares for the first slice. `buffers`: shared-memory address of the first buffer.
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
    // Offset and coordinates of a column's pixel at tap 0.
    DEVICE Standing standing(int column) const {
        Window<int, 3> window;
        window.place(p, taps, pixel(p, column));
        const int first = window.exists ? window.origin[0] : kNoPixel;
        return {window.image + distance(window.origin), {first, window.origin[1], window.origin[2]}};
    }
    // Prepares for slice number `slices` instead of the first (split-K).
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
    // Written out instead of using `dot`: kernels limited to 128 registers would spill.
    DEVICE int distance(const int (&coordinates)[3]) const {
        return coordinates[0] * p.x_stride[0] + coordinates[1] * p.x_stride[1] + coordinates[2] * p.x_stride[2];
    }
    DEVICE void advance_by(const int (&tap)[3], int (&coordinates)[3]) const {
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) coordinates[axis] = tap[axis] * taps.advance[axis];
    }

    // ---- positions in a buffer

    // This thread's first pixel, and its share of each pixel.
    DEVICE int first_pixel() const { return kVector ? threadIdx.x / kShares : threadIdx.x % BLOCK_N; }
    DEVICE int share() const { return kVector ? threadIdx.x % kShares : threadIdx.x / BLOCK_N; }
    // Offset of a pixel's chunk: an XOR swizzle, so other chunks of the pixel differ in a few bits only. Adjacent
    // pixels use different halves of the 128 bytes. 8-byte elements are read from two chunks of four pixels at once,
    // others from one chunk of eight pixels.
    static DEVICE unsigned chunk(int pixel, int number) {
        const int quarter = sizeof(T) == 8 ? pixel / 2 % 2 * 2 : pixel / 2 % 4;
        return pixel * kPitch + (number ^ (quarter + (kChunks == 8 ? pixel % 2 * 4 : 0))) * 16;
    }

    // ---- loading a slice: global -> shared

    DEVICE bool aligned() const { return reinterpret_cast<unsigned long long>(x) % (kPiece * sizeof(T)) == 0; }
    // Starts to load the next slice into the buffer at byte offset `buffer`. Returns whether the slice after it has a
    // new tap.
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
    // Computes offset and channels of this thread's pixels for the next slice's tap.
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
    // Loads chunks: all of them complete (plain), some incomplete, or unaligned (element by element).
    DEVICE void fetch_chunks(unsigned target) {
        if (plain) copy_chunks<true>(target);
        else if (aligned()) copy_chunks<false>(target);
        else fetch_unaligned(target);
    }
    // Copies 16-byte chunks asynchronously. WHOLE: all channels of the slice exist.
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
    // The same element by element, for unaligned x.
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
    // Loads elements of one tap, a channel apart. WHOLE: the slice has no channels past the last one.
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
    // Loads elements whose tap differs from row to row.
    DEVICE void fetch_rows(unsigned target) {
        const Standing* row = rows + next_k + share() * kRun;
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
            const Standing away = row[kRunStep * i];
            move(target, i, reinterpret_cast<const char*>(x + mine[0].offset + away.offset),
                 meets(mine[0], away.coordinate, p.x_extent));
        }
    }
    // Destination of a piece: `further` pieces and `pixel` pixels after this thread's first one.
    static DEVICE unsigned piece(unsigned target, int further, int pixel) {
        return (target ^ (kHalves ? further / 2 : further) * 16) + pixel * kPixelStep * kPitch;
    }
    // Loads pieces (16 or 8 bytes) that have their own taps; below, element by element for unaligned x.
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
    // The same element by element, for unaligned x.
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
    // Copies one element: asynchronously, or (16 bits) to a register.
    DEVICE void move(unsigned target, int which, const char* source, bool exists) {
        if constexpr (kAsync) copy_async<sizeof(T)>(target + which * kRunStep * kPitch, source, exists ? sizeof(T) : 0);
        else gathered[which] = exists ? load_half(source) : 0;
    }
    // Packs 16-bit elements that `fetch` loaded into registers into chunks and stores them. Wider ones arrive by
    // themselves.
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
