// MaxPool and AveragePool of any rank, kernel, stride, dilation and layout: the general kernels, which accept every
// problem. One thread computes one output.
//
// Outputs are numbered row-major over (n, c, q1 … qNDIM), or over (n, q1 … qNDIM, c) if channels are closest together
// in memory. So a warp writes 32 adjacent outputs. It reads elements that are one stride apart, tap by tap; elements
// that windows share hit in L1. Each window is clipped to the input once per axis, so no tap needs a bounds check.
// Nothing is shared between outputs: bound by L1 for large windows, by memory for small ones.
#include "base/geometry.cuh"
#include "pool/average.cuh"
#include "pool/order.cuh"

// Strides and steps count elements. A window starts at stride * q - pad and covers `reach` coordinates (the dilated
// kernel).
template <class Index, int NDIM> struct MaxPoolParams {
    const void* x;
    void* y;
    long long* indices;
    long long plane; // Indices per channel, or 0 to count within each plane
    Index outputs;   // outputs in all: one thread each
    Index x_extent[NDIM], stride[NDIM], pad[NDIM], reach[NDIM];
    Index x_batch, x_channel, x_stride[NDIM];
    Index y_batch, y_channel, y_stride[NDIM];
    Index indices_batch, indices_channel, indices_stride[NDIM];
    Index place_stride[NDIM];             // Index distance per coordinate, within a plane
    Index x_step[NDIM], place_step[NDIM]; // distance between adjacent taps: elements of x, Indices
    Divider<Index> dilation[NDIM], y_extent[NDIM], channels;
    Index channels_last; // adjacent threads compute adjacent channels
};

// The same without Indices, plus the counted taps.
template <class Index, int NDIM> struct AveragePoolParams {
    const void* x;
    void* y;
    Index outputs;
    Index x_extent[NDIM], stride[NDIM], pad[NDIM], reach[NDIM];
    Index x_batch, x_channel, x_stride[NDIM];
    Index y_batch, y_channel, y_stride[NDIM];
    Index x_step[NDIM];
    Divider<Index> dilation[NDIM], y_extent[NDIM], channels;
    Index channels_last;
    Counted<Index, NDIM> counted;
};

// First in-bounds tap's coordinate, and number of in-bounds taps, along each axis.
template <class Index, int NDIM> struct Window { Index first[NDIM], taps[NDIM]; };

// Clips the window of output q to the input. Returns false if no tap is left.
template <class Params, class Index, int NDIM>
DEVICE bool clip(const Params& p, const Index (&q)[NDIM], Window<Index, NDIM>& window) {
    bool exists = true;
#pragma unroll
    for (int axis = 0; axis < NDIM; ++axis) {
        const Index start = q[axis] * p.stride[axis] - p.pad[axis], stop = start + p.reach[axis];
        const Index end = stop < p.x_extent[axis] ? stop : p.x_extent[axis];
        Index first = start;
        if (start < 0) {
            // taps step over the border: the first valid coordinate depends on `start` modulo the dilation
            Index before;
            p.dilation[axis].split(-1 - start, before);
            first = Index(p.dilation[axis].divisor) - 1 - before;
        }
        exists = exists && first < end;
        window.first[axis] = first;
        window.taps[axis] = p.dilation[axis].quotient(end - 1 - first) + 1;
    }
    return exists;
}

// Merges the taps along the axes from AXIS on, in row-major order. x and place: those of the first tap.
template <int AXIS, class Params, class T, class Index, int NDIM, class Taken>
DEVICE void take_taps(const Params& p, const Window<Index, NDIM>& window, const T* x, Index place, Taken& taken) {
    Index left = window.taps[AXIS];
    if constexpr (AXIS + 1 < NDIM) {
#pragma unroll 1
        do {
            take_taps<AXIS + 1>(p, window, x, place, taken);
            x += p.x_step[AXIS];
            if constexpr (Taken::kPlaces) place += p.place_step[AXIS];
        } while (--left > 0);
    } else {
        constexpr int kBatch = 3; // loads in flight together; most windows are two or three elements wide
#pragma unroll 1
        do {
            T elements[kBatch];
#pragma unroll
            for (int tap = 0; tap < kBatch; ++tap) {
                elements[tap] = tap == 0 || tap < left ? *x : Taken::none();
                x += p.x_step[AXIS];
            }
#pragma unroll
            for (int tap = 0; tap < kBatch; ++tap) {
                taken.take(elements[tap], place);
                if constexpr (Taken::kPlaces) place += p.place_step[AXIS];
            }
        } while ((left -= kBatch) > 0);
    }
}

// Decodes this thread's output. Returns false past the last one.
template <class Params, class Index, int NDIM>
DEVICE bool stand(const Params& p, Index (&q)[NDIM], Index& channel, Index& image) {
    constexpr int kThreads = 256; // the block size that the planner uses
    const Index output = (Index(blockIdx.y) * Index(gridDim.x) + Index(blockIdx.x)) * kThreads + Index(threadIdx.x);
    if (output >= p.outputs) return false;
    if (p.channels_last) image = unravel(p.channels.split(output, channel), p.y_extent, q);
    else image = p.channels.split(unravel(output, p.y_extent, q), channel);
    return true;
}

// The kernel of MaxPool.
template <class T, class Index, int NDIM, bool INDICES> DEVICE void max_pool(const MaxPoolParams<Index, NDIM>& p) {
    // 1. This thread's output.
    Index q[NDIM], channel, image;
    if (!stand(p, q, channel, image)) return;

    // 2. The window: clipped, then reduced tap by tap. An empty window gives the lowest value and Index -1.
    Maximum<T, Index, INDICES> maximum{lowest<T>(), -1};
    Window<Index, NDIM> window;
    const bool exists = clip(p, q, window);
    if (exists) {
        const Index first = image * p.x_batch + channel * p.x_channel + dot(window.first, p.x_stride);
        maximum = {least<T>(), INDICES ? dot(window.first, p.place_stride) : 0};
        take_taps<0>(p, window, static_cast<const T*>(p.x) + first, maximum.place, maximum);
    }

    // 3. Stores the maximum and its Index in the whole tensor.
    static_cast<T*>(p.y)[image * p.y_batch + channel * p.y_channel + dot(q, p.y_stride)] = maximum.value;
    if constexpr (INDICES) {
        const Index plane = image * Index(p.channels.divisor) + channel;
        const long long number = exists ? plane * p.plane + maximum.place : -1;
        p.indices[image * p.indices_batch + channel * p.indices_channel + dot(q, p.indices_stride)] = number;
    }
}

// The kernel of AveragePool.
template <class T, class Acc, class Index, int NDIM>
DEVICE void average_pool(const AveragePoolParams<Index, NDIM>& p) {
    Index q[NDIM], channel, image;
    if (!stand(p, q, channel, image)) return;
    Sum<T, Acc> sum{0};
    Window<Index, NDIM> window;
    if (clip(p, q, window)) {
        const Index first = image * p.x_batch + channel * p.x_channel + dot(window.first, p.x_stride);
        take_taps<0>(p, window, static_cast<const T*>(p.x) + first, Index(0), sum);
    }
    Acc counts = 1;
#pragma unroll
    for (int axis = 0; axis < NDIM; ++axis) counts *= Acc(count(p.counted, axis, q[axis] * p.stride[axis]));
    T* y = static_cast<T*>(p.y);
    y[image * p.y_batch + channel * p.y_channel + dot(q, p.y_stride)] = average<T>(sum.value, counts);
}
