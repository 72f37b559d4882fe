// ConvTranspose whose kernel equals its stride, without dilation, as one GEMM by FFMA whose result is rearranged (depth
// to space). Every output has exactly one tap, so M = (output channel, tap), N = input pixels, K = input channels.
//
// The epilogue is in conv/gemm/depth_to_space.cuh. Weights (C, M, taps) are the GEMM's matrix already. If they are
// contiguous and of the accumulator's type, they are read in place, in 16-byte copies if their alignment allows;
// otherwise a launch packs them first.
#include "conv/gemm/depth_to_space.cuh"
#include "conv/gemm/ffma.cuh"

// Main loop for a single tap: successive rows of K are one channel apart in x, so no tap is searched in the loop.
template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N>
struct Pointwise : Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, true, false> {
    using Base = Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, true, false>;
    using Base::Base;
    using Base::kVector;

    const T* source; // this thread's first element of x in the next slice
    bool vectors;    // whether every row of the weights consists of whole, aligned 16-byte vectors

    DEVICE void start(Index column0) {
        Base::start(column0);
        source = this->x + this->window.image + Index(threadIdx.x) / BLOCK_N * this->p.x_channel
               + dot(this->window.origin, this->p.x_stride);
        vectors = reinterpret_cast<unsigned long long>(this->weights) % 16 == 0 && this->p.pitch % kVector == 0;
    }
    // Starts to load the next slice into a buffer.
    DEVICE void fetch(int stage) {
        fetch_weights(stage);
        const int row = threadIdx.x / BLOCK_N;
        const unsigned target = shared_address(this->input_stage(stage) + row * BLOCK_N + threadIdx.x % BLOCK_N);
#pragma unroll
        for (int i = 0; i < Base::kGathers; ++i) {
            const int step = i * Base::kGatherStep;
            const bool found = this->window.exists && this->next_k + row + step < this->taps.rows;
            this->move(i, target + step * BLOCK_N * sizeof(Acc), source + step * this->p.x_channel, found);
        }
        source += BLOCK_K * this->p.x_channel;
        this->next_k += BLOCK_K;
    }
    // Copies the slice's weights, 16 bytes or one element at a time; zeros past K and past the last row of M.
    DEVICE void fetch_weights(int stage) const {
#pragma unroll
        for (int i = 0; i < (Base::kWeightVectors + Base::kThreads - 1) / Base::kThreads; ++i) {
            const int vector = threadIdx.x + i * Base::kThreads;
            if (Base::kWeightVectors % Base::kThreads != 0 && vector >= Base::kWeightVectors) break;
            const int row = vector / (BLOCK_M / kVector), m = vector % (BLOCK_M / kVector) * kVector;
            const unsigned target = shared_address(this->weight_stage(stage) + row * BLOCK_M + m);
            const Acc* from = this->weights + (this->next_k + row) * this->p.pitch + this->m0 + m;
            const Index left = this->next_k + row < this->taps.rows ? this->p.pitch - this->m0 - m : 0;
            if (!Base::kAsync || vectors) { // packed weights (16-bit types) always are
                copy_async<16>(target, from, left > 0 ? 16 : 0);
            } else {
#pragma unroll
                for (int k = 0; k < kVector; ++k)
                    copy_async<sizeof(Acc)>(target + k * sizeof(Acc), from + k, k < left ? sizeof(Acc) : 0);
            }
        }
    }
};

template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N>
DEVICE void conv_transpose_depth_to_space(const DepthToSpaceParams<Index, NDIM>& p) {
    extern __shared__ __align__(16) unsigned char shared[];
    using Multiplier = Pointwise<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N>;
    make_blocks<Multiplier, T, Acc>(p, shared);
}
