// ConvTranspose as a gather, by output phase: no product with inserted zeros, no atomics, one launch.
//
// Input i reaches output o = i * s + t * d - pad through tap t. The outputs o = q * s + phase of one phase meet just the taps
// with (phase + pad - t * d) divisible by s, each at the input q + (phase + pad - t * d) / s: a correlation of stride 1.
// Its taps are t = first + j * s / gcd(s, d), or none, and input coordinates fall by d / gcd(s, d) from one to the next.
// A block makes one tile of one phase (include/implicit_gemm.cuh); phases of the same pixels run next to each other.
#include "ffma.cuh"
#include "implicit_gemm.cuh"
#include "mma.cuh"

// One axis of the whole problem.
template <class Index> struct TransposedAxis {
    Index stride, pad, dilation, kernel;
    Index common;                // gcd(stride, dilation)
    Index inverse;               // of dilation / common, modulo stride / common
    Index extent;                // of y
    Index row;                   // rows of the packed weights from tap to tap
    Index y_stride;
    Divider<Index> phases;       // min(stride, extent)
};

template <class Index, int NDIM> struct ConvTransposeParams {
    Correlation<Index, NDIM> common;
    TransposedAxis<Index> axes[NDIM];
    Divider<int> phases;
};

template <class Index> __device__ __forceinline__ Divider<Index> divider(Index divisor);
template <> __device__ __forceinline__ Divider<int> divider(int divisor)
{
    const int shift = divisor <= 1 ? 0 : 32 - __clz(divisor - 1);
    const unsigned long long excess = (1ull << shift) - divisor;
    return {unsigned(divisor), unsigned((excess << 32) / divisor) + 1, unsigned(shift)};
}
template <> __device__ __forceinline__ Divider<long long> divider(long long divisor) { return {divisor}; }

// Fills one axis of the taps that outputs of a phase meet; returns their number.
template <class Index, int NDIM>
__device__ __forceinline__ Index phase_taps(const TransposedAxis<Index>& a, Index phase, int axis, Taps<Index, NDIM>& taps)
{
    const Index sum = phase + a.pad, rest = sum % a.stride, period = a.stride / a.common;
    const bool meets = rest % a.common == 0;
    const Index first = Index(static_cast<long long>(rest / a.common) * a.inverse % period);
    const Index count = meets && first < a.kernel ? (a.kernel - 1 - first) / period + 1 : 0;
    taps.count[axis] = divider(count == 0 ? Index(1) : count);
    taps.start[axis] = (sum - first * a.dilation) / a.stride;
    taps.advance[axis] = -(a.dilation / a.common);
    taps.row[axis] = period * a.row;
    taps.limit[axis] = (a.extent - phase - 1) / a.stride + 1;
    taps.first_row += first * a.row;
    taps.y_first += phase * a.y_stride;
    return count;
}

template <class T, class Acc, class Multiplier, class Index, int NDIM>
__device__ __forceinline__ void make_phase(const ConvTransposeParams<Index, NDIM>& p)
{
    extern __shared__ __align__(128) unsigned char shared[];
    Taps<Index, NDIM>& taps = *reinterpret_cast<Taps<Index, NDIM>*>(shared + Multiplier::kSharedBytes);
    const auto position = [&](Index& group, Index& m_tile, Index& n_tile) {
        int m, phase, n;
        group = p.common.n_tiles.split(p.phases.split(p.common.m_tiles.split(block_number(), m), phase), n);
        m_tile = m;
        n_tile = n;
        return phase;
    };
    if (threadIdx.x == 0) {
        Index group, m_tile, n_tile;
        Index number = position(group, m_tile, n_tile), rows = p.common.channels;
        taps.first_row = taps.y_first = 0;
#pragma unroll
        for (int axis = NDIM - 1; axis >= 0; --axis) {
            Index along;
            number = p.axes[axis].phases.split(number, along);
            rows *= phase_taps(p.axes[axis], along, axis, taps);
        }
        taps.rows = rows;
    }
    __syncthreads();
    make_tile<T, Acc, true>(Multiplier(p.common, taps, shared), p.common, taps, shared, position);
}

// On the cores' own multipliers.
template <class T, class Acc, class Index, int NDIM, int BLOCK_M, int BLOCK_N, int BLOCK_K, int THREAD_M, int THREAD_N,
          bool UNIFORM_TAP>
__device__ __forceinline__ void conv_transpose(const ConvTransposeParams<Index, NDIM>& p)
{
    make_phase<T, Acc, Ffma<T, Acc, Index, NDIM, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, UNIFORM_TAP, true>>(p);
}

// On tensor cores, up to three spatial axes.
template <class Arithmetic, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int STAGES, Gather GATHER>
__device__ __forceinline__ void conv_transpose_mma(const ConvTransposeParams<int, 3>& p)
{
    using Multiplier = Mma<Arithmetic, BLOCK_M, BLOCK_N, BLOCK_K, WARP_M, WARP_N, STAGES, GATHER, true>;
    make_phase<typename Arithmetic::Element, typename Arithmetic::Acc, Multiplier>(p);
}
