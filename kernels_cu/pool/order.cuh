// The order of MaxPool: NaN above everything, zeros of both signs equal, among equals the first one stays.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "base/ptx.cuh"

// The lowest finite value: what a window without any element gives.
template <class T> DEVICE T lowest();
template <> DEVICE __half lowest<__half>() { return __ushort_as_half(0xfbff); }
template <> DEVICE __nv_bfloat16 lowest<__nv_bfloat16>() { return __ushort_as_bfloat16(0xff7f); }
template <> DEVICE float lowest<float>() { return __int_as_float(0xff7fffff); }
template <> DEVICE double lowest<double>() { return __longlong_as_double(0xffefffffffffffff); }
template <> DEVICE signed char lowest<signed char>() { return -128; }
template <> DEVICE unsigned char lowest<unsigned char>() { return 0; }

// What exceeds nothing: where a maximum starts. An element that does not exceed it has the same bits.
template <class T> DEVICE T least() { return lowest<T>(); }
template <> DEVICE __half least<__half>() { return __ushort_as_half(0xfc00); }
template <> DEVICE __nv_bfloat16 least<__nv_bfloat16>() { return __ushort_as_bfloat16(0xff80); }
template <> DEVICE float least<float>() { return __int_as_float(0xff800000); }
template <> DEVICE double least<double>() { return __longlong_as_double(0xfff0000000000000); }

// Whether a later element takes the place of the maximum so far. "Not less or equal" holds for NaN as well.
template <class T> DEVICE bool exceeds(T later, T best) { return !(later <= best) && best == best; }
template <> DEVICE bool exceeds<__half>(__half later, __half best) {
    return exceeds(__half2float(later), __half2float(best));
}
template <> DEVICE bool exceeds<__nv_bfloat16>(__nv_bfloat16 later, __nv_bfloat16 best) {
    return exceeds(__bfloat162float(later), __bfloat162float(best));
}

// The larger value: either of two zeros, any NaN.
template <class T> DEVICE T larger(T a, T b) { return b > a || b != b ? b : a; }
DEVICE float larger(float a, float b) { return max_nan(a, b); }
DEVICE __half larger(__half a, __half b) { return __hmax_nan(a, b); }
DEVICE __nv_bfloat16 larger(__nv_bfloat16 a, __nv_bfloat16 b) { return __hmax_nan(a, b); }
DEVICE signed char larger(signed char a, signed char b) { return max(int(a), int(b)); }
DEVICE unsigned char larger(unsigned char a, unsigned char b) { return max(int(a), int(b)); }

// The first maximum so far, and the number of its element where that is asked for.
template <class T, class Index, bool INDICES> struct Maximum {
    static constexpr bool kPlaces = INDICES;
    T value;
    Index place;

    // An element that changes nothing, and the maximum of one.
    static DEVICE T none() { return least<T>(); }
    static DEVICE Maximum of(T element, Index number) { return {element, number}; }

    // A later element, in the order of the numbers.
    DEVICE void take(T element, Index number) {
        if constexpr (INDICES) {
            const bool better = exceeds(element, value);
            value = better ? element : value;
            place = better ? number : place;
        } else {
            value = larger(value, element);
        }
    }
    // The maximum of other elements, whatever their numbers: of equal ones the lower number stays.
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

// The maximum of no element: whatever is merged with it stays.
template <class T, bool INDICES> DEVICE Maximum<T, int, INDICES> nothing() { return {least<T>(), 0x7fffffff}; }
