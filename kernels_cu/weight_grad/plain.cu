// Gradient of the weights as a GEMM by FFMA, for every dtype, rank and layout (weight_grad/problem.cuh): the general
// kernel.
//
// Block: kBlockM filters x kBlockN columns, over one part of the pixels. Thread: kThreadM x kThreadN sums; its rows are
// kAlongM apart, its columns kAlongN. A slice of K is 32 output pixels, one per lane. A warp loads 32 adjacent pixels
// of dy for one filter, or of x for one column, and stores them as a row of shared memory.
//
//     global -> registers (next slice, prefetched) -> shared rows[filter][pixel], columns[column][pixel] -> FFMA
//
// Rows are 16 bytes longer than a slice, so 16-byte loads of eight lanes from eight rows have no bank conflicts. Zeros
// stand for out-of-bounds inputs. They add nothing, unless they meet an infinite dy: non-finite sums are recomputed
// over the valid inputs only. Bound by instruction issue: FFMA and the index arithmetic of the gather. A second launch
// (passes/add_up.cu) adds the parts.
#include "base/vectors.cuh"
#include "weight_grad/problem.cuh"

// One block; see the top of this file.
template <class T, class Acc, class Index, int NDIM> struct WeightGrad {
    static constexpr int kThreads = 128, kBlockM = 64, kBlockN = 64, kThreadM = 8, kThreadN = 4, kSlice = 32;
    static constexpr int kAlongM = kBlockM / kThreadM, kAlongN = kBlockN / kThreadN; // threads along M, along N
    // rows and columns that a warp loads
    static constexpr int kWarps = kThreads / 32, kRows = kBlockM / kWarps, kColumns = kBlockN / kWarps;
    static constexpr int kVector = 16 / sizeof(Acc), kPitch = kSlice + kVector;
    static_assert(kAlongM * kAlongN == kThreads);

    using Vector = Elements<Acc, kVector>;

    const WeightGradParams<Index, NDIM>& p;
    Column<Index, NDIM>* table;
    Acc *rows, *columns;                  // [filter or column][pixel], in shared memory
    const T *x, *dy;                      // of this block's group
    Index filter0, column0, first, limit; // first filter and column of the tile; range of pixels of this part
    T from_dy[kRows], from_x[kColumns];
    Acc sums[kThreadM][kThreadN];

    // ---- one slice of K

    // Loads the slice that begins at `pixel` into registers.
    DEVICE void fetch(Index pixel) {
        Output<Index, NDIM> output;
        output.find(p, pixel + threadIdx.x % 32, limit);
        const int warp = threadIdx.x / 32;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const Index filter = filter0 + warp + i * kWarps;
            from_dy[i] = output.exists && filter < p.filters ? dy[output.in_dy + filter * p.dy_channel] : T(0.f);
        }
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            const Column<Index, NDIM>& column = table[warp + i * kWarps];
            from_x[i] = column.meets(p, output) ? x[output.in_x + column.in_x] : T(0.f);
        }
    }
    // Stores the loaded slice to shared memory, widened.
    DEVICE void deposit() const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < kRows; ++i) rows[(warp + i * kWarps) * kPitch + lane] = widen(from_dy[i]);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) columns[(warp + i * kWarps) * kPitch + lane] = widen(from_x[i]);
    }
    static DEVICE Vector part(const Acc* source) { return *reinterpret_cast<const Vector*>(source); }
    // Multiplies the slice in shared memory, kVector pixels at a time.
    DEVICE void multiply() {
        const Acc* left = rows + threadIdx.x / kAlongN * kPitch;
        const Acc* right = columns + threadIdx.x % kAlongN * kPitch;
#pragma unroll 1
        for (int k = 0; k < kSlice; k += kVector) {
            Vector of_columns[kThreadN];
#pragma unroll
            for (int j = 0; j < kThreadN; ++j) of_columns[j] = part(right + j * kAlongN * kPitch + k);
#pragma unroll
            for (int i = 0; i < kThreadM; ++i) {
                const Vector of_row = part(left + i * kAlongM * kPitch + k);
#pragma unroll
                for (int j = 0; j < kThreadN; ++j)
#pragma unroll
                    for (int v = 0; v < kVector; ++v)
                        sums[i][j] = multiply_add(of_row.values[v], of_columns[j].values[v], sums[i][j]);
            }
        }
    }

    // ---- the whole block

    // Adds the products of all slices of this part. The next slice is loaded while one is multiplied.
    DEVICE void accumulate() {
        fetch(first);
#pragma unroll 1
        for (Index pixel = first; pixel < limit; pixel += kSlice) {
            __syncthreads(); // all threads have finished reading the previous slice
            deposit();
            __syncthreads();
            if (pixel + kSlice < limit) fetch(pixel + kSlice);
            multiply();
        }
    }
    DEVICE Index filter(int i) const { return filter0 + threadIdx.x / kAlongN + i * kAlongM; }
    DEVICE int column(int j) const { return threadIdx.x % kAlongN + j * kAlongN; }
    // Stores this thread's sums to the workspace. Returns whether all of them are finite.
    DEVICE bool leave(Acc* target) const {
        bool finite = true;
#pragma unroll
        for (int i = 0; i < kThreadM; ++i)
#pragma unroll
            for (int j = 0; j < kThreadN; ++j) {
                if (filter(i) >= p.filters || column0 + column(j) >= p.columns) continue;
                target[filter(i) * p.columns + column0 + column(j)] = sums[i][j];
                finite = finite && is_finite(sums[i][j]);
            }
        return finite;
    }
    // Recomputes this thread's non-finite sums over the valid inputs only.
    DEVICE void repair(Acc* target) const {
#pragma unroll 1
        for (int number = 0; number < kThreadM * kThreadN; ++number) {
            const int i = number / kThreadN, j = number % kThreadN;
            if (filter(i) >= p.filters || column0 + column(j) >= p.columns) continue;
            Acc& left = target[filter(i) * p.columns + column0 + column(j)];
            if (is_finite(left)) continue;
            const Column<Index, NDIM> at = table[column(j)];
            Acc sum = 0;
#pragma unroll 1
            for (Index pixel = first; pixel < limit; ++pixel) {
                Output<Index, NDIM> output;
                output.find(p, pixel, limit);
                if (at.meets(p, output))
                    sum = multiply_add(widen(dy[output.in_dy + filter(i) * p.dy_channel]),
                                       widen(x[output.in_x + at.in_x]), sum);
            }
            left = sum;
        }
    }
    // Finds the block's tile and part, accumulates, stores, and repairs if needed.
    DEVICE void run() {
        const WeightGradTile<Index> tile = tile_of_block(p);
        filter0 = tile.m_tile * kBlockM;
        column0 = tile.n_tile * kBlockN;
        first = tile.part * p.each;
        limit = first + p.each < p.pixels ? first + p.each : p.pixels;
        x = static_cast<const T*>(p.x) + tile.group * p.channels * p.x_channel;
        dy = static_cast<const T*>(p.dy) + tile.group * p.filters * p.dy_channel;
        if (threadIdx.x < kBlockN) table[threadIdx.x].find(p, column0 + threadIdx.x);
        clear(sums);
        __syncthreads();
        accumulate();
        Acc* target = static_cast<Acc*>(p.sums) + tile.part * p.all + tile.group * p.filters * p.columns;
        if (!leave(target)) repair(target);
    }
};

// The kernel; see the top of this file.
template <class T, class Acc, class Index, int NDIM>
DEVICE void conv_weight_grad(const WeightGradParams<Index, NDIM>& p) {
    using Block = WeightGrad<T, Acc, Index, NDIM>;
    __shared__ __align__(16) Acc slice[(Block::kBlockM + Block::kBlockN) * Block::kPitch];
    __shared__ Column<Index, NDIM> table[Block::kBlockN];
    Block block{p, table, slice, slice + Block::kBlockM * Block::kPitch};
    block.run();
}
