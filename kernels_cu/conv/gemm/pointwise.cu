// Conv of one tap, stride 1 and no padding, as the plain GEMM that it is: y[n] = w x[n], whatever the rank.
//
// Weights are read straight from w, neighbouring channels of four filters by a warp, and laid transposed into shared
// memory, whose rows are four elements longer than a tile: there are no bank conflicts. Inputs come 16 bytes
// a copy where all rows of x begin on 16 bytes, which all blocks see alike, else one by one.
#include "conv/gemm/ffma.cuh"
#include "conv/gemm/implicit_gemm.cuh"

struct ConvPointwiseParams {
    Correlation<int, 1> common; // its weights are w itself
    Taps<int, 1> taps;
    int w_group, w_filter, w_channel;
};

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
    const T* w;               // of this block's group
    const T *next_w, *next_x; // of this thread, of the slice to be fetched next
    int left;                 // channels from there on
    bool vectors, exists;     // whether 16 bytes are copied at once; whether this thread's columns exist

    DEVICE Pointwise(const ConvPointwiseParams& all, void* shared) : Base(all.common, all.taps, shared), all(all) {}

    DEVICE void stand(int group, int first_m) {
        Base::stand(group, first_m);
        w = static_cast<const T*>(p.weights) + group * all.w_group;
    }
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

    // ---- fetching a slice

    DEVICE void fetch(int stage) {
        fetch_weights(shared_address(Base::weight_stage(stage)));
        const unsigned target = shared_address(Base::input_stage(stage));
        if (vectors) fetch_inputs<kVector>(target);
        else fetch_inputs<1>(target);
        next_w += BLOCK_K * all.w_channel;
        next_x += BLOCK_K * p.x_channel;
        left -= BLOCK_K;
    }
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
    template <int WIDTH> DEVICE void fetch_inputs(unsigned target) {
        constexpr int kAcross = BLOCK_N / WIDTH, kStep = kThreads / kAcross; // threads of a row, rows at once
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
