// Tile and loader of conv/wgmma/pixels.cu. Pixels are M of the product and pass through registers, where they are
// rounded to TF32 or split into two parts. A register operand may come from any address, so one strip of x serves all
// taps along H and W, with any stride.
//
//     x --TMA--> shared strip --ld.shared--> registers --round / split--> wgmma operand A (64 pixels x 8 channels)
//     packed weights --TMA--> shared stage ----------------------------> wgmma operand B (8 channels x filters)
//
// Two kinds of strips:
// - Rows (NCHW): pieces of a row's pixels x a slice's channels, one TMA copy each. Channels are 32 or 96 bytes more
//   than a multiple of 128 bytes apart, so that four channels of eight pixels fall into 32 different banks.
// - Patches (NHWC): 128 bytes of channels per pixel, in TMA's 128-byte swizzle.
#pragma once
#include "conv/wgmma/wgmma.cuh"
#include "conv/wgmma/items.cuh"
#include "conv/wgmma/outputs.cuh"
#include "conv/wgmma/ring.cuh"
#include "conv/wgmma/sums.cuh"

// Like round_tf32, except that the last 13 bits, which tensor cores ignore, are left as they are. Infinities and NaN
// stay.
DEVICE unsigned nearly_rounded_tf32(float value) {
    unsigned result = __float_as_uint(value);
    asm("{\n"
        ".reg .pred finite;\n"
        ".reg .f32 size;\n"
        "abs.f32 size, %1;\n"
        "setp.lt.f32 finite, size, 0f7F800000;\n"
        "@finite add.u32 %0, %0, 4096;\n"
        "}"
        : "+r"(result)
        : "f"(value));
    return result;
}

// The tile of one warpgroup: BLOCK_N pixels x BLOCK_M filters. A warp has BLOCK_N / 4 successive columns, 16 per wgmma
// product; of these 16, a thread has two, 8 apart.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, bool ROWS>
struct PixelTile : WgmmaSums<float, BLOCK_N / 64, BLOCK_M> {
    using T = float;
    using Acc = float;
    static constexpr int kBlockM = BLOCK_M, kBlockN = BLOCK_N, kBlockK = 32, kSteps = 4;
    static constexpr bool kTurns = true, kExact = false, kClips = true, kFromRows = ROWS;
    static constexpr int kWeightBytes = BLOCK_M * 128, kPixelBytes = BLOCK_N * 128;
    static constexpr int kColumnsOfWarp = BLOCK_N / 4;
    static constexpr int kProducts = BLOCK_N / 64, kPixels = 2 * kProducts;
    static constexpr int kRows = 16, kColumns = 32, kPitch = kColumns;
    static constexpr int kChunksM = BLOCK_M / kRows, kChunksN = kColumnsOfWarp / kColumns;
    static constexpr int kPieceBytes = 0; // no pieces: sums go to y straight from registers
    static_assert(kColumnsOfWarp % kColumns == 0 && (BLOCK_M == 64 || BLOCK_M == 128));

    using Base = WgmmaSums<float, kProducts, BLOCK_M>;
    using Base::group;
    using Base::sums;

    const PixelStrips& strips;
    Pixel<int, 3> first; // the tile's first output

    DEVICE PixelTile(const WgmmaPixelsParams& p) : Base(p), strips(p.strips) {}
    // Offset in bytes of this thread's pixels in a strip (rows: at its first channel).
    DEVICE void find_pixels(int (&places)[kPixels]) const {
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
            int along;
            const int run = strips.run.split(chunk_column(0) + own() + i * 8, along);
            places[i] = run * strips.place_run + along * strips.place_column + channel() * (ROWS ? strips.pitch : 4);
        }
    }
    // Which of eight adjacent columns, and which of four channels, this thread holds.
    static DEVICE int own() { return threadIdx.x % 32 / 4; }
    static DEVICE int channel() { return threadIdx.x % 4; }

    // products per step (of eight channels) that are issued together
    static constexpr int kTogether = kProducts > 2 ? 2 : kProducts;

    // Starts to multiply `eights` x 8 channels of a slice: the weights by the inputs of one tap, at `inputs` + places.
    // BOTH: by the large and the small parts of the inputs; otherwise by the large parts. For a whole slice, the inputs
    // of the next step are loaded and rounded while the products of the current one run; partial slices wait for each
    // step.
    template <bool BOTH> DEVICE void multiply(unsigned weights, unsigned inputs, const int (&places)[kPixels],
                                              int eights) {
        constexpr int kOfEight = kProducts / kTogether, kAll = kSteps * kOfEight; // steps
        constexpr bool kAhead = !(BOTH && kProducts > 2);
        const unsigned long long b = rows_along_k<128>(weights);
        unsigned pixels[kPixels];
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
            pixels[i] = inputs + places[i];
            if constexpr (!ROWS) pixels[i] ^= pixels[i] >> 3 & 0x70; // swizzled address of the first four channels
        }
        if (eights < kSteps) {
#pragma unroll 1
            for (int k = 0; k < eights; ++k)
#pragma unroll
                for (int first = 0; first < kProducts; first += kTogether) {
                    float read[kTogether][4];
                    read_step(read, pixels, k, first);
                    multiply_step<BOTH>(read, first, b + k * 2);
                    products_wait<0>();
                }
            return;
        }
        float read[kTogether][4];
        if (kAhead) read_step(read, pixels, 0, 0);
