// Pairs of channels that lie one after another, with the places of their maxima; vectors of channels on their way out.
#pragma once
#include "pool/packed.cuh"

// The first maxima of two channels, and the places of their elements: what Columns are without Indices.
template <class T> struct Places {
    static constexpr int kVector = 2;
    using Row = Neighbours<T, kVector>;
    Maximum<T, int, true> maxima[kVector];

    DEVICE void merge(const Places& other) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) maxima[i].merge(other.maxima[i]);
    }
};

// Writes neighbours at once where that is possible.
template <class T, int COUNT> DEVICE void write_vector(T* target, const T (&row)[COUNT]) {
    if (reinterpret_cast<unsigned long long>(target) % (COUNT * sizeof(T)) == 0) {
        store_row(target, row);
        return;
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) target[i] = row[i];
}

// Writes the maxima of neighbouring channels; with their numbers, of which the first channel's begin at `number`, the
// next one's a plane later.
template <class T> DEVICE void write_maxima(const Columns<T>& maxima, T* y, long long*, long long, long long) {
    T row[Columns<T>::kVector];
#pragma unroll
    for (int i = 0; i < Columns<T>::kVector; ++i) row[i] = maxima[i];
    write_vector(y, row);
}
template <class T>
DEVICE void write_maxima(const Places<T>& maxima, T* y, long long* indices, long long number, long long plane) {
    const Maximum<T, int, true>&first = maxima.maxima[0], &second = maxima.maxima[1];
    write_vector(y, {first.value, second.value});
    write_vector(indices, {number + first.place, number + plane + second.place});
}
