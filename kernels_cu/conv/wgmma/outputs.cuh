// Epilogue of the wgmma kernels: vectorised stores where y allows them. Adjacent pixels of an output channel (NCHW) are
// stored straight from registers; channels of a pixel (NHWC) go through shared memory (conv/wide_outputs.cuh). All
// other layouts go element by element (conv/epilogue.cuh).
#pragma once
#include "conv/epilogue.cuh"
#include "base/vectors.cuh"
#include "conv/wide_outputs.cuh"

// Returns how many successive columns are always contiguous and aligned in y: 8, 4 or 1. Columns of a tile succeed each
// other along the AXES innermost axes.
template <class T, int AXES, int NDIM>
DEVICE int columns_at_once(const Correlation<int, NDIM>& p, const Taps<int, NDIM>& taps) {
    int pixels = 1, beyond = 0;
    bool one_by_one = true;
#pragma unroll
    for (int axis = NDIM - 1; axis >= 0; --axis) {
        if (axis < NDIM - AXES) {
            beyond |= p.y_stride[axis];
            continue;
        }
        const int extent = int(p.extent[axis].divisor);
        one_by_one = one_by_one && taps.limit[axis] == extent && (extent == 1 || p.y_stride[axis] == pixels);
        pixels *= extent;
    }
    const int distances = pixels | beyond | p.y_batch | p.y_channel | taps.y_first;
    if (!one_by_one) return 1;
    if (sizeof(T) == 2 && distances % 8 == 0 && vectors_aligned(p.finish, p.y, 16)) return 8;
    return distances % 4 == 0 && vectors_aligned(p.finish, p.y, 4 * sizeof(T)) ? 4 : 1;
}

// Whether 16 bytes of channels are always contiguous and aligned in y, and a warp's 16 channels exist all or not at
// all.
template <class T, int NDIM>
DEVICE bool channels_at_once(const Correlation<int, NDIM>& p, const Taps<int, NDIM>& taps) {
    int distances = p.y_batch | taps.y_first;
#pragma unroll
    for (int axis = 0; axis < NDIM; ++axis) distances |= p.y_stride[axis];
    return p.y_channel == 1 && p.filters % 16 == 0 && distances >= 0 && distances % (16 / int(sizeof(T))) == 0
        && vectors_aligned(p.finish, p.y, 16);
}

// Exchanges words between two lanes: the lower lane's `high` for the upper lane's `low`.
template <int DISTANCE> DEVICE void trade(unsigned& low, unsigned& high) {
    const bool upper = threadIdx.x & DISTANCE;
    const unsigned other = __shfl_xor_sync(0xffffffff, upper ? low : high, DISTANCE);
    low = upper ? other : low;
    high = upper ? high : other;
}

// A transposition among four lanes that hold pairs of the same eight columns of several rows of fragments: afterwards
// each lane holds COUNT adjacent columns. Applied twice, it is the identity.
template <class T, int COUNT> struct Exchange {
    static constexpr int kPairWords = sizeof(T) / 2, kPairs = COUNT / 2, kWords = kPairs * kPairWords;
    struct alignas(4 * kWords) Words { unsigned words[kWords]; };

    // First of this lane's columns, of the kPairs * 8 columns.
    static DEVICE int column() {
        const int lane = threadIdx.x % 4;
        return COUNT == 8 ? lane * 8 : lane % 2 * 8 + lane / 2 * 4;
    }
    // The transposition itself.
    static DEVICE void all(unsigned (&words)[kWords]) {
        if constexpr (COUNT == 8) {
            trade<2>(words[0], words[2]);
            trade<2>(words[1], words[3]);
            trade<1>(words[0], words[1]);
            trade<1>(words[2], words[3]);
        } else {
#pragma unroll
            for (int i = 0; i < kPairWords; ++i) trade<1>(words[i], words[kPairWords + i]);
        }
    }
    // Rounds and stores, or loads and widens, one pair.
    static DEVICE void put(unsigned (&words)[kWords], int pair, float first, float second) {
        const Pair<T> rounded{narrow<T>(first), narrow<T>(second)};
        const Raw<2 * sizeof(T)>& raw = reinterpret_cast<const Raw<2 * sizeof(T)>&>(rounded);
#pragma unroll
        for (int i = 0; i < kPairWords; ++i) words[pair * kPairWords + i] = raw.words[i];
    }
    static DEVICE float get(const unsigned (&words)[kWords], int pair, int which) {
        return Widened<T>::of(words + pair * kPairWords, which);
    }
};

