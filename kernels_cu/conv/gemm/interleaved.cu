// ConvTranspose with a stride along W, by FFMA: a block computes all phases along W of its pixels, interleaves them in
// shared memory and writes whole rows. Chosen where the strided stores of one phase at a time would cost more than the
// products.
//
// Block: a tile of output channels x pixels, once for each phase along W (conv/phases.cuh), and one phase along the
// other axes, those with the most taps first. Each phase's sums go to their own plane of shared memory:
//
//     for each phase along W:  implicit GEMM -> registers -> plane[phase]
//     planes -> y, lanes reading the phases in turn:  phase 0 1 2 0 1 2 ... of a row of y, coalesced
//
// Phase 0 is computed last, and its plane overlaps the pipeline's buffers. Planes are padded so that lanes that read a
// few adjacent elements of each plane have no bank conflicts.
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/implicit_gemm.cuh"
#include "conv/phases.cuh"

// The planes and the stores. Multiplier: the main loop.
template <class Multiplier, class T, class Acc, class Index, int NDIM> struct Interleaved {
    using Writer = Epilogue<Multiplier, T, Acc, Index, NDIM, true>;
    static constexpr int kRows = Writer::kRows, kColumns = Writer::kColumns, kPitch = Writer::kPitch;
    static constexpr int kPlane =
        Multiplier::kThreads / 32 * Multiplier::kChunksM * Multiplier::kChunksN * Writer::kPiece;
    static_assert(kPlane * sizeof(Acc) <= Multiplier::kSharedBytes);

    const ConvTransposeParams<Index, NDIM>& p; // coordinates of the whole problem, all phases
    const Divider<Index>& phases;              // number of phases along W, as a divisor
    Acc* shared;                               // buffers of the pipeline, then the planes, then the taps

    DEVICE Interleaved(const ConvTransposeParams<Index, NDIM>& p, void* shared)
        : p(p), phases(p.axes[NDIM - 1].phases), shared(static_cast<Acc*>(shared)) {}
    // The plane of a phase, and in it the chunk (i, j) of this thread's warp.
    DEVICE Acc* plane(int phase) const {
        constexpr int kBuffers = Multiplier::kSharedBytes / sizeof(Acc);
        return phase == 0 ? shared : shared + kBuffers + (phase - 1) * kPlane + phase * spread<Acc>(phases.divisor);
    }
    DEVICE Acc* piece(int phase, int i, int j) const {
        return plane(phase)
             + ((threadIdx.x / 32 * Multiplier::kChunksM + i) * Multiplier::kChunksN + j) * Writer::kPiece;
    }
    // The taps of all phases along W, after the last plane.
    DEVICE Taps<Index, NDIM>* taps() const { return reinterpret_cast<Taps<Index, NDIM>*>(plane(phases.divisor)); }
    DEVICE Writer writer(const Multiplier& multiplier, int phase, Index group, Index m_tile, Index n_tile) const {
        return {p.common, taps()[phase], multiplier, group, m_tile * Multiplier::kBlockM, n_tile * Multiplier::kBlockN};
    }

    // Fills in the taps of every phase along W. `number`: the phase's number along the other axes, in launch order.
    DEVICE void fill(Index number) const {
        if (threadIdx.x >= phases.divisor) return;
        Index phase[NDIM];
        phase[NDIM - 1] = threadIdx.x;
#pragma unroll
        for (int axis = NDIM - 2; axis >= 0; --axis) {
            Index rank;
            number = p.axes[axis].phases.split(number, rank);
            phase[axis] = phase_of_rank(p.axes[axis], rank);
        }
        fill_taps(p, phase, taps()[threadIdx.x]);
    }
    // Stores the sums of one phase to its plane.
    DEVICE void lay(const Multiplier& multiplier, int phase) const {
#pragma unroll
        for (int i = 0; i < Multiplier::kChunksM; ++i)
#pragma unroll
            for (int j = 0; j < Multiplier::kChunksN; ++j) multiplier.put(piece(phase, i, j), i, j);
    }
    // Writes the outputs of all phases. Returns whether this thread wrote a value that is not finite.
    DEVICE bool write(const Multiplier& multiplier, Index group, Index m_tile, Index n_tile) const {
        bool suspect = false;
#pragma unroll 1
        for (int number = 0; number < Multiplier::kChunksN * int(phases.divisor); ++number) {
            Index part, phase;
            const int j = int(phases.split(Index(number), part));
            const int column = int(phases.split(part * kColumns + Index(threadIdx.x) % kColumns, phase));
            const Writer out = writer(multiplier, int(phase), group, m_tile, n_tile);
            Index offset;
            if (!out.locate(pixel(p.common, out.column0 + multiplier.chunk_column(j) + column), offset)) continue;
            const bool its = p.common.finish.any() ? write_column<true>(out, int(phase), j, column, offset)
                                                   : write_column<false>(out, int(phase), j, column, offset);
            suspect = its || suspect;
        }
        return suspect;
    }
    // Writes one column of chunk column j of a phase, all rows. Returns whether a value was not finite.
    template <bool FINISH>
    DEVICE bool write_column(const Writer& out, int phase, int j, int column, Index offset) const {
        T* y = out.output();
        bool suspect = false;
#pragma unroll
        for (int i = 0; i < Multiplier::kChunksM; ++i) {
            const Acc* sums = piece(phase, i, j) + threadIdx.x % 32 / kColumns * kPitch + column;
            const Index m = out.first_row(i);
#pragma unroll(FINISH ? 2 : kRows / Writer::kRowStep)
            for (int row = 0; row < kRows; row += Writer::kRowStep) {
                if (m + row >= p.common.filters) continue;
                const Acc sum = sums[row * kPitch] + out.bias(m + row);
                suspect = out.template store<FINISH>(y[offset + (m + row) * p.common.y_channel], sum) || suspect;
            }
        }
        return suspect;
    }
};

// One block. Shared memory: the pipeline's buffers, then the planes and the taps.
template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          bool UNIFORM_TAP>
DEVICE void conv_transpose_interleaved(const ConvTransposeParams<Index, NDIM>& p) {
    using Multiplier = Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, UNIFORM_TAP, true>;
    extern __shared__ __align__(128) unsigned char shared[];
    const Interleaved<Multiplier, T, Acc, Index, NDIM> all(p, shared);
    Index group, m_tile, n_tile;
    all.fill(phase_tile(p, block_number(), group, m_tile, n_tile));
    __syncthreads();
#pragma unroll 1
    for (int phase = int(all.phases.divisor) - 1;; --phase) {
        Multiplier multiplier(p.common, all.taps()[phase], shared);
        phase_tile(p, block_number(), group, m_tile, n_tile);
        multiplier.stand(group, m_tile * BLOCK_M);
        multiplier.start(n_tile * BLOCK_N);
        accumulate(multiplier, multiplier.slices());
        all.lay(multiplier, phase);
        if (phase > 0) continue;
        __syncwarp();
        const bool suspect = all.write(multiplier, group, m_tile, n_tile);
        if (!__any_sync(~0u, suspect)) return;
        __syncwarp(); // a lane repairs outputs that other lanes of its warp wrote
#pragma unroll 1
        for (phase = int(all.phases.divisor) - 1; phase >= 0; --phase)
            all.writer(multiplier, phase, group, m_tile, n_tile).repair();
        return;
    }
}
