// Channels-last helpers: pairs of channels with the Indices of their maxima, and loads and stores of a thread's
// channels.
#pragma once
#include "pool/packed.cuh"

// The maxima of two adjacent channels with the numbers of their elements. It has the interface of Columns
// (pool/packed.cuh).
template <class T> struct Places {
    static constexpr int kVector = 2;
    using Row = Neighbours<T, kVector>;
    Maximum<T, int, true> maxima[kVector];

    DEVICE void merge(const Places& other) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) maxima[i].merge(other.maxima[i]);
    }
};

// How a thread's channels are laid out. `whole`: they are one aligned vector. Otherwise they are `apart` channels
// apart, so that adjacent lanes have adjacent channels, and channels past `last` do not exist.
struct Spread {
    bool whole;
    int apart, last;
};

// Layout of the vector number `vector` among `channels` channels; `first` receives its first channel.
template <int VECTOR> DEVICE Spread spread_of(bool whole, int channels, int vector, int& first) {
    first = whole ? vector * VECTOR : vector;
    return {whole, whole ? 1 : (channels + VECTOR - 1) / VECTOR, channels - 1 - first};
}

// Loads channels one by one and packs them. For channels that do not exist, the last one is loaded again.
template <class T> DEVICE void gather(const T* x, const Spread& spread, uint4& row) {
    constexpr int kSize = sizeof(T), kEach = kSize < 4 ? 4 / kSize : 1;
    const auto element = [&](int i) { return x[min(i * spread.apart, spread.last)]; };
    if constexpr (kSize == 8) {
        const T first = element(0), second = element(1);
        row = make_uint4(__double2loint(first), __double2hiint(first), __double2loint(second), __double2hiint(second));
    } else {
        row = {};
#pragma unroll(kSize == 1 ? 1 : 4) // unrolled, the addresses of 16 bytes would need too many registers
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

// Stores a thread's channels, as one vector if possible.
template <class T, int COUNT> DEVICE void write_row(T* target, const Spread& spread, const T (&row)[COUNT]) {
    if (spread.whole && reinterpret_cast<unsigned long long>(target) % (COUNT * sizeof(T)) == 0) {
        store_row(target, row);
        return;
    }
    int apart = spread.apart;
    if constexpr (sizeof(T) == 1) keep(apart); // otherwise its multiples occupy too many registers
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        if (i * apart <= spread.last) target[i * apart] = row[i];
}

// Stores the maxima of a thread's channels and, with Indices, their numbers. `number`: Index of element 0 of the first
// channel; adjacent channels are `plane` apart.
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
