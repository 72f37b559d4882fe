// Arithmetic of AveragePool: sums of windows in the accumulator's type, and the number of taps to divide by.
#pragma once
#include "base/geometry.cuh"
#include "base/numeric.cuh"
#include "base/vectors.cuh"

// The sum of one window. It has the interface of Maximum (pool/order.cuh).
template <class T, class Acc> struct Sum {
    static constexpr bool kPlaces = false;
    Acc value;

    static DEVICE T none() { return narrow<T>(Acc(0)); }
    template <class Index> static DEVICE Sum of(T element, Index) { return {widen(element)}; }
    template <class Index> DEVICE void take(T element, Index) { value += widen(element); }
    DEVICE void merge(const Sum& other) { value += other.value; }
};

// The sums of kVector adjacent columns. It has the interface of Columns (pool/packed.cuh).
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

// Which taps count towards the average: those of a window beginning at `begin` that lie in [0, extent) after `shift` is
// subtracted. The attribute count_include_pad decides what the range covers.
template <class Index, int NDIM> struct Counted {
    Index taps[NDIM], shift[NDIM], extent[NDIM];
    Divider<Index> dilation[NDIM];
};

// Number of counted taps along an axis, for the window that begins at `begin` (stride times the window's number).
template <class Index, int NDIM> DEVICE Index count(const Counted<Index, NDIM>& counted, int axis, Index begin) {
    const Index start = begin - counted.shift[axis], last = counted.extent[axis] - 1 - start;
    if (last < 0) return 0;
    const Index end = counted.dilation[axis].quotient(last) + 1;
    const Index stop = end < counted.taps[axis] ? end : counted.taps[axis];
    const Index first = start < 0 ? counted.dilation[axis].quotient(-1 - start) + 1 : 0;
    return first < stop ? stop - first : 0;
}

// sum / counts, rounded once: NaN if no tap counts.
template <class T, class Acc> DEVICE T average(Acc sum, Acc counts) { return narrow<T>(sum / counts); }
