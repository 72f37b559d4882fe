// Vectors of elements in registers: 16 bytes of a row, whose columns are reduced independently. 16-bit and 8-bit
// elements are compared two at a time (max.NaN on packed pairs).
#pragma once
#include "pool/order.cuh"

// The word of one comparison: an element, or a pair of short ones. Bytes become pairs of 16-bit numbers from 0 to 255.
// Compared as float16 (subnormals), these have the same order, and all devices have that instruction.
template <class T> struct WordOf { using Type = unsigned; };
template <> struct WordOf<float> { using Type = float; };
template <> struct WordOf<double> { using Type = double; };

template <class T> DEVICE unsigned larger_pair(unsigned a, unsigned b) { return max_nan_f16x2(a, b); }
template <> DEVICE unsigned larger_pair<__nv_bfloat16>(unsigned a, unsigned b) { return max_nan_bf16x2(a, b); }
template <class T> DEVICE unsigned bits_of(T element) { return *reinterpret_cast<unsigned char*>(&element); }
template <> DEVICE unsigned bits_of<__half>(__half element) { return __half_as_ushort(element); }
template <> DEVICE unsigned bits_of<__nv_bfloat16>(__nv_bfloat16 element) { return __bfloat16_as_ushort(element); }
template <class T> DEVICE T of_bits(unsigned bits) { return T(bits); }
template <> DEVICE __half of_bits<__half>(unsigned bits) { return __ushort_as_half(bits); }
template <> DEVICE __nv_bfloat16 of_bits<__nv_bfloat16>(unsigned bits) { return __ushort_as_bfloat16(bits); }

// Returns the element of the previous or next lane. All lanes of the warp must take part.
template <class T> DEVICE T from_lane_before(T element) {
    if constexpr (sizeof(T) >= 4) return lane_before(element);
    else return of_bits<T>(lane_before(bits_of(element)));
}
template <class T> DEVICE T from_lane_after(T element) {
    if constexpr (sizeof(T) >= 4) return lane_after(element);
    else return of_bits<T>(lane_after(bits_of(element)));
}

// XOR with this maps a byte to 0 ... 255, in order.
template <class T> constexpr unsigned kSign = 0;
template <> constexpr unsigned kSign<signed char> = 0x80;

// The maxima of kVector adjacent columns.
template <class T> struct Columns {
    using Row = uint4;
    using Word = typename WordOf<T>::Type;
    static constexpr int kVector = 16 / int(sizeof(T)), kWords = sizeof(T) == 1 ? 8 : 16 / int(sizeof(Word));
    Word words[kWords];

    // The maxima of no element: the identity.
    DEVICE Columns() {
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            if constexpr (sizeof(T) >= 4) words[i] = least<T>();
            else words[i] = sizeof(T) == 1 ? 0 : bits_of(least<T>()) * 0x10001;
        }
    }
    // Unpacks 16 bytes of a row into words of one comparison each.
    DEVICE explicit Columns(const Row& row) {
        const unsigned loaded[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            if constexpr (sizeof(T) == 8) words[i] = __hiloint2double(loaded[2 * i + 1], loaded[2 * i]);
            else if constexpr (sizeof(T) == 4) words[i] = __uint_as_float(loaded[i]);
            else if constexpr (sizeof(T) == 2) words[i] = loaded[i];
            else
                words[i] =
                    // the even bytes, then the odd ones
                    (loaded[i / 2] ^ kSign<T> * 0x1010101) >> i % 2 * 8 & 0xff00ff;
        }
    }
    DEVICE void take(const Row& row) { merge(Columns(row)); }
    // Takes the larger element of each column.
    DEVICE void merge(const Columns& other) {
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            if constexpr (sizeof(T) >= 4) words[i] = larger(words[i], other.words[i]);
            else words[i] = larger_pair<T>(words[i], other.words[i]);
        }
    }
    // The maxima as 16 bytes, in the order of memory.
    DEVICE Row row() const {
        unsigned stored[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (sizeof(T) == 8)
                stored[i] = i % 2 ? __double2hiint(words[i / 2]) : __double2loint(words[i / 2]);
            else if constexpr (sizeof(T) == 4) stored[i] = __float_as_uint(words[i]);
            else if constexpr (sizeof(T) == 2) stored[i] = words[i];
            else stored[i] = (words[2 * i] | words[2 * i + 1] << 8) ^ kSign<T> * 0x1010101;
        }
        return make_uint4(stored[0], stored[1], stored[2], stored[3]);
    }
    DEVICE T operator[](int i) const {
        if constexpr (sizeof(T) >= 4) return words[i];
        else if constexpr (sizeof(T) == 2) return of_bits<T>(words[i / 2] >> i % 2 * 16 & 0xffff);
        else return of_bits<T>(words[i / 4 * 2 + i % 2] >> i / 2 % 2 * 16 & 0xff ^ kSign<T>);
    }
};

// What pool/runs.cuh takes without Indices: 16 bytes of a row, as maxima by default.
template <class T, class Values = Columns<T>> struct Vector {
    using Maxima = Values;

    static DEVICE Maxima none() { return {}; }
    static DEVICE Maxima at(const T* elements, int) { return Maxima(*reinterpret_cast<const uint4*>(elements)); }
};

// Adjacent elements that are loaded together.
template <class T, int COUNT> struct alignas(COUNT * sizeof(T)) Neighbours {
    T elements[COUNT];

    DEVICE T operator[](int i) const { return elements[i]; }
};

// Stores adjacent elements in one instruction; the address must be a multiple of their size.
template <class T, int COUNT> DEVICE void store_row(T* target, const T (&row)[COUNT]) {
    if constexpr (COUNT * sizeof(T) < 4 || sizeof(T) >= 4) {
        struct alignas(COUNT * sizeof(T)) Whole { T elements[COUNT]; } whole;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) whole.elements[i] = row[i];
        *reinterpret_cast<Whole*>(target) = whole;
    } else {
        constexpr int kEach = 4 / int(sizeof(T)), kWords = COUNT / kEach;
        struct alignas(COUNT * sizeof(T)) Whole { unsigned words[kWords]; } whole;
#pragma unroll
        for (int word = 0; word < kWords; ++word) {
            whole.words[word] = 0;
#pragma unroll
            for (int i = 0; i < kEach; ++i)
                whole.words[word] |= bits_of(row[word * kEach + i]) << i * 8 * int(sizeof(T));
        }
        *reinterpret_cast<Whole*>(target) = whole;
    }
}
