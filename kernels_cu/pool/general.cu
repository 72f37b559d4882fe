// MaxPool and AveragePool of any rank, over arrays of any strides.
//
// A block makes kThreads outputs, a thread one of them. Outputs are numbered row-major over (n, c, q1 … qNDIM): a warp
// writes 32 neighbours of a row of y and reads, tap by tap, elements of x that lie one window stride apart; what
// windows share comes from the L1 cache. Where channels lie closest together the numbers run over (n, q1 … qNDIM, c).
// Windows are clipped to the input once per axis, so that no tap is tested against the input's bounds and a window in
// the padding costs nothing. It is the form for every window: taps are counted at run time, and nothing is kept from
// one output to the next.
#include "base/geometry.cuh"
#include "pool/average.cuh"
#include "pool/order.cuh"

// Strides and steps count elements. Coordinates start at stride * q - pad and cover `reach`, the dilated kernel.
template <class Index, int NDIM> struct MaxPoolParams {
    const void* x;
    void* y;
    long long* indices;
    long long plane; // numbers per channel, or 0
    Index outputs;
    Index x_extent[NDIM], stride[NDIM], pad[NDIM], reach[NDIM];
    Index x_batch, x_channel, x_stride[NDIM];
    Index y_batch, y_channel, y_stride[NDIM];
    Index indices_batch, indices_channel, indices_stride[NDIM];
    Index place_stride[NDIM];             // of the numbers that `indices` holds, within a plane
    Index x_step[NDIM], place_step[NDIM]; // from one tap to the next
    Divider<Index> dilation[NDIM], y_extent[NDIM], channels;
    Index channels_last; // neighbouring threads' outputs are those of neighbouring channels
};

// The same without Indices, and with what counts.
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

// The coordinate of the first tap inside the input on each axis, and how many taps are inside.
template <class Index, int NDIM> struct Window { Index first[NDIM], taps[NDIM]; };

// Clips the window of output q to the input; false where nothing of it is left.
template <class Params, class Index, int NDIM>
DEVICE bool clip(const Params& p, const Index (&q)[NDIM], Window<Index, NDIM>& window) {
    bool exists = true;
#pragma unroll
    for (int axis = 0; axis < NDIM; ++axis) {
        const Index start = q[axis] * p.stride[axis] - p.pad[axis], stop = start + p.reach[axis];
        const Index end = stop < p.x_extent[axis] ? stop : p.x_extent[axis];
        Index first = start;
        if (start < 0) {
            Index before; // taps step over the beginning: their distance from it counts modulo the dilation
            p.dilation[axis].split(-1 - start, before);
            first = Index(p.dilation[axis].divisor) - 1 - before;
        }
        exists = exists && first < end;
        window.first[axis] = first;
        window.taps[axis] = p.dilation[axis].quotient(end - 1 - first) + 1;
    }
    return exists;
}

// Takes the taps of the axes from AXIS on in row-major order; x and place are those of the first one, of at least one.
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

// A thread's output, and where it is in y; false beyond the last one.
template <class Params, class Index, int NDIM>
DEVICE bool stand(const Params& p, Index (&q)[NDIM], Index& channel, Index& image) {
    constexpr int kThreads = 256; // as the plan launches it
    const Index output = (Index(blockIdx.y) * Index(gridDim.x) + Index(blockIdx.x)) * kThreads + Index(threadIdx.x);
    if (output >= p.outputs) return false;
    if (p.channels_last) image = unravel(p.channels.split(output, channel), p.y_extent, q);
    else image = p.channels.split(unravel(output, p.y_extent, q), channel);
    return true;
}

template <class T, class Index, int NDIM, bool INDICES> DEVICE void max_pool(const MaxPoolParams<Index, NDIM>& p) {
    // 1. This thread's output.
    Index q[NDIM], channel, image;
    if (!stand(p, q, channel, image)) return;

    // 2. Its window: the first tap inside the input, then all of them.
    Maximum<T, Index, INDICES> maximum{lowest<T>(), -1};
    Window<Index, NDIM> window;
    const bool exists = clip(p, q, window);
    if (exists) {
        const Index first = image * p.x_batch + channel * p.x_channel + dot(window.first, p.x_stride);
        maximum = {least<T>(), INDICES ? dot(window.first, p.place_stride) : 0};
        take_taps<0>(p, window, static_cast<const T*>(p.x) + first, maximum.place, maximum);
    }

    // 3. The element, and its number in the whole tensor.
    static_cast<T*>(p.y)[image * p.y_batch + channel * p.y_channel + dot(q, p.y_stride)] = maximum.value;
    if constexpr (INDICES) {
        const Index plane = image * Index(p.channels.divisor) + channel;
        const long long number = exists ? plane * p.plane + maximum.place : -1;
        p.indices[image * p.indices_batch + channel * p.indices_channel + dot(q, p.indices_stride)] = number;
    }
}

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
