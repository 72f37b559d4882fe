// Main loop of conv/gemm/stem.cu by FFMA, in float32.
//
// Warp: 32 output channels x 64 pixels. Thread: 8 x 8 sums, of every eighth pixel, so that eight lanes read inputs one
// stride apart in a row of the band. CHUNK successive rows of K are adjacent in the band and share one table entry.
#pragma once
#include "conv/gemm/stem.cuh"

// See the top of this file. It has the interfaces that implicit_gemm.cuh and conv/epilogue.cuh describe.
template <int CHUNK> struct StemFfma {
    using T = float;
    using Acc = float;
    static constexpr int kThreads = 128, kBlockM = 32, kStages = 3, kVector = 4;
    using Box = StemBox<T, kThreads>;
    static constexpr int kSteps = 32 / CHUNK, kRowsOfSlice = CHUNK * kSteps;
    static constexpr int kLanesN = 8, kPixels = 8; // lanes of a warp along N; pixels of a thread
    static constexpr int kWarpPixels = kLanesN * kPixels;
    static constexpr int kStageElements = kRowsOfSlice * kBlockM;
    static_assert(kWarpPixels * (kThreads / 32) == Box::kPixels);

    // For the epilogue: a lane holds every eighth column of a chunk.
    static constexpr int kRows = 16, kColumns = 32, kPitch = kColumns + 2;
    static constexpr int kChunksM = kBlockM / kRows, kChunksN = kWarpPixels / kColumns;
    static constexpr bool kExact = true, kClips = true;
    static constexpr int kPieces = kRows * kPitch * (kThreads / 32);
    static constexpr int kBufferBytes =
        (kPieces > kStages * kStageElements ? kPieces : kStages * kStageElements) * sizeof(Acc);

    using Vector = Elements<Acc, kVector>;

    const StemParams& p;
    const Box& box;
    Acc* buffers;
    const unsigned char* band;
    const int* table;
    const Acc* weights;     // packed weights of this block's group
    int m0, next_row, step; // m0; the first row of K of the next slice to load; the next step of K to multiply
    int place[kPixels];     // offsets of this thread's pixels in the band, in bytes
    Acc sums[8][kPixels];

    DEVICE StemFfma(const StemParams& p, const Box& box, unsigned char* shared)
        : p(p), box(box), buffers(reinterpret_cast<Acc*>(shared)), band(shared + kBufferBytes),
          table(reinterpret_cast<const int*>(shared + kBufferBytes + p.band_bytes)) {
#pragma unroll
        for (int j = 0; j < kPixels; ++j) place[j] = box.place(warp() * kWarpPixels + j * kLanesN + lane_n());
    }
    DEVICE int warp() const { return threadIdx.x / 32; }
    DEVICE int lane_m() const { return threadIdx.x % 32 / kLanesN; }
    DEVICE int lane_n() const { return threadIdx.x % kLanesN; }
    DEVICE void stand(int group, int first_m) {
        weights = static_cast<const Acc*>(p.common.weights) + group * (p.common.all_rows * p.common.pitch);
        m0 = first_m;
    }
    DEVICE void start() {
        next_row = step = 0;
        clear(sums);
    }
    DEVICE int slices() const { return (p.steps + kSteps - 1) / kSteps; }
    static DEVICE int entries(const StemParams& p) { return p.steps; }

    // ---- loading and multiplying a slice

    // Starts to load the next slice of packed weights into a buffer.
    DEVICE void fetch(int stage) {
        // threads per row of weights; rows at once
        constexpr int kLanes = kBlockM / kVector, kStep = kThreads / kLanes;
        const int m = m0 + threadIdx.x % kLanes * kVector;
#pragma unroll
        for (int row = threadIdx.x / kLanes, i = 0; i < kRowsOfSlice; i += kStep, row += kStep) {
            if (kRowsOfSlice % kStep != 0 && row >= kRowsOfSlice) break;
            const bool found = next_row + row < p.taps.rows && m < p.common.pitch;
            const Acc* source = weights + (found ? (next_row + row) * p.common.pitch + m : 0);
            copy_async<16>(shared_address(buffers + stage * kStageElements + (i * kLanes + threadIdx.x) * kVector),
                           source, found ? 16 : 0);
        }
        next_row += kRowsOfSlice;
    }
    DEVICE void deposit(int) const {}
    // Multiplies the steps of K of one slice.
    DEVICE void multiply(int stage) {
        const Acc* a = buffers + stage * kStageElements + lane_m() * kVector;
        const int end = min(step + kSteps, p.steps);
#pragma unroll 1
        for (; step < end; ++step, a += CHUNK * kBlockM) {
            const unsigned char* inputs = band + table[step];
#pragma unroll
            for (int k = 0; k < CHUNK; ++k) {
                Vector rows[kChunksM];
                Acc columns[kPixels];
#pragma unroll
                for (int i = 0; i < kChunksM; ++i)
                    rows[i] = *reinterpret_cast<const Vector*>(a + k * kBlockM + i * kRows);
#pragma unroll
                for (int j = 0; j < kPixels; ++j)
                    columns[j] = *reinterpret_cast<const Acc*>(inputs + place[j] + k * sizeof(T));
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < kPixels; ++j)
                        sums[i][j] = multiply_add(rows[i / kVector].values[i % kVector], columns[j], sums[i][j]);
            }
        }
    }

    // ---- interface for the epilogue (conv/epilogue.cuh)

    DEVICE Pixel<int, 4> pixel(int column) const { return box.pixel(column); }
    DEVICE int chunk_row(int i) const { return i * kRows; }
    DEVICE int chunk_column(int j) const { return warp() * kWarpPixels + j * kColumns; }
    // Stores chunk (i, j) of this warp's sums to the piece.
    DEVICE void put(Acc* piece, int i, int j) const {
#pragma unroll
        for (int row = 0; row < kVector; ++row)
#pragma unroll
            for (int k = 0; k < kColumns / kLanesN; ++k)
                piece[(lane_m() * kVector + row) * kPitch + k * kLanesN + lane_n()] =
                    sums[i * kVector + row][j * (kColumns / kLanesN) + k];
    }
    // Writes directly from registers: eight lanes fill a sector of a row of pixels (NCHW), four lanes one of channels
    // (NHWC). Returns whether any sum is not finite.
    template <bool CHANNELS_LAST, class Writer> DEVICE bool write(const Writer& writer) const {
        const int m = m0 + lane_m() * kVector;
        Acc added[8], check = 0; // check stays 0, or becomes NaN if a sum is not finite
#pragma unroll
        for (int i = 0; i < 8; ++i) added[i] = m + row(i) < p.common.filters ? writer.bias(m + row(i)) : Acc(0);
#pragma unroll
        for (int j = 0; j < kPixels; ++j) {
            int offset;
            const bool exists = writer.locate(box.pixel(warp() * kWarpPixels + j * kLanesN + lane_n()), offset);
            T* y = writer.output() + (offset + m * p.common.y_channel);
            const int left = exists ? p.common.filters - m : 0;
            Acc out[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                out[i] = sums[i][j] + added[i];
                check = multiply_add(out[i], Acc(0), check);
            }
            if (p.common.finish.any()) finish_outputs<CHANNELS_LAST>(out, y, left);
            if constexpr (CHANNELS_LAST) {
#pragma unroll
                for (int i = 0; i < 8; i += kVector)
                    if (row(i) < left)
                        *reinterpret_cast<float4*>(y + row(i)) =
                            make_float4(out[i], out[i + 1], out[i + 2], out[i + 3]);
            } else {
#pragma unroll
                for (int i = 0; i < 8; ++i, y += p.common.y_channel) {
                    if (i == kVector) y += (kRows - kVector) * p.common.y_channel;
                    if (row(i) < left) *y = out[i];
                }
            }
        }
        return check != Acc(0);
    }
    // Adds the residual to this thread's eight outputs of a pixel and applies the activation.
    template <bool CHANNELS_LAST> DEVICE void finish_outputs(Acc (&out)[8], const T* y, int left) const {
#pragma unroll
        for (int i = 0; i < 8; i += kVector) {
            if (row(i) >= left) continue;
            if constexpr (CHANNELS_LAST) {
                finish_all(p.common.finish, p.common.y, reinterpret_cast<Acc(&)[kVector]>(out[i]), y + row(i));
            } else {
#pragma unroll
                for (int k = i; k < i + kVector; ++k)
                    if (row(k) < left)
                        out[k] = finished(p.common.finish, p.common.y, out[k], y + row(k) * p.common.y_channel);
            }
        }
    }
    // Whether four adjacent channels of y are one aligned vector.
    DEVICE bool channels_are_vectors() const {
        return p.channel_vectors && vectors_aligned(p.common.finish, p.common.y, 16);
    }
    template <class Writer> DEVICE bool write(const Writer& writer, void* shared) const {
        if (p.common.y_channel != 1) return write<false>(writer);
        return channels_are_vectors() ? write<true>(writer) : writer.write(shared);
    }
    // Row of the tile of this thread's sum i, without its lane's part.
    static DEVICE int row(int i) { return i / kVector * kRows + i % kVector; }
    DEVICE Acc weight(int row, int m) const { return weights[row * p.common.pitch + m]; }
};