// A register copy that the compiler cannot merge with others. Merged copies would index the sums dynamically, which
// forces them into local memory.
DEVICE void copy_register(float& target, float source) { asm volatile("mov.f32 %0, %1;" : "=f"(target) : "f"(source)); }

// A 16 x 32 chunk of one warp's sums, on its way to y. Chunks are copied out of the tile one by one, so that the
// epilogue's code exists once, in a loop, and not once per chunk.
template <class T, class Tile, bool PHASED> struct Chunk {
    using Wide = WideOutputs<T, Tile::kColumns>;
    static_assert(Tile::kColumns == 32 && Wide::kBytes <= Tile::kPieceBytes / 8);

    const Epilogue<Tile, T, float, int, 3, PHASED>& epilogue;
    const Finish& finish;
    int first, column0; // first output channel and first column of the chunk
    float sums[4][4];
    float odd; // becomes NaN as soon as a sum of the vector path is not finite

    DEVICE Chunk(const Epilogue<Tile, T, float, int, 3, PHASED>& epilogue)
        : epilogue(epilogue), finish(epilogue.p.finish), odd(0) {}
    // Copies chunk number `which` out of the tile.
    DEVICE void take(const Tile& tile, int which) {
        first = epilogue.m0 + tile.chunk_row(which / Tile::kChunksN);
        column0 = epilogue.column0 + tile.chunk_column(which % Tile::kChunksN);
#pragma unroll
        for (int number = 0; number < Tile::kChunksM * Tile::kChunksN; ++number) {
            if (number != which) continue;
#pragma unroll
            for (int k = 0; k < 16; ++k)
                copy_register(sums[k / 4][k % 4],
                              tile.sums[number / Tile::kChunksN][number % Tile::kChunksN * 4 + k / 4][k % 4]);
        }
    }
    DEVICE int row(int half) const { return first + half * 8 + threadIdx.x % 32 / 4; }
    DEVICE float bias(int half) const { return row(half) < epilogue.p.filters ? epilogue.bias(row(half)) : 0.f; }
    // Adds the bias, and records in `odd` whether all sums are finite.
    DEVICE void add_bias() {
        const float biases[2] = {bias(0), bias(1)};
#pragma unroll
        for (int k = 0; k < 16; ++k) {
            float& sum = sums[k / 4][k % 4];
            sum += biases[k % 4 / 2];
            if constexpr (!Tile::kExact) sum = nan_unless_finite(sum);
            odd = multiply_add(sum, 0.f, odd);
        }
    }
    DEVICE void activate() {
        if (finish.acts == 0) return;
#pragma unroll
        for (int k = 0; k < 16; ++k) sums[k / 4][k % 4] = activated(finish, sums[k / 4][k % 4]);
    }

    // ---- vectors of COUNT columns (NCHW)

    // Calls f(address in y, whether it exists, first fragment j, half) for each vector of this lane.
    template <int COUNT, class F> DEVICE void for_places(F&& f) const {
        using Lanes = Exchange<T, COUNT>;
        T* const y = epilogue.output() + row(0) * epilogue.p.y_channel;
#pragma unroll
        for (int j = 0; j < 4; j += Lanes::kPairs) {
            int offset;
            const bool exists = epilogue.locate(epilogue.multiplier.pixel(column0 + j * 8 + Lanes::column()), offset);
            f(y + offset, exists & (row(0) < epilogue.p.filters), j, 0);
            f(y + offset + 8 * epilogue.p.y_channel, exists & (row(1) < epilogue.p.filters), j, 1);
        }
    }
    // Loads the residual as vectors of columns, transposes them back to the layout of the sums, and adds them.
    template <int COUNT> DEVICE void add_residual() {
        using Lanes = Exchange<T, COUNT>;
        for_places<COUNT>([&](const T* target, bool exists, int j, int half) {
            typename Lanes::Words line = {};
            if (exists)
                line = *reinterpret_cast<const typename Lanes::Words*>(residual_of(finish, epilogue.p.y, target));
            __syncwarp();
            Lanes::all(line.words);
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                float& sum = sums[j + k / 2][half * 2 + k % 2];
                sum += Lanes::get(line.words, k / 2, k % 2);
                odd = multiply_add(sum, 0.f, odd);
            }
        });
    }
    // Finishes the chunk and stores it as vectors of columns.
    template <int COUNT> DEVICE void write_columns() {
        using Lanes = Exchange<T, COUNT>;
        if (finish.residual != nullptr) add_residual<COUNT>();
        activate();
        for_places<COUNT>([&](T* target, bool exists, int j, int half) {
            typename Lanes::Words line;
#pragma unroll
            for (int k = 0; k < Lanes::kPairs; ++k)
                Lanes::put(line.words, k, sums[j + k][half * 2], sums[j + k][half * 2 + 1]);
            Lanes::all(line.words);
            if (exists) *reinterpret_cast<typename Lanes::Words*>(target) = line;
        });
    }

    // ---- vectors of 16 bytes of channels (NHWC)

    // Finishes the chunk and stores it as vectors of channels, by way of the piece.
    DEVICE void write_channels(unsigned char* piece) {
        int offsets[1];
        if (!epilogue.locate(epilogue.multiplier.pixel(column0 + int(threadIdx.x % 32)), offsets[0])) offsets[0] = -1;
        if (finish.residual != nullptr && first < epilogue.p.filters) {
            T* const y = epilogue.output() + first;
            Wide::read_chunks(piece, residual_of(finish, epilogue.p.y, y), offsets);
            __syncwarp();
            Wide::get_chunks(piece, [&](int j, int half, float before, float after) {
                const float added[2] = {before, after};
#pragma unroll
                for (int k = 0; k < 2; ++k) {
                    float& sum = sums[j][half * 2 + k];
                    sum += added[k];
                    odd = multiply_add(sum, 0.f, odd);
                }
            });
            __syncwarp();
        }
        activate();
        Wide::put_chunks(piece, sums);
        __syncwarp();
        if (first < epilogue.p.filters) Wide::write_chunks(piece, epilogue.output() + first, offsets);
        __syncwarp();
    }

    // ---- element by element: conv/epilogue.cuh, which also adds the bias

    // Stores the chunk to the piece.
    DEVICE void put(float* piece) const {
        float* mine = piece + threadIdx.x % 32 / 4 * Tile::kPitch + threadIdx.x % 4 * 2;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const float pair[2] = {sums[k / 2][k % 2 * 2], sums[k / 2][k % 2 * 2 + 1]};
            store_shared(mine + k % 2 * 8 * Tile::kPitch + k / 2 * 8, pair);
        }
    }
    // Returns whether this thread wrote a value that is not finite.
    template <bool FINISH> DEVICE bool write_elements(float* piece) const {
        int offset;
        const bool exists = epilogue.locate(epilogue.multiplier.pixel(column0 + int(threadIdx.x % 32)), offset);
        put(piece);
        __syncwarp();
        const bool suspect = epilogue.p.y_channel == 1
                               ? epilogue.template write_channels<FINISH>(piece, exists, offset, first)
                               : epilogue.template write_pixels<FINISH>(piece, exists, offset, first);
        __syncwarp();
        return suspect;
    }
    DEVICE bool write_elements(float* piece) const {
        return finish.any() ? write_elements<true>(piece) : write_elements<false>(piece);
    }
};

