// Main loop of conv/gemm/stem.cu on tensor cores (mma.sync).
//
// Warp: BLOCK_M output channels x 32 pixels. Weights are packed fragments (conv/gemm/pack_fragments.cu), with the taps
// of a row padded to whole 4-byte words. A lane reads the words of its input fragments straight from the band, without
// ldmatrix. The address is the offset of its pixel plus that of the word, which a table holds for all pixels. Fragments
// take pixels in pairs, so that each lane's sums form whole vectors of adjacent pixels.
#pragma once
#include "conv/gemm/fragments.cuh"
#include "conv/gemm/stem.cuh"
#include "base/vectors.cuh"

// See the top of this file. It has the interfaces that implicit_gemm.cuh and conv/epilogue.cuh describe.
template <class Arithmetic, int BLOCK_M> struct StemMma {
    using T = typename Arithmetic::Element;
    using Acc = typename Arithmetic::Acc;
    using Inputs = typename Arithmetic::Inputs;
    using Place = FragmentPlace<T>;

    static constexpr int kThreads = 256, kBlockM = BLOCK_M, kStages = 3;
    using Box = StemBox<T, kThreads>;
    static constexpr int kParts = Arithmetic::kParts;
    static constexpr int kFragmentsM = BLOCK_M / 16, kFragmentsN = 4, kWarpPixels = kFragmentsN * 8;
    static constexpr int kDepths = 4 / kParts; // fragments along K per slice
    static constexpr int kFragmentBytes = 512 * kParts, kWeightColumn = kDepths * kFragmentBytes;
    static constexpr int kStageBytes = kFragmentsM * kWeightColumn, kWords = 8; // words of K per fragment
    static_assert(kWarpPixels * (kThreads / 32) == Box::kPixels && kFragmentsN == 4);

    // For the epilogue.
    static constexpr int kRows = 16, kColumns = 32, kPitch = kColumns + 8;
    static constexpr int kChunksM = kFragmentsM, kChunksN = 1;
    static constexpr bool kClips = true;
    // padded words may read past the taps, and rows of K past the last one: zero weights times any input
    static constexpr bool kExact = false;
    static constexpr int kPieces = kRows * kPitch * (kThreads / 32) * sizeof(Acc);
    static constexpr int kBufferBytes = kPieces > kStages* kStageBytes ? kPieces : kStages * kStageBytes;

    static constexpr int kNeighbours = 16 / sizeof(T); // adjacent pixels per lane

    const StemParams& p;
    const Box& box;
    unsigned buffers, table;
    const unsigned char *weights,
        *next_weights;           // of this block's group; this thread's source in the next slice
    int m0, fragment;            // m0; the next fragment along K to multiply
    unsigned place[kFragmentsN]; // shared-memory addresses of this lane's pixels in the band
    Acc sums[kFragmentsM][kFragmentsN][4];

    // Computes the addresses of this lane's pixels in the band.
    DEVICE StemMma(const StemParams& p, const Box& box, unsigned char* shared)
        : p(p), box(box), buffers(shared_address(shared)),
          table(buffers + kBufferBytes + p.band_bytes + lane() % 4 * 4) {
#pragma unroll
        for (int j = 0; j < kFragmentsN; ++j)
            place[j] = buffers + kBufferBytes + box.place(pixel_of_warp(j, lane() / 4));
    }
    DEVICE int lane() const { return threadIdx.x % 32; }
    DEVICE int warp() const { return threadIdx.x / 32; }
    DEVICE void stand(int group, int first_m) {
        weights = static_cast<const unsigned char*>(p.common.weights) + group * (p.common.all_rows * p.common.pitch);
        m0 = first_m;
    }
    DEVICE void start() {
        next_weights = weights + m0 / 16 * kWeightColumn + threadIdx.x * 16;
        fragment = 0;
        clear(sums);
    }
    static DEVICE int fragments(const StemParams& p) { return (p.steps + kWords - 1) / kWords; }
    static DEVICE int entries(const StemParams& p) { return fragments(p) * kWords; }
    DEVICE int slices() const { return (fragments(p) + kDepths - 1) / kDepths; }

    // ---- loading and multiplying a slice

    // Starts to load the next slice of packed weights into a buffer.
    DEVICE void fetch(int stage) {
        const unsigned target = buffers + stage * kStageBytes + threadIdx.x * 16;
#pragma unroll
        for (int i = 0; i < kStageBytes; i += kThreads * 16)
            if (kStageBytes % (kThreads * 16) == 0 || i + int(threadIdx.x) * 16 < kStageBytes)
                copy_async<16>(target + i, next_weights + i, 16);
        next_weights += p.common.pitch;
    }
    DEVICE void deposit(int) const {}
    // Multiplies the fragments along K of one slice.
    DEVICE void multiply(int stage) {
        unsigned a_place = buffers + stage * kStageBytes + lane() * 16;
        const int end = min(fragment + kDepths, fragments(p));
#pragma unroll 1
        for (; fragment < end; ++fragment, a_place += kFragmentBytes) {
            uint4 a[kFragmentsM][1][kParts];
            Inputs b[kFragmentsN][1];
            const unsigned low = load_word(table + fragment * (kWords * 4)),
                           high = load_word(table + fragment * (kWords * 4) + 16);
#pragma unroll
            for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
                for (int part = 0; part < kParts; ++part)
                    a[i][0][part] = load_shared(a_place + i * kWeightColumn + part * 512);
#pragma unroll
            for (int j = 0; j < kFragmentsN; ++j)
                b[j][0] = Arithmetic::prepare(load_word(place[j] + low), load_word(place[j] + high));
#pragma unroll
            for (int i = 0; i < kFragmentsM; ++i)
#pragma unroll
                for (int j = 0; j < kFragmentsN; ++j) Arithmetic::multiply(sums[i][j], a[i], b[j]);
        }
    }

    // ---- interface for the epilogue (conv/epilogue.cuh)

    DEVICE Pixel<int, 4> pixel(int column) const { return box.pixel(column); }
    DEVICE int chunk_row(int i) const { return i * kRows; }
    DEVICE int chunk_column(int) const { return warp() * kWarpPixels; }
    // Stores chunk i of this warp's sums to the piece.
    DEVICE void put(Acc* piece, int i, int) const {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int f = 0; f < kFragmentsN; ++f) {
                const Acc pair[2] = {sums[i][f][half * 2], sums[i][f][half * 2 + 1]};
                store_shared(piece + (lane() / 4 + half * 8) * kPitch + pixel_of_warp(f, lane() % 4 * 2)
                                 - warp() * kWarpPixels,
                             pair);
            }
    }
    // The pixel number n of fragment f, counted in the block.
    DEVICE int pixel_of_warp(int f, int n) const {
        constexpr int kPairs = kNeighbours / 2;
        return warp() * kWarpPixels + f / kPairs * (4 * kNeighbours) + n / 2 * kNeighbours + f % kPairs * 2 + n % 2;
    }
    // Finishes and writes all sums. Returns whether any is not finite.
    template <class Writer> DEVICE bool write(const Writer& writer, void* shared) const {
        const bool aligned = vectors_aligned(p.common.finish, p.common.y, 16);
        if (p.channel_vectors && aligned) return write_channels(writer, shared);
        if (!p.pixel_vectors || !aligned) return writer.write(shared);
        bool suspect = false;
#pragma unroll
        for (int f = 0; f < kFragmentsN; f += kNeighbours / 2) suspect = write_rows(writer, f) || suspect;
        return suspect;
    }
    // NCHW: each lane stores a vector of adjacent pixels, for some rows.
    template <class Writer> DEVICE bool write_rows(const Writer& writer, int f) const {
        const Pixel<int, 4> at = box.pixel(pixel_of_warp(f, lane() % 4 * 2));
        int offset;
        if (!writer.locate(at, offset)) return false;
        T* y = writer.output() + (offset + (m0 + lane() / 4) * p.common.y_channel);
        Acc check = 0; // check stays 0, or becomes NaN if a sum is not finite
#pragma unroll
        for (int row = 0; row < BLOCK_M; row += 8, y += 8 * p.common.y_channel) {
            const int m = m0 + lane() / 4 + row;
            if (m >= p.common.filters) break;
            const Acc added = writer.bias(m);
            Acc out[kNeighbours];
#pragma unroll
            for (int i = 0; i < kNeighbours; ++i) {
                out[i] = nan_unless_finite(sums[row / 16][f + i / 2][row / 8 % 2 * 2 + i % 2] + added);
                check = multiply_add(out[i], Acc(0), check);
            }
            if (p.common.finish.any()) finish_all(p.common.finish, p.common.y, out, y); // NaN marks sums to recompute
            store_narrowed(y, out);
        }
        return check != Acc(0);
    }
    // NHWC: 16 channels at a time, transposed in shared memory; each lane stores a vector, adjacent lanes those of a
    // pixel.
    template <class Writer> DEVICE bool write_channels(const Writer& writer, void* shared) const {
        constexpr int kLanes = 16 / kNeighbours, kPixelPitch = kRows + 1;
        static_assert(kColumns * kPixelPitch <= kRows * kPitch);
        Acc *piece = static_cast<Acc*>(shared) + warp() * (kRows * kPitch), check = 0;
        T* targets[kLanes];
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
            int offset;
            const bool exists = writer.locate(box.pixel(warp() * kWarpPixels + (lane() + j * 32) / kLanes), offset);
            targets[j] = exists ? writer.output() + (offset + m0 + lane() % kLanes * kNeighbours) : nullptr;
        }
