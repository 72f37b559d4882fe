// Pairs of channels that lie one after another, with the places of their maxima; vectors of channels on their way out.
#pragma once
#include "pool/packed.cuh"

// The first maxima of two channels, and the places of their elements: what Columns are without Indices.
template <class T> struct Places {
    static constexpr int kVector = 2;
    using Row = Neighbours<T, kVector>;
    Maximum<T, int, true> maxima[kVector];

    __device__ __forceinline__ void merge(const Places& other)
    {
#pragma unroll
        for (int i = 0; i < kVector; ++i) maxima[i].merge(other.maxima[i]);
    }
};

// Writes neighbours at once where that is possible.
template <class T, int COUNT> __device__ __forceinline__ void write_vector(T* target, const T (&row)[COUNT])
{
    if (reinterpret_cast<unsigned long long>(target) % (COUNT * sizeof(T)) == 0) {
        store_row(target, row);
        return;
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) target[i] = row[i];
}
