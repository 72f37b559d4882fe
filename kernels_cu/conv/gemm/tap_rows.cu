// Conv to few output channels: the taps along W are rows of the GEMM.
//
// M = (output channel, tap along W), N = the pixels along W that some output meets, K = (other taps, channel): an input
// is fetched once for all taps along W. An output is the sum of its rows, each of another pixel, as far on as the tap
// is:
//
//     y[n, m, q] = b[m] + sum over taps j along W of rows[m, j][n, q + j * dilation]
//
// With a stride along W, rows are runs of as many taps, of which the last may be shorter, N counts runs of as many
// pixels, and K has the taps of a run too: what a run of taps makes of a run of pixels serves one output.
//
// The sums of the whole tile pass through shared memory, where threads of neighbouring outputs add them up. Tiles have
// whole filters, and overlap along N by the pixels that one output meets beyond its first. Where they are few, several
// blocks share a tile's K (conv/gemm/split_k.cuh).
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/mma.cuh"
#include "conv/gemm/split_k.cuh"
#include "conv/gemm/whole_tile.cuh"

struct TapRowsParams {
    Correlation<int, 3> common; // filters are rows, those of each tile filled up; columns are pixels
    Taps<int, 3> taps;          // but for those along W
    int filters, of_tile;       // of one group, of one tile
    int along, run, kernel;     // rows of a filter; taps of each, and all of them, along W
    int first, step;            // columns from an output's own to that of its first row, and from row to row
    int outputs, width;         // of a tile; along W
    Splits splits;
};

template <class Multiplier, class T, class Acc> struct TapRows {
    static constexpr int kPitch = Multiplier::kBlockN + Multiplier::kPitch - Multiplier::kColumns;
    static_assert((kPitch - Multiplier::kBlockN) * sizeof(Acc) <= 64); // for which the plan has room

    const TapRowsParams& p;
    const Multiplier& multiplier;
    int group, m_tile, column0; // of the block's tile

    DEVICE void write(void* shared) const {
        Acc* sums = static_cast<Acc*>(shared);
        lay_out(multiplier, sums, kPitch);
        const TilePlace<int> tile{group, m_tile * Multiplier::kBlockM, column0};
        repair<T>(multiplier, p.common, p.taps, tile, sums, kPitch,
                  [&](int row, const int (&tap)[3]) { return row % p.along * p.run + tap[2] < p.kernel; });
        if (p.common.finish.any()) write<true>(sums);
        else write<false>(sums);
    }
    // Threads beyond those that have a pixel each share its filters with them.
    template <bool FINISH> DEVICE void write(const Acc* sums) const {
        constexpr int kBlockN = Multiplier::kBlockN, kThreads = Multiplier::kThreads;
        constexpr int kSharing = kThreads > kBlockN ? kThreads / kBlockN : 1;
        const int filter = m_tile * p.of_tile, filters = min(p.of_tile, p.filters - filter);
#pragma unroll 1
        for (int i = threadIdx.x % (kThreads / kSharing); i < p.outputs; i += kThreads / kSharing) {
            const Pixel<int, 3> at = pixel(p.common, column0 + i);
            if (!at.exists || at.q[2] >= p.width) continue;
            T* y = static_cast<T*>(p.common.y) + (group * p.filters + filter) * p.common.y_channel
                 + dot(at.q, p.common.y_stride, at.n * p.common.y_batch);
#pragma unroll 1
            for (int m = threadIdx.x / (kThreads / kSharing); m < filters; m += kSharing) {
                const Acc* row = sums + m * p.along * kPitch + i + p.first;
                Acc sum = 0;
#pragma unroll 4
                for (int tap = 0; tap < p.along; ++tap) {
                    sum += *row;
                    row += kPitch + p.step;
                }
                const int of_group = filter + m;
                if (p.common.b != nullptr)
                    sum += widen(static_cast<const T*>(p.common.b)[(group * p.filters + of_group) * p.common.b_stride]);
                T* target = y + m * p.common.y_channel;
                if constexpr (FINISH) sum = finished(p.common.finish, p.common.y, sum, target);
                *target = narrow<T>(sum);
            }
        }
    }
};

template <class Multiplier, class T, class Acc> DEVICE void add_taps(const TapRowsParams& p, void* shared) {
    Multiplier multiplier(p.common, p.taps, shared);
    int group, m_tile, n_tile;
    const auto position = [&](int tile, int& group, int& m_tile, int& n_tile) {
        tile_of(p.common, tile, group, m_tile, n_tile);
    };
    if (!make_sums<Acc>(multiplier, p.splits, p.outputs, group, m_tile, n_tile, position)) return;
    TapRows<Multiplier, T, Acc>{p, multiplier, group, m_tile, n_tile * p.outputs}.write(shared);
}

template <class T, class Acc, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N, bool UNIFORM_TAP>
DEVICE void conv_tap_rows_ffma(const TapRowsParams& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    add_taps<Ffma<T, Acc, int, 3, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, UNIFORM_TAP, false>, T, Acc>(p,
                                                                                                              shared);
}

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, Gather GATHER>
DEVICE void conv_tap_rows_mma(const TapRowsParams& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    using Multiplier = Mma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, GATHER, false>;
    add_taps<Multiplier, typename Multiplier::T, typename Multiplier::Acc>(p, shared);
}