// Writes a tile in the widest way that y allows. Returns whether any thread of the warp had a sum that is not finite.
template <class T, class Tile, bool PHASED>
DEVICE bool write_tile(const Tile& tile, const Epilogue<Tile, T, float, int, 3, PHASED>& epilogue, void* pieces) {
    const auto& p = epilogue.p;
    const bool channels = channels_at_once<T>(p, epilogue.taps);
    const int columns = channels ? 0 : columns_at_once<T, Tile::kAxesInOrder>(p, epilogue.taps);
    unsigned char* piece = static_cast<unsigned char*>(pieces) + threadIdx.x / 32 * (Tile::kPieceBytes / 8);
    Chunk<T, Tile, PHASED> chunk(epilogue);
    if (columns == 1) {
        bool suspect = false;
#pragma unroll 1
        for (int which = 0; which < Tile::kChunksM * Tile::kChunksN; ++which) {
            chunk.take(tile, which);
            suspect = chunk.write_elements(reinterpret_cast<float*>(piece)) || suspect;
        }
        return __any_sync(0xffffffff, suspect);
    }
#pragma unroll 1
    for (int which = 0; which < Tile::kChunksM * Tile::kChunksN; ++which) {
        chunk.take(tile, which);
        chunk.add_bias();
        if (channels) chunk.write_channels(piece);
        else if (columns == 4) chunk.template write_columns<4>();
        else if constexpr (sizeof(T) == 2) chunk.template write_columns<8>();
    }
    __syncwarp(); // a lane repairs outputs that other lanes of its warp wrote
    return __any_sync(0xffffffff, chunk.odd != 0.f);
}
