"""CUDA sources with structs of every form that the struct parser must read; kernel ``take`` accepts any of them."""

from __future__ import annotations

_DIVIDER = """#pragma once
// template <class Index> struct Divider { int no; };  is only a comment
template <class Index> struct Divider;

template <> struct Divider<int> {
    unsigned divisor, multiplier, shift;

    __device__ __forceinline__ int quotient(int number) const { return number; }
};

template <> struct Divider<long long> {
    long long divisor;
    __device__ __forceinline__ long long quotient(long long number) const
    {
        if (number) { return number / divisor; }
        return 0;
    }
};
constexpr int kFour = 4, kTwo = 2;
"""
_STRUCTS = """#include "base/divider.cuh"
#include "base/more.cuh"

template <class P> __device__ __forceinline__ void take(const P& p) {}

struct Scalars {
    char a;                      // 0
    double b;                    // 8
    bool c;                      // 16; not  int d;
    unsigned short d;            // 18
    const float* e;              /* 24; not
    int d; */
    float f, g[3];               // 32, 36
    unsigned long long h;        // 48
    int i;                       // 56
};

template <class Index, int NDIM> struct Shared {
    enum Part { ALL, SUMS };
    static constexpr int kNone = 3;
    using Number = Index;
    const void* x;                                       // 0
    Index extent[NDIM], pad;                             // 8
    Divider<Index> by[NDIM];
    Divider<int> tiles, table[kTwo][kFour];

    __device__ __forceinline__ Index sum() const
    {
        Index total = 0;
        for (int axis = 0; axis < NDIM; ++axis) { total += extent[axis]; }
        return total;
    }
    int last;
};

struct Outer {
    int first;                                           // 0
    Shared<long long, 2> inner;                          // 8
    Inner pair[2];                                       // of more.cuh
    short end;
};

template <class Problem> struct Wrapped {
    int n;
    Problem problem;
};
using WrappedPair = Wrapped<Wrapped<Inner>>;

template <class Index, int NDIM> struct Derived : Shared<Index, NDIM> {
    short own;
};

struct Mapped {
    int before;                                          // 0
    CUtensorMap map;                                     // 64
    char after;                                          // 192
};
struct Two {
    char first;                                          // 0
    Mapped mapped;                                       // 64
};
"""
_MORE = """struct alignas(64) CUtensorMap { unsigned long long words[16]; };
struct Inner { short s; int n; };
constexpr int kFive = 5;
"""

SOURCES = {"structs.cu": _STRUCTS, "base/divider.cuh": _DIVIDER, "base/more.cuh": _MORE}
NAMES = (
    "Scalars",
    "Shared<int, 3>",
    "Shared<long long, 2>",
    "Shared<int, 9>",
    "Outer",
    "WrappedPair",
    "Wrapped<Shared<long long, 2>>",
    "Derived<int, 3>",
    "Derived<long long, 1>",
    "Mapped",
    "Two",
)
