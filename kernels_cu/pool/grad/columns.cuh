// Geometry of the pooling gradients that walk down columns of x: which windows cover an element, and where a walk
// begins. The parameters' structs must have the members used here.
#pragma once
#include "base/geometry.cuh"

// The windows [first, end) along an axis.
struct WindowRange { int first, end; };

// The windows that cover a coordinate along an axis.
template <class Params> DEVICE WindowRange reaching(const Params& p, int axis, int at) {
    const int from_begin = at + p.pad[axis], beyond = from_begin - p.kernel[axis];
    return {beyond < 0 ? 0 : p.stride[axis].quotient(beyond) + 1,
            from_begin < 0 ? 0 : min(p.stride[axis].quotient(from_begin) + 1, p.y_extent[axis])};
}

// A walk: image, channel, slice, group of columns, and the first row of windows.
struct WalkPlace { int image, channel, depth, group, begin; };

// Decodes a walk's number.
template <class Params> DEVICE WalkPlace place_of(const Params& p, int item) {
    WalkPlace place;
    int part, above = item;
    if (p.channels_last) above = p.channels.split(above, place.channel);
    above = p.depths.split(p.walks.split(p.groups.split(above, place.group), part), place.depth);
    if (p.channels_last) place.image = above;
    else place.image = p.channels.split(above, place.channel);
    place.begin = p.first + part * p.walk;
    return place;
}

// How many of a thread's COLUMNS, from `column` on, must be written one by one; 0: all of them, as vectors.
template <int COLUMNS, class T, class Params> DEVICE int columns_from(const Params& p, int column) {
    const int columns = p.columns - column;
    const bool aligned = reinterpret_cast<unsigned long long>(p.dx) % (COLUMNS * sizeof(T)) == 0;
    return p.vectors && columns >= COLUMNS && aligned ? 0 : columns;
}
