// MaxPool with Indices along one spatial axis: one pass of a separable MaxPool. A k x k x k window takes three passes
// of k comparisons instead of k³. Chosen for large windows of several axes; passes run innermost axis first.
//
//     x --pass along W--> maxima, Indices --pass along H--> maxima, Indices --pass along D--> y, Indices
//
// The maximum of a window is the maximum of the maxima of its slices. Since the innermost axis comes first, taking the
// first of equal maxima in each pass gives the first element in row-major order. A later pass compares the previous
// pass's maxima only, and reads just the Indices of the winners.
//
// Thread: kRun windows, if windows overlap enough, else one. Each window of a run begins `shift` taps after the
// previous one. Taps that all windows of a run share are compared once, the remaining ones as prefixes and suffixes
// (van Herk's algorithm). Adjacent threads have adjacent outputs of a row, or adjacent channels in channels-last
// layout. Taps outside of x are clamped to the nearest valid one, which does not change the maximum. Bound by memory.
#include "base/geometry.cuh"
#include "pool/order.cuh"

constexpr int kRun = 5; // windows per thread, where they share taps

// Axis 0 is the one that windows lie along; along the other two, each output has one element. Strides count elements.
// x_stride and place_stride: between adjacent outputs, but along axis 0 between adjacent coordinates of x. x_first and
// place_first: of the first output's element; x_along and place_along: between adjacent taps.
struct AxisPoolParams {
    const void* x;
    const long long* places; // Indices of x's elements, if x is the result of an earlier pass
    void* y;
    long long* indices;
    long long plane;                               // Indices per channel, or 0 to count within each plane
    int items, channels_last;                      // threads; whether they are numbered with channels fastest
    int extent, windows, stride, pad, taps, shift; // of axis 0; shift 0: one window per thread
    int x_first, x_along, place_first, place_along;
    int x_batch, x_channel, x_stride[3];
    int place_stride[3];
    int y_batch, y_channel, y_stride[3];
    int indices_batch, indices_channel, indices_stride[3];
    Divider<int> dilation, step, channels, runs[3]; // step: distance between adjacent windows of a run
};

// The taps of a run of windows, numbered from its first one. Taps out of bounds are clamped to the nearest valid one.
template <class T> struct Line {
    const T* x;              // the first valid tap
    int before, last, along; // taps before it; the last valid tap, counted from it; elements between taps

    DEVICE Maximum<T, int, true> operator[](int tap) const {
        const int inside = min(max(tap - before, 0), last);
        return {x[inside * along], inside};
    }
};

// Merges an element whose tap comes later in the order of taps.
template <class T> DEVICE void take(Maximum<T, int, true>& maximum, const Maximum<T, int, true>& later) {
    maximum.take(later.value, later.place);
}

// Computes the maxima of RUN windows, each SHIFT taps after the previous one: common taps once, then prefixes and
// suffixes.
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

// Computes one run of RUN windows, SHIFT taps apart. NUMBERED: x holds elements, not maxima of an earlier pass.
template <class T, bool NUMBERED, int RUN, int SHIFT> DEVICE void pool_along(const AxisPoolParams& p, int item) {
    // 1. The first window of this thread; the others follow `step` apart.
    int at[3], channel, image, between;
    if (p.channels_last) image = unravel(p.channels.split(item, channel), p.runs, at);
    else image = p.channels.split(unravel(item, p.runs, at), channel);
    const int step = int(p.step.divisor), run = p.step.split(at[0], between);
    at[0] = run * (RUN * step) + between;
    if (at[0] >= p.windows) return;

    // 2. Its first valid tap, and the maxima of all windows.
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

    // 3. Stores maxima and Indices. NUMBERED: this is the first pass, and Indices are computed; else they are looked
    // up.
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

// The kernel: one thread per run.
template <class T, bool NUMBERED> DEVICE void max_pool_axis(const AxisPoolParams& p) {
    constexpr int kThreads = 256; // the block size that the planner uses
    const int item = int(blockIdx.x) * kThreads + int(threadIdx.x);
    if (item >= p.items) return;
    if (p.shift == 1) pool_along<T, NUMBERED, kRun, 1>(p, item);
    else if (p.shift == 2) pool_along<T, NUMBERED, kRun, 2>(p, item);
    else pool_along<T, NUMBERED, 1, 0>(p, item);
}
