// Runs of windows along one axis, which a thread takes at once.
//
// Where windows `step` apart share all taps but one (`step` times the stride is the dilation), the taps that all of a
// run have are taken once, and those before and after these in growing parts: van Herk's algorithm on one run. Other
// windows of a run are neighbours, and `step` is 0.
#pragma once
#include "base/geometry.cuh"

// The part [first, first + count) of an axis of x that `outputs` windows from output q on meet.
template <class Params> DEVICE void meet(const Params& p, int axis, int q, int outputs, int& first, int& count) {
    const int start = q * p.stride[axis] - p.pad[axis];
    const int stop = start + (outputs - 1) * p.stride[axis] + (p.kernel[axis] - 1) * p.dilation[axis] + 1;
    first = max(start, 0);
    count = min(stop, p.x_extent[axis]) - first;
}

// The slices of x that windows at a depth meet: the first tap's one, and how many taps.
template <class Params> DEVICE void meet_slices(const Params& p, int depth, int& slice, int& slices) {
    const int start = depth * p.stride[0] - p.pad[0], dilation = p.dilation[0];
    const int before = start < 0 ? p.depth_dilation.quotient(dilation - 1 - start) : 0;
    slice = start + before * dilation;
    slices = min(p.kernel[0] - before, p.depth_dilation.quotient(p.x_extent[0] - 1 - slice) + 1);
}

// The maxima of RUN windows of `kernel` taps each: element(i, t) is the t-th one of the i-th window.
template <int RUN, class Maxima, class Element>
DEVICE void take_each(int kernel, const Element& element, Maxima (&windows)[RUN]) {
#pragma unroll
    for (int i = 0; i < RUN; ++i) windows[i] = element(i, 0);
#pragma unroll 1
    for (int tap = 1; tap < kernel; ++tap)
#pragma unroll
        for (int i = 0; i < RUN; ++i) windows[i].merge(element(i, tap));
}

// The same where the t-th tap of a window is the (t - 1)-th of the next one; kernel >= RUN - 1.
template <int RUN, class Maxima, class Element>
DEVICE void take_shared(int kernel, const Element& element, const Maxima& none, Maxima (&windows)[RUN]) {
    Maxima shared = none, after = none;
#pragma unroll 2
    for (int tap = RUN - 1; tap < kernel; ++tap) shared.merge(element(0, tap));
    windows[RUN - 1] = shared;
#pragma unroll
    for (int i = RUN - 2; i >= 0; --i) {
        windows[i] = windows[i + 1];
        windows[i].merge(element(0, i));
    }
#pragma unroll
    for (int i = 1; i < RUN; ++i) {
        after.merge(element(0, kernel + i - 1));
        windows[i].merge(after);
    }
}

// The first window of a run, and how far the next ones are from each other.
template <int RUN, class Params> DEVICE int window_of(const Params& p, int axis, int run, int& step) {
    if (p.step[axis] <= 1) {
        step = 1;
        return run * RUN;
    }
    int between;
    step = p.step[axis];
    return p.steps[axis].split(run, between) * (RUN * step) + between;
}
