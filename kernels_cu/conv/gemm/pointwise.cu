// Conv of kernel size 1, stride 1 and no padding, in float32, as one plain GEMM by FFMA: y[n] = w x[n]. Spatial axes
// are merged into one. It reads w unpacked, so the call is a single launch.
//
// Weights: a warp loads eight adjacent channels of four filters and stores them transposed to shared memory. Rows there
// are four elements longer than the tile, which avoids bank conflicts. Inputs are copied 16 bytes at a time if all rows
// of x are so aligned (a uniform branch), otherwise element by element. The main loop is that of ffma.cuh. Bound by
// FFMA, or by memory with few channels or filters.
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/implicit_gemm.cuh"

struct ConvPointwiseParams {
    Correlation<int, 1> common; // `weights` is w itself
    Taps<int, 1> taps;
    int w_group, w_filter, w_channel;
};

// The main loop: Ffma with loaders for unpacked weights and contiguous inputs.
template <class T, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N>
struct Pointwise : Ffma<T, T, int, 1, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, true, false, BLOCK_M + 4> {
    static constexpr bool kClips = false;
    static constexpr int kPitchM = BLOCK_M + 4;
    using Base = Ffma<T, T, int, 1, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, true, false, kPitchM>;
    using Base::kThreads, Base::kVector, Base::m0, Base::p, Base::taps, Base::x;
    static constexpr int kAlong = 8, kFilters = kThreads / kAlong; // channels and filters that a block copies at once
    static constexpr int kColumnVectors = BLOCK_N / kVector;
    static_assert(BLOCK_K % kAlong == 0 && BLOCK_M % kFilters == 0 && kThreads % kColumnVectors == 0);

    const ConvPointwiseParams& all;
    const T* w;               // first weight of this block's group
    const T *next_w, *next_x; // this thread's sources in the next slice
    int left;                 // channels that remain from there on
    bool vectors, exists;     // copy 16 bytes at a time; whether this thread's columns exist

    DEVICE Pointwise(const ConvPointwiseParams& all, void* shared) : Base(all.common, all.taps, shared), all(all) {}

    DEVICE void stand(int group, int first_m) {
        Base::stand(group, first_m);
        w = static_cast<const T*>(p.weights) + group * all.w_group;
    }
    // Prepares for the first slice, and chooses the width of copies by alignment.
    DEVICE void start(int column0) {
        Base::start(column0);
        const int pixels = int(p.extent[0].divisor), steps = pixels | p.x_channel | p.x_batch;
        vectors = (reinterpret_cast<unsigned long long>(x) % 16 | steps % kVector) == 0 && p.x_stride[0] == 1;
        const Pixel<int, 1> mine =
            pixel(p, column0 + (vectors ? int(threadIdx.x) % kColumnVectors * kVector : int(threadIdx.x) % BLOCK_N));
        exists = mine.exists;
        next_x = x + mine.n * p.x_batch + mine.q[0] * p.x_stride[0];
        next_w = w + (m0 + first_filter()) * all.w_filter + first_channel() * all.w_channel;
        left = taps.rows;
    }
    DEVICE int first_channel() const { return threadIdx.x % kAlong; }
    DEVICE int first_filter() const { return threadIdx.x / kAlong; }

    // ---- loading a slice: global -> shared

    // Starts to load the next slice into a buffer.
    DEVICE void fetch(int stage) {
        fetch_weights(shared_address(Base::weight_stage(stage)));
        const unsigned target = shared_address(Base::input_stage(stage));
        if (vectors) fetch_inputs<kVector>(target);
        else fetch_inputs<1>(target);
        next_w += BLOCK_K * all.w_channel;
        next_x += BLOCK_K * p.x_channel;
        left -= BLOCK_K;
    }
    // Copies this thread's weights of the slice, transposed.
    DEVICE void fetch_weights(unsigned target) {
#pragma unroll
        for (int k = 0; k < BLOCK_K; k += kAlong) {
            const T* source = next_w + k * all.w_channel;
            const bool found = k + first_channel() < left;
#pragma unroll
            for (int m = 0; m < BLOCK_M; m += kFilters) {
                const int place = (k + first_channel()) * kPitchM + m + first_filter();
                const bool whole = found && m0 + m + first_filter() < p.filters;
                copy_async<sizeof(T)>(target + place * sizeof(T), source, whole ? sizeof(T) : 0);
                source += kFilters * all.w_filter;
            }
        }
    }
    // Copies WIDTH pixels of every kStep-th row of K.
    template <int WIDTH> DEVICE void fetch_inputs(unsigned target) {
        constexpr int kAcross = BLOCK_N / WIDTH, kStep = kThreads / kAcross; // threads per row of K; rows of K at once
        const int row = threadIdx.x / kAcross;
        const T* source = next_x + row * p.x_channel;
#pragma unroll
        for (int k = 0; k < BLOCK_K; k += kStep) {
            const bool found = exists && k + row < left;
            copy_async<WIDTH * sizeof(T)>(target + ((k + row) * BLOCK_N + threadIdx.x % kAcross * WIDTH) * sizeof(T),
                                          source, found ? WIDTH * sizeof(T) : 0);
            source += kStep * p.x_channel;
        }
    }
    DEVICE T weight(int row, int m) const { return w[m * all.w_filter + row * all.w_channel]; }
};

template <class T, class Acc, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N>
DEVICE void conv_pointwise(const ConvPointwiseParams& p) {
    extern __shared__ __align__(16) unsigned char shared[];
    using Multiplier = Pointwise<T, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N>;
    make_tile<T, Acc>(Multiplier(p, shared), p.common, p.taps, shared);
}
