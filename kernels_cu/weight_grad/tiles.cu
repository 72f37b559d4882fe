// Gradient of the weights as a GEMM in large tiles, on tensor cores or by FFMA, for up to three spatial axes
// (weight_grad/problem.cuh). Chosen when there are enough filters and channels to fill a tile.
//
// Block: filters x columns of one group, over one part of the output pixels. It is a pipelined GEMM
// (conv/gemm/implicit_gemm.cuh) whose slices of K are output pixels (weight_grad/tiles_slices.cuh), multiplied by
// tiles_mma.cuh or tiles_ffma.cuh. Sums go to the workspace as (group, filter, tap, channel), coalesced; a second
// launch (passes/add_up.cu) adds the parts. Sums that zeros of the padding, or rounded factors, have made wrong are
// recomputed. Bound by tensor cores or FFMA, by gathering elements one by one where neither channels nor pixels are
// contiguous, or by memory.
#include "conv/gemm/implicit_gemm.cuh"
#include "weight_grad/tiles_ffma.cuh"
#include "weight_grad/tiles_mma.cuh"

// Driver and epilogue of one block.
template <class Multiplier> struct WeightGradBlock {
    using T = typename Multiplier::T;
    using Acc = typename Multiplier::Acc;
    static constexpr int kBlockM = Multiplier::kBlockM, kBlockN = Multiplier::kBlockN;

    const WeightGradTileParams& tile;
    Multiplier& multiplier;
    int first, limit;
    Acc* target; // sums of this block's part and group

    DEVICE const WeightGradParams<int, 3>& p() const { return tile.common; }
    // Decodes the block's number. Called again after the main loop, to save registers.
    DEVICE void stand() {
        const WeightGradTile<int> at = tile_of_block(p());
        multiplier.slices.stand(at.group, at.m_tile * kBlockM, at.n_tile * kBlockN);
        first = at.part * p().each;
        limit = first + p().each < p().pixels ? first + p().each : p().pixels;
        target = static_cast<Acc*>(p().sums) + (at.part * p().all + at.group * p().filters * p().columns);
    }
    // Whether a sum may be wrong: zero times infinity gives NaN; rounded factors (TF32) may also give infinities.
    static DEVICE bool spoilt(Acc sum) { return Multiplier::kExact ? sum != sum : !is_finite(sum); }
    // Offset of a column within a filter's sums. Returns false if there is no such column.
    DEVICE bool locate(int number, int& offset) const {
        int channel;
        const int tap = tile.channels.split(number, channel);
        offset = tap * p().channels + channel;
        return channel < p().channels && offset < p().columns;
    }
    // Stores the sums to the workspace. Returns whether some of them may be wrong.
    DEVICE bool leave() const {
        bool suspect = false;
#pragma unroll
        for (int j = 0; j < Multiplier::kFragmentsN; ++j)
#pragma unroll
            for (int e = 0; e < Multiplier::kOfColumns; ++e) {
                int offset;
                const bool exists = locate(multiplier.slices.column0 + multiplier.column(j, e), offset);
#pragma unroll
                for (int i = 0; i < Multiplier::kFragmentsM; ++i)
#pragma unroll
                    for (int half = 0; half < Multiplier::kOfRows; ++half) {
                        const int element = half * Multiplier::kOfColumns + e;
                        const int filter = multiplier.slices.filter0 + multiplier.row(i, element);
                        if (!exists || filter >= p().filters) continue;
                        const Acc sum = multiplier.sums[i][j][element];
                        target[filter * p().columns + offset] = sum;
                        suspect = suspect || spoilt(sum);
                    }
            }
        return suspect;
    }
    // Recomputes the wrong sums of this thread.
    DEVICE void repair() const {
#pragma unroll 1
        for (int j = 0; j < Multiplier::kFragmentsN; ++j)
#pragma unroll 1
            for (int i = 0; i < Multiplier::kFragmentsM; ++i)
#pragma unroll 1
                for (int element = 0; element < Multiplier::kOfRows * Multiplier::kOfColumns; ++element) {
                    const int number = multiplier.slices.column0 + multiplier.column(j, element);
                    const int filter = multiplier.slices.filter0 + multiplier.row(i, element);
                    int offset;
                    if (!locate(number, offset) || filter >= p().filters) continue;
                    Acc& left = target[filter * p().columns + offset];
                    if (spoilt(left)) left = sum_inside(number, filter);
                }
    }
    // One sum over the valid inputs, product by product.
    DEVICE Acc sum_inside(int number, int filter) const {
        int tap, channel;
        Standing away;
        find_column(tile, number, tap, channel, away);
        Acc sum = 0;
#pragma unroll 1
        for (int pixel = first; pixel < limit && sum == sum; ++pixel) { // stops at the first NaN
            Output<int, 3> output;
            output.find(p(), pixel, limit);
            const Standing at{output.in_x, {output.origin[0], output.origin[1], output.origin[2]}};
            if (meets(at, away.coordinate, p().x_extent))
                sum = multiply_add(widen(multiplier.slices.dy[output.in_dy + filter * p().dy_channel]),
                                   widen(multiplier.slices.x[output.in_x + away.offset]), sum);
        }
        return sum;
    }
    // Main loop, then stores, then repair if needed.
    DEVICE void run(void* shared) {
        stand();
        clear(multiplier.sums);
        multiplier.slices.start(first, limit, shared_address(shared));
        accumulate(multiplier, (limit - first + Multiplier::kSlice - 1) / Multiplier::kSlice);
        stand();
        if (leave()) repair();
    }
};

// Lays out shared memory (buffers, then tables) and runs the block.
template <class Multiplier> DEVICE void make_weight_grad(const WeightGradTileParams& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    auto& tables =
        *reinterpret_cast<typename Multiplier::Tables*>(shared + Multiplier::kStages * Multiplier::Filler::kBytes);
    Multiplier multiplier{{{p, tables}}};
    WeightGradBlock<Multiplier> block{p, multiplier};
    block.run(shared);
}

template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES,
          template <class, int, int, int, int, int> class Slices>
DEVICE void conv_weight_grad_mma(const WeightGradTileParams& p) {
    make_weight_grad<WeightGradMma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, Slices>>(p);
}

template <int BLOCK_M, int BLOCK_N, int BLOCK_K, int STAGES, template <class, int, int, int, int, int> class Slices>
DEVICE void conv_weight_grad_ffma(const WeightGradTileParams& p) {
    make_weight_grad<WeightGradFfma<BLOCK_M, BLOCK_N, BLOCK_K, STAGES, Slices>>(p);
}
