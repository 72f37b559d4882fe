// Arithmetic of the tensor-core kernels: element types, conversion of operands (TF32, 3xTF32), and how the elements of
// an mma.sync fragment are distributed over a warp's registers.
//
// A fragment of weights (operand A) has 16 output channels x 32 bytes of K: kDepth = 16 elements of 16 bits, 8 of 32
// bits, 4 of 64 bits. A fragment of inputs (operand B) has the same K x 8 pixels; sums (C, D) are 16 channels x 8
// pixels.
//
//     A: a lane holds 16 bytes: rows lane / 4 and lane / 4 + 8, one word of K at lane % 4 of each;
//        for elements of up to 32 bits also the words of the second half of K
//     B: a lane holds the same words of K, of pixel lane / 4
//     C: a lane holds channels lane / 4 and lane / 4 + 8, pixels 2 * (lane % 4) and 2 * (lane % 4) + 1
//
// Packed weights store A so that a lane's 16 bytes are contiguous: one 16-byte load per fragment, without ldmatrix.
#pragma once
#include "base/numeric.cuh"
#include "base/ptx.cuh"

// Position of each element of a lane's 16 bytes in its fragment of weights, and the inverse.
template <class T> struct FragmentPlace {
    static constexpr int kDepth = 32 / sizeof(T);
    static constexpr int kWordElements = sizeof(T) == 2 ? 2 : 1;
    static constexpr int kElements = 16 / sizeof(T);
    // elements of K that the first word or pair of words covers
    static constexpr int kHalf = sizeof(T) == 8 ? kDepth : kDepth / 2;

    static DEVICE int row(int lane, int element) { return lane / 4 + element / kWordElements % 2 * 8; }
    static DEVICE int k(int lane, int element) {
        return element / (2 * kWordElements) * kHalf + lane % 4 * kWordElements + element % kWordElements;
    }
    // The element's position in the packed fragment (lanes in order).
    static DEVICE int number(int row, int k) {
        const int lane = row % 8 * 4 + k % kHalf / kWordElements;
        return lane * kElements + (k / kHalf * 2 + row / 8) * kWordElements + k % kWordElements;
    }
};

// float16 or bfloat16: products are exact in float32, sums are float32. MULTIPLY is the mma.sync wrapper.
template <class T, auto MULTIPLY> struct Products16 {
    using Element = T;
    using Acc = float;
    // fragments per fragment of weights; fragments along K per call of `multiply`
    static constexpr int kParts = 1, kStep = 1;
    static constexpr bool kExact = true;
    struct Inputs { unsigned words[2]; };

    static DEVICE T part(T weight, int) { return weight; }
    static DEVICE Inputs prepare(unsigned low, unsigned high) { return {{low, high}}; }
    static DEVICE void prepare(const uint4& weights, uint4 (&parts)[1]) { parts[0] = weights; }
    static DEVICE void multiply(float (&d)[4], const uint4 (&a)[1][1], const Inputs (&b)[1]) {
        MULTIPLY(d, a[0][0], b[0].words);
    }
};
using HalfProducts = Products16<__half, multiply_half>;
using Bfloat16Products = Products16<__nv_bfloat16, multiply_bfloat16>;

// Rounds to TF32. Unlike the hardware's rounding, it keeps finite numbers finite (truncating near the top), so packed
// weights are correct up to rounding.
DEVICE float nearest_tf32(float value) {
    const float rounded = __uint_as_float(round_tf32(value));
    return is_finite(rounded) || !is_finite(value) ? rounded : __uint_as_float(__float_as_uint(value) & 0xffffe000u);
}

// float32 elements, rounded to TF32. An input that is not finite, or becomes infinite by rounding, yields a non-finite
// sum, which the epilogue recomputes.
struct Tf32Products {
    using Element = float;
    using Acc = float;
    static constexpr int kParts = 1, kStep = 1;
    static constexpr bool kExact = false;
    struct Inputs { unsigned words[2]; };

    static DEVICE float part(float weight, int) { return nearest_tf32(weight); }
    // Rounds to nearest, ties away from zero: adds half a unit in the last kept place, and the tensor core drops the
    // other bits. That addition may turn a NaN into a number; the multiply-add by zero restores it.
    static DEVICE unsigned rounded(unsigned word) {
        return __float_as_uint(__fmaf_rn(__uint_as_float(word), 0.f, __uint_as_float(word + 0x1000u)));
    }
    static DEVICE Inputs prepare(unsigned low, unsigned high) { return {{rounded(low), rounded(high)}}; }
    // The same for weights that are used without packing. Here, too, overflow to infinity is repaired later.
    static DEVICE void prepare(const uint4& weights, uint4 (&parts)[1]) {
        parts[0] = make_uint4(rounded(weights.x), rounded(weights.y), rounded(weights.z), rounded(weights.w));
    }
    static DEVICE void multiply(float (&d)[4], const uint4 (&a)[1][1], const Inputs (&b)[1]) {
        multiply_tf32(d, a[0][0], b[0].words);
    }
};

