// ConvTranspose whose kernel is its stride, without dilation, by FFMA (conv/gemm/depth_to_space.cuh).
//
// Weights (C, M, taps) are already the rows that the GEMM asks for, if they lie so in memory and have the accumulator's
// type: then they are read as they are, 16 bytes at once where their addresses allow that.
#include "conv/gemm/depth_to_space.cuh"
#include "conv/gemm/ffma.cuh"

// One tap: a column's inputs lie one channel apart, and nothing about taps is to be found during the main loop.
template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N>
struct Pointwise : Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, true, false> {
    using Base = Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, true, false>;
    using Base::Base;
    using Base::kVector;

    const T* source; // of the next slice's first element that this thread moves
    bool vectors;    // whether each row of weights consists of whole, aligned vectors

    DEVICE void start(Index column0) {
        Base::start(column0);
        source = this->x + this->window.image + Index(threadIdx.x) / BLOCK_N * this->p.x_channel
               + dot(this->window.origin, this->p.x_stride);
        vectors = reinterpret_cast<unsigned long long>(this->weights) % 16 == 0 && this->p.pitch % kVector == 0;
    }
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
    DEVICE void fetch_weights(int stage) const {
#pragma unroll
        for (int i = 0; i < (Base::kWeightVectors + Base::kThreads - 1) / Base::kThreads; ++i) {
            const int vector = threadIdx.x + i * Base::kThreads;
            if (Base::kWeightVectors % Base::kThreads != 0 && vector >= Base::kWeightVectors) break;
            const int row = vector / (BLOCK_M / kVector), m = vector % (BLOCK_M / kVector) * kVector;
            const unsigned target = shared_address(this->weight_stage(stage) + row * BLOCK_M + m);
            const Acc* from = this->weights + (this->next_k + row) * this->p.pitch + this->m0 + m;
            const Index left = this->next_k + row < this->taps.rows ? this->p.pitch - this->m0 - m : 0;
            if (!Base::kAsync || vectors) { // others are packed
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
