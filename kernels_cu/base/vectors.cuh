// Vectorised loads and stores of adjacent elements, and their conversion. Loaded vectors stay in 32-bit words until
// they are widened. As separate 16-bit elements, each would take a register and several instructions.
#pragma once
#include "base/numeric.cuh"
#include "base/ptx.cuh"

// Adjacent elements, aligned for a single load or store; Raw is the same as words.
template <class T, int COUNT> struct alignas(COUNT * sizeof(T)) Elements { T values[COUNT]; };
template <int BYTES> struct alignas(BYTES) Raw { unsigned words[BYTES / 4]; };
template <> struct Raw<2> { unsigned short words[1]; };

// Returns element `i` of an array of 32-bit words, widened to the accumulator's type.
template <class T> struct Widened;
template <> struct Widened<__half> {
    static DEVICE float of(const unsigned* words, int i) {
        return widen(__ushort_as_half(static_cast<unsigned short>(words[i / 2] >> i % 2 * 16)));
    }
};
template <> struct Widened<__nv_bfloat16> {
    static DEVICE float of(const unsigned* words, int i) {
        unsigned bits = i % 2 ? words[i / 2] & 0xffff0000 : words[i / 2] << 16;
        keep(bits); // without it, the compiler recomputes the shift for each use
        return __uint_as_float(bits);
    }
};
template <> struct Widened<float> {
    static DEVICE float of(const unsigned* words, int i) { return __uint_as_float(words[i]); }
};
template <> struct Widened<double> {
    static DEVICE double of(const unsigned* words, int i) {
        return __hiloint2double(int(words[2 * i + 1]), int(words[2 * i]));
    }
};

// Widens all elements of a vector.
template <class T, int BYTES, class Acc, int COUNT> DEVICE void widen_all(const Raw<BYTES>& raw, Acc (&values)[COUNT]) {
    static_assert(BYTES == COUNT * sizeof(T));
    constexpr int kWords = (BYTES + 3) / 4;
    unsigned words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = raw.words[i];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) values[i] = Widened<T>::of(words, i);
}

// Rounds COUNT sums and stores them as adjacent elements, in one instruction.
template <class T, class Acc, int COUNT> DEVICE void store_narrowed(T* target, const Acc (&sums)[COUNT]) {
    Elements<T, COUNT> elements;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) elements.values[i] = narrow<T>(sums[i]);
    *reinterpret_cast<Elements<T, COUNT>*>(target) = elements;
}
