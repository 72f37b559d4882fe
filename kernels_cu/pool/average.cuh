// Averages: sums of windows, in the accumulator's type, and how many of a window's taps count.
#pragma once
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/vectors.cuh"

// What is taken in the place of a Maximum.
template <class T, class Acc> struct Sum {
    static constexpr bool kPlaces = false;
    Acc value;

    static DEVICE T none() { return narrow<T>(Acc(0)); }
    template <class Index> static DEVICE Sum of(T element, Index) { return {widen(element)}; }
    template <class Index> DEVICE void take(T element, Index) { value += widen(element); }
    DEVICE void merge(const Sum& other) { value += other.value; }
};

// The sums of kVector columns: what are Columns of maxima.
template <class T, class Acc> struct ColumnSums {
    using Row = uint4;
    static constexpr int kVector = 16 / int(sizeof(T));
    Acc sums[kVector];

    DEVICE ColumnSums() { clear(sums); }
    DEVICE explicit ColumnSums(const Row& row) {
        const unsigned words[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
        for (int i = 0; i < kVector; ++i) sums[i] = Widened<T>::of(words, i);
    }
    DEVICE void take(const Row& row) { merge(ColumnSums(row)); }
    DEVICE void merge(const ColumnSums& other) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) sums[i] += other.sums[i];
    }
    DEVICE Acc operator[](int i) const { return sums[i]; }
};

// The taps that count: those of a window from `begin` on which lie in [0, extent) once `shift` is taken off.
template <class Index, int NDIM> struct Counted {
    Index taps[NDIM], shift[NDIM], extent[NDIM];
    Divider<Index> dilation[NDIM];
};

// How many taps count along an axis, of the window that begins there (stride times its number).
template <class Index, int NDIM> DEVICE Index count(const Counted<Index, NDIM>& counted, int axis, Index begin) {
    const Index start = begin - counted.shift[axis], last = counted.extent[axis] - 1 - start;
    if (last < 0) return 0;
    const Index end = counted.dilation[axis].quotient(last) + 1;
    const Index stop = end < counted.taps[axis] ? end : counted.taps[axis];
    const Index first = start < 0 ? counted.dilation[axis].quotient(-1 - start) + 1 : 0;
    return first < stop ? stop - first : 0;
}

// A sum divided by counts, rounded once; no number where nothing counts.
template <class T, class Acc> DEVICE T average(Acc sum, Acc counts) { return narrow<T>(sum / counts); }