#pragma unroll
        for (int step = 0; step < kAll; ++step) {
            const int k = step / kOfEight, first = step % kOfEight * kTogether;
            if (!kAhead) read_step(read, pixels, k, first);
            multiply_step<BOTH>(read, first, b + k * 2);
            if (kAhead && step + 1 < kAll)
                read_step(read, pixels, (step + 1) / kOfEight, (step + 1) % kOfEight * kTogether);
            products_wait<1>();
        }
    }
    // Starts one step: kTogether products from `first` on.
    template <bool BOTH>
    DEVICE void multiply_step(const float (&read)[kTogether][4], int first, unsigned long long b) {
        unsigned large[kTogether][4], small[kTogether][4];
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                large[i][j] = nearly_rounded_tf32(read[i][j]);
                if constexpr (BOTH)
                    small[i][j] = nearly_rounded_tf32(read[i][j] - __uint_as_float(large[i][j] & ~0x1fffu));
            }
        products_begin();
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            if constexpr (BOTH) Arithmetic::template multiply_rows<BLOCK_M>(sums[first + i], small[i], b);
            Arithmetic::template multiply_rows<BLOCK_M>(sums[first + i], large[i], b);
        }
        products_commit();
    }
    // Loads channels 8 k to 8 k + 7 of the pixels of COUNT products, in the layout of operand A.
    template <int COUNT>
    DEVICE void read_step(float (&values)[COUNT][4], const unsigned (&pixels)[kPixels], int k, int first) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int four = k * 2 + j / 2; // number of the group of four channels
                const unsigned pixel = pixels[(first + i) * 2 + j % 2];
                values[i][j] = __uint_as_float(load_word(ROWS ? pixel + four * 4 * strips.pitch : pixel ^ four * 16));
            }
    }

    // ---- interface for the epilogue (conv/epilogue.cuh)

    DEVICE void stand_at(const WgmmaPixelsParams& p, const Item& item) {
        group = item.group;
        first = first_column(strips, item.n_tile);
    }
    DEVICE Pixel<int, 3> pixel(int column) const {
        int along;
        const int run = strips.run.split(column % BLOCK_N, along);
        return further(this->p, first, run * strips.column_h, run * strips.column_w + along);
    }
    static DEVICE int chunk_row(int i) { return i * kRows; }
    static DEVICE int chunk_column(int j) { return threadIdx.x / 32 % 4 * kColumnsOfWarp + j * kColumns; }
};

// ---- epilogue: registers -> y

