// The order that MaxPool uses: NaN is the largest, both zeros are equal, and of equal elements the first one wins.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "base/ptx.cuh"

// The lowest finite value: the result of an empty window.
template <class T> DEVICE T lowest();
template <> DEVICE __half lowest<__half>() { return __ushort_as_half(0xfbff); }
template <> DEVICE __nv_bfloat16 lowest<__nv_bfloat16>() { return __ushort_as_bfloat16(0xff7f); }
template <> DEVICE float lowest<float>() { return __int_as_float(0xff7fffff); }
template <> DEVICE double lowest<double>() { return __longlong_as_double(0xffefffffffffffff); }
template <> DEVICE signed char lowest<signed char>() { return -128; }
template <> DEVICE unsigned char lowest<unsigned char>() { return 0; }

// The identity of the maximum: -infinity, or the lowest integer. An element that does not exceed it has the same bits.
template <class T> DEVICE T least() { return lowest<T>(); }
template <> DEVICE __half least<__half>() { return __ushort_as_half(0xfc00); }
template <> DEVICE __nv_bfloat16 least<__nv_bfloat16>() { return __ushort_as_bfloat16(0xff80); }
template <> DEVICE float least<float>() { return __int_as_float(0xff800000); }
template <> DEVICE double least<double>() { return __longlong_as_double(0xfff0000000000000); }

// Whether a later element replaces the current maximum. !(later <= best) holds for NaN as well.
template <class T> DEVICE bool exceeds(T later, T best) { return !(later <= best) && best == best; }
template <> DEVICE bool exceeds<__half>(__half later, __half best) {
    return exceeds(__half2float(later), __half2float(best));
}
template <> DEVICE bool exceeds<__nv_bfloat16>(__nv_bfloat16 later, __nv_bfloat16 best) {
    return exceeds(__bfloat162float(later), __bfloat162float(best));
}

// The larger value without Indices: of two zeros either one, of NaNs any.
template <class T> DEVICE T larger(T a, T b) { return b > a || b != b ? b : a; }
DEVICE float larger(float a, float b) { return max_nan(a, b); }
DEVICE __half larger(__half a, __half b) { return __hmax_nan(a, b); }
DEVICE __nv_bfloat16 larger(__nv_bfloat16 a, __nv_bfloat16 b) { return __hmax_nan(a, b); }
DEVICE signed char larger(signed char a, signed char b) { return max(int(a), int(b)); }
DEVICE unsigned char larger(unsigned char a, unsigned char b) { return max(int(a), int(b)); }

// The running maximum of a window and, with INDICES, the number of the first element that has it.
template <class T, class Index, bool INDICES> struct Maximum {
    static constexpr bool kPlaces = INDICES;
    T value;
    Index place;

    // The identity, and the maximum of one element.
    static DEVICE T none() { return least<T>(); }
    static DEVICE Maximum of(T element, Index number) { return {element, number}; }

    // Merges an element that comes later in the order of numbers.
    DEVICE void take(T element, Index number) {
        if constexpr (INDICES) {
            const bool better = exceeds(element, value);
            value = better ? element : value;
            place = better ? number : place;
        } else {
            value = larger(value, element);
        }
    }
    // Merges the maximum of other elements with any numbers; of equal maxima, the lower number wins.
    DEVICE void merge(const Maximum& other) {
        if constexpr (INDICES) {
            const bool equal = !exceeds(value, other.value) && other.place < place;
            const bool better = exceeds(other.value, value) || equal;
            value = better ? other.value : value;
            place = better ? other.place : place;
        } else {
            value = larger(value, other.value);
        }
    }
};

// The maximum of no element: the identity of `merge`.
template <class T, bool INDICES> DEVICE Maximum<T, int, INDICES> nothing() { return {least<T>(), 0x7fffffff}; }
