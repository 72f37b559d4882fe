// MaxPool with Indices along one axis, by one launch of several or the only one.
//
// The maximum of a window is the greatest of the maxima of its slices, and the first of equal ones has the Index. So
// windows are pooled along one axis after the other, the innermost one first. A later launch reads the maxima of the
// one before, and of their Indices only those that it writes.
//
// Neighbouring threads make neighbours in a row of y, or neighbouring channels where these lie closest together. Where
// windows overlap enough, a thread makes kRun of them, each `shift` taps after the one before: the taps that all have
// are taken once, those before and after in growing parts. Otherwise it makes one window. No window is empty: taps
// outside x are the nearest one inside, which changes nothing.
#include "base/geometry.cuh"
#include "pool/order.cuh"

constexpr int kRun = 5; // windows of a thread, where they share taps

// The first axis is the one that windows lie along; of the other two each output has one element. Strides count
// elements: of x and of its elements' numbers from one output's to the next one's, but from tap to tap along the first.
struct AxisPoolParams {
    const void* x;
    const long long* places; // of x's elements, where x is what a launch before has left
    void* y;
    long long* indices;
    long long plane; // numbers per channel, or 0
    int items, channels_last;
    int extent, windows, stride, pad, taps, shift; // of the first axis; a shift of 0: one window a thread
    int x_first, x_along, place_first, place_along;
    int x_batch, x_channel, x_stride[3];
    int place_stride[3];
    int y_batch, y_channel, y_stride[3];
    int indices_batch, indices_channel, indices_stride[3];
    Divider<int> dilation, step, channels, runs[3]; // windows of a run are a step apart
};

// Elements along the axis, tap by tap from a window's first one: those outside x are the nearest one inside.
template <class T> struct Line {
    const T* x; // the first tap inside
    int before, last, along;

    DEVICE Maximum<T, int, true> operator[](int tap) const {
        const int inside = min(max(tap - before, 0), last);
        return {x[inside * along], inside};
    }
};

// What comes later in the order of taps, after all that is in a maximum.
template <class T> DEVICE void take(Maximum<T, int, true>& maximum, const Maximum<T, int, true>& later) {
    maximum.take(later.value, later.place);
}

// The maxima of RUN windows, each SHIFT taps after the one before; all have the last taps of the first one in common.
template <int RUN, int SHIFT, class T>
DEVICE void take_windows(const Line<T>& line, int taps, Maximum<T, int, true> (&windows)[RUN]) {
    constexpr int kLead = (RUN - 1) * SHIFT;
    Maximum<T, int, true> common = line[kLead];
#pragma unroll 4
    for (int tap = kLead + 1; tap < taps; ++tap) take(common, line[tap]);
    windows[RUN - 1] = common;
#pragma unroll
    for (int i = RUN - 2; i >= 0; --i) {
        windows[i] = line[i * SHIFT];
#pragma unroll
        for (int tap = 1; tap < SHIFT; ++tap) take(windows[i], line[i * SHIFT + tap]);
        take(windows[i], windows[i + 1]);
    }
    if constexpr (RUN > 1) {
        Maximum<T, int, true> after = line[taps];
#pragma unroll
        for (int tap = 1; tap <= kLead; ++tap) {
            if (tap % SHIFT == 0) take(windows[tap / SHIFT], after);
            if (tap < kLead) take(after, line[taps + tap]);
        }
    }
}

template <class T, bool NUMBERED, int RUN, int SHIFT> DEVICE void pool_along(const AxisPoolParams& p, int item) {
    // 1. The first window of this thread, the others a step apart.
    int at[3], channel, image, between;
    if (p.channels_last) image = unravel(p.channels.split(item, channel), p.runs, at);
    else image = p.channels.split(unravel(item, p.runs, at), channel);
    const int step = int(p.step.divisor), run = p.step.split(at[0], between);
    at[0] = run * (RUN * step) + between;
    if (at[0] >= p.windows) return;

    // 2. Its first tap inside x, and all maxima.
    const int start = at[0] * p.stride - p.pad;
    int first = start, before = 0;
    if (start < 0) {
        int rest;
        before = p.dilation.split(-1 - start, rest) + 1;
        first = int(p.dilation.divisor) - 1 - rest;
    }
    const int last = p.dilation.quotient(p.extent - 1 - first);
    const int x = p.x_first + image * p.x_batch + channel * p.x_channel + first * p.x_stride[0] + at[1] * p.x_stride[1]
                + at[2] * p.x_stride[2];
    Maximum<T, int, true> windows[RUN];
    take_windows<RUN, SHIFT>(Line<T>{static_cast<const T*>(p.x) + x, before, last, p.x_along}, p.taps, windows);

    // 3. The elements, and their numbers in the whole tensor.
    long long number = 0;
    if constexpr (NUMBERED) {
        const int place =
            p.place_first + first * p.place_stride[0] + at[1] * p.place_stride[1] + at[2] * p.place_stride[2];
        number = (image * int(p.channels.divisor) + channel) * p.plane + place;
    }
    T* y = static_cast<T*>(p.y) + image * p.y_batch + channel * p.y_channel + dot(at, p.y_stride);
    long long* indices = p.indices + image * p.indices_batch + channel * p.indices_channel + dot(at, p.indices_stride);
#pragma unroll
    for (int i = 0; i < RUN; ++i) {
        if (i > 0 && !inside(at[0] + i * step, p.windows)) return;
        *y = windows[i].value;
        if constexpr (NUMBERED) *indices = number + windows[i].place * p.place_along;
        else *indices = p.places[x + windows[i].place * p.x_along];
        y += step * p.y_stride[0];
        indices += step * p.indices_stride[0];
    }
}

template <class T, bool NUMBERED> DEVICE void max_pool_axis(const AxisPoolParams& p) {
    constexpr int kThreads = 256; // as the plan launches it
    const int item = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (item >= p.items) return;
    if (p.shift == 1) pool_along<T, NUMBERED, kRun, 1>(p, item);
    else if (p.shift == 2) pool_along<T, NUMBERED, kRun, 2>(p, item);
    else pool_along<T, NUMBERED, 1, 0>(p, item);
}