// A chunk of 16 output channels x 16 columns of one warp. Chunks are copied out of the tile one by one. A thread holds
// pairs of channels of two columns, so each store of a warp fills whole sectors, in NCHW as well as in NHWC.
template <class Tile> struct PixelChunk {
    static constexpr int kPixels = 2;

    const Epilogue<Tile, float, float, int, 3, false>& epilogue;
    int offsets[kPixels]; // offsets of the columns in y
    bool exist[kPixels];
    int first;              // first output channel of this thread
    float sums[kPixels][4]; // two pairs of channels
    float odd;              // becomes NaN as soon as a sum is not finite

    DEVICE PixelChunk(const Epilogue<Tile, float, float, int, 3, false>& epilogue) : epilogue(epilogue), odd(0) {}
    // Finds the columns of a product in y.
    DEVICE void stand_at(const Tile& tile, int product) {
        const int column = epilogue.column0 + tile.chunk_column(0) + product * 16 + Tile::own();
#pragma unroll
        for (int i = 0; i < kPixels; ++i) exist[i] = epilogue.locate(tile.pixel(column + i * 8), offsets[i]);
    }
    // Copies 16 channels of a product out of the tile.
    DEVICE void take(const Tile& tile, int product, int rows) {
        first = epilogue.m0 + tile.chunk_row(rows) + threadIdx.x % 4 * 2;
#pragma unroll
        for (int number = 0; number < Tile::kProducts * Tile::kChunksM; ++number) {
            const int i = number / Tile::kChunksM, j = number % Tile::kChunksM;
            if (i != product || j != rows) continue;
#pragma unroll
            for (int k = 0; k < 8; ++k)
                copy_register(sums[k / 2 % 2][k / 4 * 2 + k % 2], tile.sums[i][j * 2 + k / 4][k % 4]);
        }
    }
    DEVICE int channel(int k) const { return first + k / 2 * 8 + k % 2; }
    // Finishes the chunk and stores it. PAIRS: two adjacent channels per store.
    template <bool FINISH, bool PAIRS> DEVICE void write() {
        const auto& p = epilogue.p;
        float* const y = epilogue.output() + first * p.y_channel;
        float biases[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) biases[k] = channel(k) < p.filters ? epilogue.bias(channel(k)) : 0.f;
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
            float* const pixel = y + offsets[i];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                sums[i][k] = nan_unless_finite(sums[i][k] + biases[k]); // NaN marks sums to recompute
                odd = multiply_add(sums[i][k], 0.f, odd);
                float* const target = pixel + (channel(k) - first) * p.y_channel;
                if (!exist[i] || channel(k) >= p.filters) continue;
                if constexpr (FINISH) sums[i][k] = finished(epilogue.p.finish, epilogue.p.y, sums[i][k], target);
                if constexpr (!PAIRS) *target = sums[i][k];
                else if (k % 2 == 1) *reinterpret_cast<float2*>(target - 1) = make_float2(sums[i][k - 1], sums[i][k]);
            }
        }
    }
};

// Whether pairs of channels, from an even channel on, are always contiguous and aligned in y, and exist both or not at
// all.
DEVICE bool pairs_of_channels(const Correlation<int, 3>& p, const Taps<int, 3>& taps) {
    const int distances = p.y_batch | taps.y_first | p.y_stride[0] | p.y_stride[1] | p.y_stride[2];
    return p.y_channel == 1 && (p.filters | distances) % 2 == 0 && vectors_aligned(p.finish, p.y, 8);
}

// Writes a tile. Returns whether any thread of the warp had a sum that is not finite.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, bool ROWS>
DEVICE bool write_tile(
    const PixelTile<Arithmetic, BLOCK_M, BLOCK_N, ROWS>& tile,
    const Epilogue<PixelTile<Arithmetic, BLOCK_M, BLOCK_N, ROWS>, float, float, int, 3, false>& epilogue, void*) {
    using Tile = PixelTile<Arithmetic, BLOCK_M, BLOCK_N, ROWS>;
    const bool pairs = pairs_of_channels(epilogue.p, epilogue.taps), finishes = epilogue.p.finish.any();
    PixelChunk<Tile> chunk(epilogue);
#pragma unroll 1
    for (int product = 0; product < Tile::kProducts; ++product) {
        chunk.stand_at(tile, product);
#pragma unroll 1
        for (int rows = 0; rows < Tile::kChunksM; ++rows) {
            chunk.take(tile, product, rows);
            if (pairs) finishes ? chunk.template write<true, true>() : chunk.template write<false, true>();
            else finishes ? chunk.template write<true, false>() : chunk.template write<false, false>();
        }
    }
    __syncwarp(); // a lane repairs outputs that other lanes of its warp wrote
    return __any_sync(0xffffffff, chunk.odd != 0.f);
}

// ---- loading and multiplying slices of K

// The rings of strips and of weights, with the interface that conv/wgmma/run.cuh describes.
template <class Tile, int STAGES, int STRIP_BYTES> struct PixelFeed : StripRings<Tile, STAGES, STRIP_BYTES> {
    using Rings = StripRings<Tile, STAGES, STRIP_BYTES>;
    using Rings::w, Rings::x;

    const PixelStrips& strips;
    int parts;

    DEVICE PixelFeed(unsigned char* shared, const WgmmaPixelsParams& p)
        : Rings(shared, p.strips), strips(p.strips), parts(p.loading.parts) {}
    DEVICE void fetch(const WgmmaPixelsParams& p, const Taps<int, 3>* phases);
    DEVICE void multiply(Tile& tile, const Item& item, bool speaks);
    DEVICE void finish(const Item& item, bool speaks) const {
        if (speaks && item.slices > 0) barrier_arrive(w.empty_before());
    }
    DEVICE void skip(const Item& item) {
        x.skip(item.slices);
        w.skip(item.slices * strips.inner_h * strips.inner_w * parts);
    }
};