// 3xTF32: each float32 is a sum of two TF32 numbers, large + small. Three products are summed: large * large, large *
// small and small * large. Non-finite factors give non-finite sums.
struct Tf32x3Products {
    using Element = float;
    using Acc = float;
    static constexpr int kParts = 2, kStep = 1;
    static constexpr bool kExact = false;
    struct Inputs { unsigned large[2], small[2]; };

    static DEVICE float part(float weight, int number) {
        const float large = nearest_tf32(weight);
        if (number == 0) return large;
        return is_finite(weight) ? nearest_tf32(weight - large) : 0.f;
    }
    // large: rounded to nearest, ties away from zero. small: the remainder; it is NaN or infinite if the number is.
    static DEVICE void split(unsigned word, unsigned& large, unsigned& small) {
        large = (word + 0x1000u) & 0xffffe000u;
        small = __float_as_uint(__uint_as_float(word) - __uint_as_float(large));
    }
    static DEVICE Inputs prepare(unsigned low, unsigned high) {
        Inputs result;
        split(low, result.large[0], result.small[0]);
        split(high, result.large[1], result.small[1]);
        return result;
    }
    static DEVICE void prepare(const uint4& weights, uint4 (&parts)[2]) {
        split(weights.x, parts[0].x, parts[1].x);
        split(weights.y, parts[0].y, parts[1].y);
        split(weights.z, parts[0].z, parts[1].z);
        split(weights.w, parts[0].w, parts[1].w);
    }
    static DEVICE void multiply(float (&d)[4], const uint4 (&a)[1][2], const Inputs (&b)[1]) {
        multiply_tf32(d, a[0][1], b[0].large);
        multiply_tf32(d, a[0][0], b[0].small);
        multiply_tf32(d, a[0][0], b[0].large);
    }
};

// float64 elements, by DMMA (fused multiply-adds); `multiply` covers four fragments along K.
struct DoubleProducts {
    using Element = double;
    using Acc = double;
    static constexpr int kParts = 1, kStep = 4;
    static constexpr bool kExact = true;
    struct Inputs { double value; };

    static DEVICE double part(double weight, int) { return weight; }
    // Unpacks the words of the fragments and multiplies.
    static DEVICE void multiply(double (&d)[4], const uint4 (&a)[4][1], const Inputs (&b)[4]) {
        double2 rows[4];
        double columns[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            rows[k] = {__hiloint2double(a[k][0].y, a[k][0].x), __hiloint2double(a[k][0].w, a[k][0].z)};
            columns[k] = b[k].value;
        }
        multiply_double(d, rows, columns);
    }
};

// Converts the words of an ldmatrix.x4 into fragments j and j + 1 of inputs.
template <class Arithmetic, class Inputs, int COUNT, int STEPS>
DEVICE void prepare_pair(const unsigned (&words)[4], Inputs (&b)[COUNT][STEPS], int j, int step) {
    b[j][step] = Arithmetic::prepare(words[0], words[1]);
    b[j + 1][step] = Arithmetic::prepare(words[2], words[3]);
}
// Loads fragments of inputs from rows of K: 16 bytes of a row are adjacent pixels, one for each fragment from j on. The
// second half of K lies four rows further down.
template <class Arithmetic, class Inputs, int COUNT, int STEPS>
DEVICE void load_neighbours(unsigned row, int pitch, Inputs (&b)[COUNT][STEPS], int j, int step) {
    const uint4 low = load_shared(row);
    if constexpr (sizeof(typename Arithmetic::Element) == 8) {
        b[j][step] = {__hiloint2double(low.y, low.x)};
        b[j + 1][step] = {__hiloint2double(low.w, low.z)};
    } else {
        const uint4 high = load_shared(row + 4 * pitch);
        b[j][step] = Arithmetic::prepare(low.x, high.x);
        b[j + 1][step] = Arithmetic::prepare(low.y, high.y);
        b[j + 2][step] = Arithmetic::prepare(low.z, high.z);
        b[j + 3][step] = Arithmetic::prepare(low.w, high.w);
    }
}

// Reads one packed weight, for repair: row `row` of the GEMM, filter m. A slice of K has SLICE rows and `pitch` bytes.
// The parts of 3xTF32 weights are added.
template <class Arithmetic, int SLICE>
DEVICE typename Arithmetic::Acc packed_weight(const unsigned char* weights, int pitch, int row, int m) {
    using T = typename Arithmetic::Element;
    using Place = FragmentPlace<T>;
    constexpr int kBytes = 512 * Arithmetic::kParts; // bytes per fragment, with all its parts
    const int fragment = m / 16 * (SLICE / Place::kDepth) + row % SLICE / Place::kDepth;
    const T* parts = reinterpret_cast<const T*>(weights + (row / SLICE * pitch + fragment * kBytes))
                   + Place::number(m % 16, row % Place::kDepth);
    return Arithmetic::kParts == 1 ? widen(parts[0]) : widen(parts[0]) + widen(parts[512 / sizeof(T)]);
}
