// AveragePool of one window for each channel, as GlobalAveragePool has it, of any size.
//
// Where neighbours in memory are of one channel, GROUP threads make a sum, or a part of one: they go through its
// elements side by side, and their sums are added up in a tree. Where channels are neighbours, each lane has a channel
// of its own, and the warps of a block share the elements. Long sums are cut into parts, of which a second kernel adds
// up those of an output in their order. Which elements a thread adds depends on the window and the number of channels
// alone: an image's averages have the same bits in any batch.
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/ptx.cuh"
#include "pool/average.cuh"

// An output has a number: image, channel, and the place along one more axis that windows do not cover. Strides count
// elements.
struct PlanePoolParams {
    const void* x;
    void* y;
    void* sums; // part, output; not where there is one part
    double counts;
    long long x_first; // the windows' first element, from that of x
    long long x_batch, x_channel, x_inner;
    long long y_batch, y_channel, y_inner;
    int items;                   // parts of all outputs; where channels are neighbours, of tiles of them
    int outputs, elements, each; // elements of a window, and of a part
    int x_stride[3];
    int flat; // the window's elements are one run: of the last axis
    Divider<int> parts, channels, inner, tiles;
    Divider<int> extent[3]; // of the window
};

// Writes a sum, or that of a part.
template <class T, class Acc> DEVICE void put(const PlanePoolParams& p, int output, int part, Acc sum) {
    if (p.parts.divisor > 1) {
        static_cast<Acc*>(p.sums)[static_cast<long long>(part) * p.outputs + output] = sum;
        return;
    }
    int channel, inner;
    const int image = p.channels.split(p.inner.split(output, inner), channel);
    static_cast<T*>(p.y)[image * p.y_batch + channel * p.y_channel + inner * p.y_inner] =
        average<T>(sum, Acc(p.counts));
}

// The sum of every STEP-th element of a window from `first` to before `end`.
template <int STEP, class T, class Acc> DEVICE Acc sum_of(const PlanePoolParams& p, const T* x, int first, int end) {
    Acc sum = 0;
    if (p.flat) {
#pragma unroll 8
        for (int element = first; element < end; element += STEP) sum += widen(x[element * p.x_stride[2]]);
        return sum;
    }
#pragma unroll 4
    for (int element = first; element < end; element += STEP) {
        int at[3];
        unravel(element, p.extent, at);
        sum += widen(x[dot(at, p.x_stride)]);
    }
    return sum;
}

// The first element of an output's window.
template <class T> DEVICE const T* window_of(const PlanePoolParams& p, int image, int channel, int inner) {
    return static_cast<const T*>(p.x) + (p.x_first + image * p.x_batch + channel * p.x_channel + inner * p.x_inner);
}

template <class T, class Acc, int GROUP> DEVICE void average_planes(const PlanePoolParams& p) {
    constexpr int kThreads = 256, kGroups = kThreads / GROUP, kLanes = GROUP < 32 ? GROUP : 32; // as the plan launches
    const int thread = int(threadIdx.x), lane = thread % GROUP;
    const int number = int(blockIdx.x) * kGroups + thread / GROUP;
    const bool exists = number < p.items;
    int part, inner, channel;
    const int output = p.parts.split(exists ? number : 0, part);
    const int image = p.channels.split(p.inner.split(output, inner), channel);
    const int first = part * p.each, end = exists ? min(first + p.each, p.elements) : 0;
    Acc sum = sum_of<GROUP, T, Acc>(p, window_of<T>(p, image, channel, inner), first + lane, end);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += shuffle_down(sum, distance);
    if constexpr (GROUP > 32) {
        __shared__ Acc of_warps[GROUP / 32];
        if (thread % 32 == 0) of_warps[thread / 32] = sum;
        __syncthreads();
        if (thread != 0) return;
#pragma unroll
        for (int warp = 1; warp < GROUP / 32; ++warp) sum += of_warps[warp];
    }
    if (exists && lane == 0) put<T>(p, output, part, sum);
}

template <class T, class Acc> DEVICE void average_pixels(const PlanePoolParams& p) {
    constexpr int kThreads = 256, kWarps = kThreads / 32; // as the plan launches it
    __shared__ Acc of_warps[kWarps][32];
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    int tile, part, inner;
    const int image = p.inner.split(p.parts.split(p.tiles.split(int(blockIdx.x), tile), part), inner);
    const int channel = tile * 32 + lane, first = part * p.each, end = min(first + p.each, p.elements);
    Acc sum = 0;
    if (channel < int(p.channels.divisor))
        sum = sum_of<kWarps, T, Acc>(p, window_of<T>(p, image, channel, inner), first + warp, end);
    of_warps[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || channel >= int(p.channels.divisor)) return;
#pragma unroll
    for (int other = 1; other < kWarps; ++other) sum += of_warps[other][lane];
    put<T>(p, (image * int(p.channels.divisor) + channel) * int(p.inner.divisor) + inner, part, sum);
}

// The parts of every output, added up.
struct PlanePartsParams {
    const void* sums; // part, output
    void* y;
    double counts;
    long long y_batch, y_channel, y_inner;
    int parts, outputs;
    Divider<int> channels, inner;
};

template <class T, class Acc> DEVICE void average_parts(const PlanePartsParams& p) {
    const int output = int(blockIdx.x) * int(blockDim.x) + int(threadIdx.x);
    if (output >= p.outputs) return;
    const Acc* part = static_cast<const Acc*>(p.sums) + output;
    Acc sum = *part;
#pragma unroll 4
    for (int number = 1; number < p.parts; ++number) sum += part[static_cast<long long>(number) * p.outputs];
    int channel, inner;
    const int image = p.channels.split(p.inner.split(output, inner), channel);
    static_cast<T*>(p.y)[image * p.y_batch + channel * p.y_channel + inner * p.y_inner] =
        average<T>(sum, Acc(p.counts));
}