// With two parts (3xTF32), a tap's small weights come first, then its large weights, for both parts of the inputs.
template <class Tile, int STAGES, int STRIP_BYTES>
DEVICE void PixelFeed<Tile, STAGES, STRIP_BYTES>::multiply(Tile& tile, const Item& item, bool speaks) {
    int places[Tile::kPixels];
    tile.find_pixels(places);
    bool begun = false;
    for (int slice = item.first_slice, end = slice + item.slices; slice < end; ++slice) {
        const int eights = steps_of<Tile::kSteps, false>(tile.loading, slice);
        x.wait_full();
        unsigned inputs = x.address();
        int across = 0;
        for (int left = strips.inner_h * strips.inner_w * parts; left > 0; --left) {
            const bool last = parts == 1 || left % 2 == 1; // the last slice of this tap's weights
            w.wait_full();
            if (parts == 2 && last) tile.template multiply<true>(w.address(), inputs, places, eights);
            else tile.template multiply<false>(w.address(), inputs, places, eights);
            if (speaks && begun) barrier_arrive(w.empty_before());
            begun = true;
            w.next();
            if (!last) continue;
            inputs += strips.shift_w;
            if (++across < strips.inner_w) continue;
            across = 0;
            inputs += strips.shift_h - strips.inner_w * strips.shift_w;
        }
        proxy_fence();
        __syncwarp(); // all of the warp have read the strip
        if (speaks) barrier_arrive(x.empty());
        x.next();
    }
}

// The producer thread: loads the strips and weights of all of the block's items, in order.
template <class Tile, int STAGES, int STRIP_BYTES>
DEVICE void PixelFeed<Tile, STAGES, STRIP_BYTES>::fetch(const WgmmaPixelsParams& p, const Taps<int, 3>* phases) {
    const Correlation<int, 3>& common = p.problem.common;
    const Taps<int, 3>& taps = *phases;
    for (int number = block_number(); number < p.items; number += gridDim.x) {
        const Item item = item_of(p, phases, number);
        const Pixel<int, 3> first = first_column(strips, item.n_tile);
        SlicePlace<Tile::kBlockK, false> slice;
        slice.first(p.loading, strips.taps, item.first_slice);
        for (int left = item.slices; left > 0; --left) {
            int at[3];
#pragma unroll
            for (int axis = 0; axis < 3; ++axis)
                at[axis] =
                    first.q[axis] * common.stride[axis] + taps.start[axis] + slice.tap[axis] * taps.advance[axis];
            const int channel = item.group * p.loading.x_group + slice.channel;
            x.wait_empty();
            barrier_expect(x.full(), strips.bytes);
            for (int piece = 0; piece < strips.pieces; ++piece) {
                const unsigned target = x.address() + piece * strips.piece_bytes;
                const int h = at[1] + piece * strips.piece_h, w = at[2] + piece * strips.piece_w;
                if constexpr (Tile::kFromRows) copy_box(target, p.x_map, x.full(), w, h, at[0], channel, first.n);
                else copy_box(target, p.x_map, x.full(), channel, w, h, at[0], first.n);
            }
            x.next();
            int tap[3] = {slice.tap[0], slice.tap[1], slice.tap[2]};
            for (int h = 0; h < strips.inner_h; ++h, ++tap[1]) {
                tap[2] = slice.tap[2];
                for (int w_tap = 0; w_tap < strips.inner_w; ++w_tap, ++tap[2])
                    for (int part = parts - 1; part >= 0; --part) {
                        w.wait_empty();
                        barrier_expect(w.full(), Tile::kWeightBytes);
                        copy_box(w.address(), p.w_map, w.full(), slice.channel,
                                 p.loading.w_tap.quotient(tap_row(taps, tap)), item.m_tile * Tile::kBlockM,
                                 item.group * parts + part);
                        w.next();
                    }
            }
            slice.advance(p.loading, strips.taps);
        }
    }
}
