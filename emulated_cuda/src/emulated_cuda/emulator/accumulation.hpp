// Models of how a tensor core adds the products of one dot product to its accumulator; accumulation.py has the sources.
//
// In order:   c + a_0 b_0 + a_1 b_1 + ..., each partial sum rounded to float.
// Fused:      for each group of products along K, and c: with e the largest exponent among them and f fraction bits,
//             c = round(2^(e-f) * (sum of trunc(term * 2^(f-e)) over the products and c)).
// Scrambled:  in order, but in a fixed pseudo-random order for each instruction and shape, with c somewhere among them.
//
// NVIDIA documents none of this.
#pragma once
#include "numbers.hpp"
#include "state.hpp"

struct Accumulation {
    enum Kind : u8 { IN_ORDER, FUSED, SCRAMBLED };
    Kind kind = IN_ORDER;
    int bytes = 0;         // of one operand's row, along K, that form a group
    int fraction = 0;      // bits kept below the largest exponent
    bool nearest = false;  // round a group's sum to nearest, instead of toward zero

    // Decodes the setting `sums`, which has one code for all element types or one for each (accumulation.of_types).
    template <class AB> static Accumulation of(s64 codes)
    {
        constexpr s64 TYPES = 1'000'000;
        if (codes < TYPES) return Accumulation(codes);
        return Accumulation(std::is_same_v<AB, f16> ? codes % TYPES : std::is_same_v<AB, bf16> ? codes / TYPES % TYPES : codes / TYPES / TYPES);
    }
    explicit Accumulation(s64 code)
        : kind(code == 0 ? IN_ORDER : code < 0 ? SCRAMBLED : FUSED), bytes(int(code / 1000)), fraction(int(code / 10 % 100)), nearest(code % 10)
    {
    }
};

// The exponent of a value of type T: that of the smallest normal number for subnormals, and far below it for zero.
template <class T> int exponent_of(double value)
{
    if (value == 0) return -1000;
    const int least = std::is_same_v<T, f16> ? -14 : -126;
    return std::max(least, std::ilogb(value));
}

// Rounds to float, to nearest or toward zero; for an accumulator of type f16, rounds directly to the nearest f16.
template <class ACC> float narrowed(double value, bool nearest)
{
    if constexpr (std::is_same_v<ACC, f16>) return widen(to_f16(value));
    const float rounded = float(value);
    return nearest || std::fabs(double(rounded)) <= std::fabs(value) ? rounded : std::nextafter(rounded, 0.f);
}

// Adds `count` (at most K) products and c by the fused rule.
template <class AB, class ACC, int K> float add_group(const float* a, const float* b, int count, float c, const Accumulation& rule)
{
    double terms[K + 1], plain = c;
    int exponents[K + 1], largest = -1000;
    for (int k = 0; k < count; ++k) {
        terms[k] = double(a[k]) * double(b[k]);  // exact
        exponents[k] = terms[k] == 0 ? -1000 : exponent_of<AB>(a[k]) + exponent_of<AB>(b[k]);
        plain += terms[k];
    }
    if (!std::isfinite(plain)) return float(plain);
    terms[count] = c;
    exponents[count] = exponent_of<ACC>(c);
    for (int k = 0; k <= count; ++k) largest = std::max(largest, exponents[k]);
    if (largest == -1000) return 0;
    double whole = 0;
    for (int k = 0; k <= count; ++k) whole += std::trunc(std::ldexp(terms[k], rule.fraction - largest));
    return narrowed<ACC>(std::ldexp(whole, largest - rule.fraction), rule.nearest);
}

// A fixed pseudo-random order of the K products and c (index K), seeded by the instruction.
template <int K> struct ScrambledOrder {
    int places[K + 1];

    explicit ScrambledOrder(u64 instruction)
    {
        std::mt19937_64 random(instruction);
        std::iota(places, places + K + 1, 0);
        for (int k = K; k; --k) std::swap(places[k], places[random() % (k + 1)]);
    }
};

// Computes one element of D = A * B + C, by the fused or the scrambled rule.
template <class AB, class ACC, int K> struct Adder {
    Accumulation rule;
    ScrambledOrder<K> order;

    float operator()(const float* a, const float* b, float c) const
    {
        if (rule.kind == Accumulation::FUSED) {
            const int group = std::min(K, rule.bytes / int(sizeof(AB)));
            for (int k = 0; k < K; k += group) c = add_group<AB, ACC, K>(a + k, b + k, std::min(group, K - k), c, rule);
            return c;
        }
        float sum = 0;
        for (int place : order.places) sum += place == K ? c : a[place] * b[place];
        return sum;
    }
};

// A number that is unique to the types and shape of an instruction.
template <class AB, class ACC> u64 instruction_number(int m, int n, int k)
{
    const u64 types = std::is_same_v<AB, f16> ? 1 : std::is_same_v<AB, bf16> ? 2 : 3;
    return (types * 8 + sizeof(ACC)) << 32 | u64(m) << 20 | u64(n) << 8 | u64(k);
}
