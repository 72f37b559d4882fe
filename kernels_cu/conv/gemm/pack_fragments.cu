// Packs weights (group, M, C, taps), with any strides, into mma.sync fragments (conv/gemm/fragments.cuh). It runs
// before a tensor-core kernel, once per call or, with gpuconv.pack, once per model. Bound by memory.
//
//     packed: (group, slices of K, M / 16, fragments along K, parts of 3xTF32, 512 bytes), zero-padded
//
// K is (tap, channel), with the channels of each tap padded to whole slices. If C is small, only K as a whole is
// padded.
//
// Block: the fragments of 16 output channels x kDepth channels, for up to kTaps taps, staged in shared memory. It reads
// along the taps, which are contiguous in w, and writes 512 contiguous bytes per warp: both are coalesced.
#include "conv/gemm/filter_rows.cuh"
#include "conv/gemm/fragments.cuh"
#include "base/geometry.cuh"
#include "base/tickets.cuh"

// Strides count elements.
template <int NDIM> struct PackFragmentsParams {
    const void* w;
    void* packed;
    int filters, channels, taps; // M, C and taps of one group
    int w_group, w_filter, w_channel, w_stride[NDIM];
    Divider<int> tap_parts;          // blocks along the taps, kTaps each
    Divider<int> rows;               // fragments along K: per tap, or of all K if only K as a whole is padded
    Divider<int> columns;            // fragments along M: M / 16, in whole tiles
    Divider<int> depths;             // fragments along K per slice
    Divider<int> by_channel;         // divides rows of the GEMM into tap and channel
    Divider<int> extent[NDIM];       // taps along each axis, of one phase
    FilterRows<int, NDIM> of_filter; // rows of M per filter
    int outer_taps;                  // taps that have their own fragments: all, or 1
    Tickets tickets;                 // counters to set to zero for the next launch
};

// The kernel: weights -> shared tile -> fragments, one warp per fragment.
template <class Arithmetic> DEVICE void pack_fragments(const PackFragmentsParams<3>& p) {
    using T = typename Arithmetic::Element;
    using Place = FragmentPlace<T>;
    constexpr int kThreads = 256, kTaps = 64, kTile = 16 * Place::kDepth,
                  kPitch = kTile + 4 / sizeof(T) + (sizeof(T) == 8);
    __shared__ T tile[kTaps * kPitch];
    p.tickets.clear();
    int part, row, column;
    const int group = p.columns.split(p.rows.split(p.tap_parts.split(blockIdx.x, part), row), column);
    const int first_tap = part * kTaps, taps = min(kTaps, p.outer_taps - first_tap);
    const T* w = static_cast<const T*>(p.w) + group * p.w_group;

    for (int i = threadIdx.x; i < kTile * taps; i += kThreads) {
        const int outer = i % taps, m = i / taps / Place::kDepth, k = i / taps % Place::kDepth;
        int channel, tap[3], own[3];
        const int inner = p.by_channel.split(row * Place::kDepth + k, channel), number = first_tap + outer + inner;
        unravel<3>(number, p.extent, tap);
        const int filter = p.of_filter.find(column * 16 + m, tap, own);
        const bool found = inside(filter, p.filters) && channel < p.channels && number < p.taps;
        const int offset = dot(own, p.w_stride, filter * p.w_filter + channel * p.w_channel);
        tile[outer * kPitch + m * Place::kDepth + k] = found ? w[offset] : T(0.f);
    }
    __syncthreads();

    const int lane = threadIdx.x % 32, rows = int(p.rows.divisor);
    const int slices = p.depths.quotient(rows * p.outer_taps);
    for (int outer = threadIdx.x / 32; outer < taps; outer += kThreads / 32) {
        int depth;
        const int slice = p.depths.split((first_tap + outer) * rows + row, depth);
        const int place = ((group * slices + slice) * int(p.columns.divisor) + column) * int(p.depths.divisor) + depth;
        uint4* packed = static_cast<uint4*>(p.packed) + place * (Arithmetic::kParts * 32) + lane;
#pragma unroll
        for (int number = 0; number < Arithmetic::kParts; ++number) {
            alignas(16) T values[Place::kElements];
#pragma unroll
            for (int i = 0; i < Place::kElements; ++i)
                values[i] = Arithmetic::part(
                    tile[outer * kPitch + Place::row(lane, i) * Place::kDepth + Place::k(lane, i)], number);
            packed[number * 32] = *reinterpret_cast<const uint4*>(values);
        }
    }
}
