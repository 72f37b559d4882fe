// Sums of every channel over all other axes: the gradient of a bias. A block reduces a part of the elements of one
// channel (NCHW) or of 32 channels (channels last); a second launch, passes/add_up.cu, adds the parts in order.
//
// NCHW: threads take adjacent elements of the channel, then a warp shuffle and a loop over the warps reduce them.
// Channels last: each lane has its own channel, and warps share the elements. Loads are coalesced in both cases; bound
// by memory.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"

// Strides count elements.
template <class Index, int NDIM> struct ChannelSumsParams {
    const void* x;
    void* sums;               // (part, channel)
    Index channels, elements; // elements per channel
    Index each;               // elements per part
    Index x_channel, x_stride[NDIM];
    Divider<Index> extent[NDIM]; // extents of all axes but the channels
    Divider<int> tiles;          // tiles of channels
};

// The kernel. CHANNELS_LAST: lanes have channels of their own.
template <class T, class Acc, class Index, int NDIM, bool CHANNELS_LAST>
DEVICE void channel_sums(const ChannelSumsParams<Index, NDIM>& p) {
    constexpr int kThreads = 256, kWarps = kThreads / 32, kStep = CHANNELS_LAST ? kWarps : kThreads;
    __shared__ Acc of_warps[kWarps][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int tile;
    const Index part = p.tiles.split(block_number(), tile), first = part * p.each;
    const Index limit = first + p.each < p.elements ? first + p.each : p.elements;
    const Index channel = CHANNELS_LAST ? Index(tile) * 32 + lane : Index(tile);
    const T* x = static_cast<const T*>(p.x) + channel * p.x_channel;
    Acc sum = 0;
    if (channel < p.channels) {
#pragma unroll 4
        for (Index element = first + (CHANNELS_LAST ? warp : threadIdx.x); element < limit; element += kStep) {
            Index at[NDIM];
            unravel(element, p.extent, at);
            sum += widen(x[dot(at, p.x_stride)]);
        }
    }
    if constexpr (!CHANNELS_LAST) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) sum += shuffle_down(sum, distance);
    }
    of_warps[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || channel >= p.channels || (!CHANNELS_LAST && lane != 0)) return;
    for (int other = 1; other < kWarps; ++other) sum += of_warps[other][lane];
    static_cast<Acc*>(p.sums)[part * p.channels + channel] = sum;
}
