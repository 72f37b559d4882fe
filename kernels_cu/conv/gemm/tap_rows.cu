// Conv with few output channels, as a GEMM whose rows are (output channel, tap along W). One row per output channel
// would leave most of a tile empty; here the tile is full, and each input is loaded once for all taps along W.
//
// M = (output channel, tap along W), N = the input pixels along W, K = (other taps, channel). An output is the sum of
// its filter's rows, each taken at the column of its own tap:
//
//     y[n, m, q] = b[m] + sum over taps j along W of rows[m, j][n, q + j * dilation]
//
//              column   q   q+1  q+2
//     row (m, 0)        a                     y[q] = a + b + c
//     row (m, 1)             b
//     row (m, 2)                  c
//
// With a stride s along W, rows are runs of s taps (the last one may be shorter), N counts runs of s pixels, and K
// includes the taps within a run. Each run of taps times a run of pixels contributes to one output.
//
// The tile's sums go to shared memory, where threads with adjacent outputs add them. Tiles hold whole filters, and
// overlap along N by the halo of one output. If tiles are few, blocks share a tile's K (conv/gemm/split_k.cuh). What
// bounds it is as for ffma.cuh and mma.cuh, plus adding the rows in shared memory.
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/mma.cuh"
#include "conv/gemm/split_k.cuh"
#include "conv/gemm/whole_tile.cuh"

// Counts are those of one group.
struct TapRowsParams {
    Correlation<int, 3> common; // `filters` counts rows of M, padded per tile; columns are pixels
    Taps<int, 3> taps;          // without those along W
    int filters, of_tile;       // filters per group, per tile
    int along, run, kernel;     // rows per filter; taps per row, and in all, along W
    int first, step;            // columns between an output and its first row's sum; between successive rows' sums
    int outputs, width;         // outputs per tile; outputs along W
    Splits splits;
};

// The epilogue of one tile.
template <class Multiplier, class T, class Acc> struct TapRows {
    static constexpr int kPitch = Multiplier::kBlockN + Multiplier::kPitch - Multiplier::kColumns;
    static_assert((kPitch - Multiplier::kBlockN) * sizeof(Acc) <= 64); // the planner reserves this much

    const TapRowsParams& p;
    const Multiplier& multiplier;
    int group, m_tile, column0; // of the block's tile

    // Stores the sums to shared memory, repairs them, adds the rows of each output and writes it.
    DEVICE void write(void* shared) const {
        Acc* sums = static_cast<Acc*>(shared);
        lay_out(multiplier, sums, kPitch);
        const TilePlace<int> tile{group, m_tile * Multiplier::kBlockM, column0};
        repair<T>(multiplier, p.common, p.taps, tile, sums, kPitch,
                  [&](int row, const int (&tap)[3]) { return row % p.along * p.run + tap[2] < p.kernel; });
        if (p.common.finish.any()) write<true>(sums);
        else write<false>(sums);
    }
    // If there are more threads than columns, several threads share a pixel and divide its filters.
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

// One block: sums (or its split of them), then the epilogue in the last block of the tile.
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
