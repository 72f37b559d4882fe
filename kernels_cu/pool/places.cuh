// Pairs of channels that lie one after another, with the places of their maxima; vectors of channels on their way in
// and out.
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

// Where the channels of a thread lie, from the first one on. Whole vectors are neighbours, which are loaded at once.
// Of others lanes have neighbours: a thread's are `apart`, and none lies after the `last`.
struct Spread {
    bool whole;
    int apart, last;
};

// The channels of vector number `vector` of `channels` neighbours; `first` is its first one.
template <int VECTOR> DEVICE Spread spread_of(bool whole, int channels, int vector, int& first) {
    first = whole ? vector * VECTOR : vector;
    return {whole, whole ? 1 : (channels + VECTOR - 1) / VECTOR, channels - 1 - first};
}

// Loads channels one by one, as neighbours lie; for each that does not exist the last one again.
template <class T> DEVICE void gather(const T* x, const Spread& spread, uint4& row) {
    constexpr int kSize = sizeof(T), kEach = kSize < 4 ? 4 / kSize : 1;
    const auto element = [&](int i) { return x[min(i * spread.apart, spread.last)]; };
    if constexpr (kSize == 8) {
        const T first = element(0), second = element(1);
        row = make_uint4(__double2loint(first), __double2hiint(first), __double2loint(second), __double2hiint(second));
    } else {
        row = {};
#pragma unroll(kSize == 1 ? 1 : 4) // the places of 16 bytes would need too many registers
        for (int word = 0; word < 4; ++word) {
            unsigned bits = 0;
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                if constexpr (kSize == 4) bits = __float_as_uint(element(word));
                else bits |= bits_of(element(word * kEach + i)) << i * kSize * 8;
            }
            row = make_uint4(row.y, row.z, row.w, bits);
        }
    }
}
template <class T> DEVICE void gather(const T* x, const Spread& spread, Neighbours<T, 2>& row) {
    row = {{x[0], x[min(spread.apart, spread.last)]}};
}
template <class Row, class T> DEVICE void load_row(const T* x, const Spread& spread, Row& row) {
    if (spread.whole) row = *reinterpret_cast<const Row*>(x);
    else gather(x, spread, row);
}

// Writes a thread's channels, neighbours at once where that is possible.
template <class T, int COUNT> DEVICE void write_row(T* target, const Spread& spread, const T (&row)[COUNT]) {
    if (spread.whole && reinterpret_cast<unsigned long long>(target) % (COUNT * sizeof(T)) == 0) {
        store_row(target, row);
        return;
    }
    int apart = spread.apart;
    if constexpr (sizeof(T) == 1) keep(apart); // else its multiples stay in too many registers
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        if (i * apart <= spread.last) target[i * apart] = row[i];
}

// Writes the maxima of a thread's channels; with their numbers, of which the first channel's begin at `number`, the
// next one's a plane later.
template <class T>
DEVICE void write_maxima(const Columns<T>& maxima, const Spread& spread, T* y, long long*, long long, long long) {
    T row[Columns<T>::kVector];
#pragma unroll
    for (int i = 0; i < Columns<T>::kVector; ++i) row[i] = maxima[i];
    write_row(y, spread, row);
}
template <class T>
DEVICE void write_maxima(const Places<T>& maxima, const Spread& spread, T* y, long long* indices, long long number,
                         long long plane) {
    const Maximum<T, int, true>&first = maxima.maxima[0], &second = maxima.maxima[1];
    write_row(y, spread, {first.value, second.value});
    write_row(indices, spread, {number + first.place, number + spread.apart * plane + second.place});
}
