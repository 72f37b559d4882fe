// Runs of windows along one axis: a thread reduces RUN windows at once, and shares the taps that they have in common.
//
// Windows that are `step` apart share all taps but one if step * stride equals the dilation. For these, taps common to
// the whole run are reduced once, and the remaining ones as growing prefixes and suffixes: van Herk's algorithm on one
// run.
//
//     RUN = 3, 5 taps:   window 0  a b [c d e]            common: c d e
//                        window 1    b [c d e] f          before: b, then a b
//                        window 2      [c d e] f g        after:  f, then f g
//
// Otherwise the windows of a run are adjacent, share nothing, and `step` is 0.
#pragma once
#include "base/geometry.cuh"

// The in-bounds part [first, first + count) of an axis of x that `outputs` windows from output q on cover.
template <class Params> DEVICE void meet(const Params& p, int axis, int q, int outputs, int& first, int& count) {
    const int start = q * p.stride[axis] - p.pad[axis];
    const int stop = start + (outputs - 1) * p.stride[axis] + (p.kernel[axis] - 1) * p.dilation[axis] + 1;
    first = max(start, 0);
    count = min(stop, p.x_extent[axis]) - first;
}

// The slices of x that windows at a depth cover: that of the first valid tap, and the number of valid taps.
template <class Params> DEVICE void meet_slices(const Params& p, int depth, int& slice, int& slices) {
    const int start = depth * p.stride[0] - p.pad[0], dilation = p.dilation[0];
    const int before = start < 0 ? p.depth_dilation.quotient(dilation - 1 - start) : 0;
    slice = start + before * dilation;
    slices = min(p.kernel[0] - before, p.depth_dilation.quotient(p.x_extent[0] - 1 - slice) + 1);
}

// Reduces RUN windows of `kernel` taps each, independently. element(i, t) is tap t of window i.
template <int RUN, class Maxima, class Element>
DEVICE void take_each(int kernel, const Element& element, Maxima (&windows)[RUN]) {
#pragma unroll
    for (int i = 0; i < RUN; ++i) windows[i] = element(i, 0);
#pragma unroll 1
    for (int tap = 1; tap < kernel; ++tap)
#pragma unroll
        for (int i = 0; i < RUN; ++i) windows[i].merge(element(i, tap));
}

// Reduces RUN windows that share taps: tap t of a window is tap t - 1 of the next one. Requires kernel >= RUN - 1.
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

// Returns the first window of a run; `step` receives the distance between its windows.
template <int RUN, class Params> DEVICE int window_of(const Params& p, int axis, int run, int& step) {
    if (p.step[axis] <= 1) {
        step = 1;
        return run * RUN;
    }
    int between;
    step = p.step[axis];
    return p.steps[axis].split(run, between) * (RUN * step) + between;
}