#pragma unroll
        for (int i = 0; i < kFragmentsM; ++i) {
            __syncwarp();
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = lane() / 4 + half * 8, m = m0 + i * 16 + row;
                const Acc added = m < p.common.filters ? writer.bias(m) : Acc(0);
#pragma unroll
                for (int k = 0; k < 8; ++k) {
                    const Acc sum = nan_unless_finite(sums[i][k / 2][half * 2 + k % 2] + added);
                    check = multiply_add(sum, Acc(0), check);
                    piece[(pixel_of_warp(k / 2, lane() % 4 * 2) + k % 2 - warp() * kWarpPixels) * kPixelPitch + row] =
                        sum;
                }
            }
            __syncwarp();
#pragma unroll
            for (int j = 0; j < kLanes; ++j) {
                const Acc* source = piece + (lane() + j * 32) / kLanes * kPixelPitch + lane() % kLanes * kNeighbours;
                Acc out[kNeighbours];
#pragma unroll
                for (int k = 0; k < kNeighbours; ++k) out[k] = source[k];
                if (targets[j] == nullptr || m0 + i * 16 + lane() % kLanes * kNeighbours >= p.common.filters) continue;
                if (p.common.finish.any()) finish_all(p.common.finish, p.common.y, out, targets[j] + i * 16);
                store_narrowed(targets[j] + i * 16, out);
            }
        }
        return check != Acc(0);
    }
    DEVICE Acc weight(int row, int m) const {
        return packed_weight<Arithmetic, kDepths * Place::kDepth>(weights, p.common.pitch, row, m);
    }
};
