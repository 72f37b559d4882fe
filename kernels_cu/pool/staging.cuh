// Copies of contiguous runs of elements between global and shared memory, 16 bytes at a time, for any alignment. The
// two sides must have the same offset from a multiple of 16 bytes.
#pragma once
#include "base/ptx.cuh"

// Elements between the previous multiple of 16 bytes and the address.
template <class T> DEVICE int phase_of(const T* address) {
    return int(reinterpret_cast<unsigned long long>(address) % 16) / int(sizeof(T));
}

// Elements of a run before its first multiple of 16 bytes.
template <class T> DEVICE int head_of(const T* address, int count) {
    const int head = -int(reinterpret_cast<unsigned long long>(address) / sizeof(T)) & 16 / int(sizeof(T)) - 1;
    return head < count ? head : count;
}

// Starts copying a run of `count` elements by `members` threads (at least 16), of which this is number `member`. target
// and source have equal offsets from a multiple of 16 bytes. Up to 16 bytes after the run in `target` may be
// overwritten.
template <class T> DEVICE void copy_run(T* target, const T* source, int count, int member, int members) {
    constexpr int kVector = 16 / int(sizeof(T));
    const int head = head_of(source, count);
    if (member < head) target[member] = source[member];
#pragma unroll 1
    for (int first = head + member * kVector; first < count; first += members * kVector) {
        const int left = count - first;
        copy_async<16>(shared_address(target + first), source + first,
                       (left < kVector ? left : kVector) * int(sizeof(T)));
    }
}

// Stores a run of `count` elements from shared to global memory, likewise. Nothing outside of the run is written.
template <class T> DEVICE void store_run(T* target, const T* source, int count, int member, int members) {
    constexpr int kVector = 16 / int(sizeof(T));
    const int head = head_of(target, count), end = head + (count - head) / kVector * kVector;
    if (member < head) target[member] = source[member];
#pragma unroll 1
    for (int first = head + member * kVector; first < end; first += members * kVector)
        *reinterpret_cast<uint4*>(target + first) = *reinterpret_cast<const uint4*>(source + first);
    if (end + member < count) target[end + member] = source[end + member];
}
