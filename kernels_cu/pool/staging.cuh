// Runs of neighbouring elements on their way between global and shared memory, 16 bytes at a time.
#pragma once
#include "base/ptx.cuh"

// Elements between an address and the multiple of 16 bytes before it.
template <class T> DEVICE int phase_of(const T* address) {
    return int(reinterpret_cast<unsigned long long>(address) % 16) / int(sizeof(T));
}

// Elements of a run before its first multiple of 16 bytes.
template <class T> DEVICE int head_of(const T* address, int count) {
    const int head = -int(reinterpret_cast<unsigned long long>(address) / sizeof(T)) & 16 / int(sizeof(T)) - 1;
    return head < count ? head : count;
}

// Starts copying a run of `count` elements, of which each of `members` threads takes a share, at least 16 of them.
// Element i goes to target[i], which lies as far after a multiple of 16 bytes as it does in the source. Up to 16 bytes
// after the run are overwritten where it does not end at a multiple of them.
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

// Writes a run of `count` elements, likewise the other way round. Nothing beside the run is written.
template <class T> DEVICE void store_run(T* target, const T* source, int count, int member, int members) {
    constexpr int kVector = 16 / int(sizeof(T));
    const int head = head_of(target, count), end = head + (count - head) / kVector * kVector;
    if (member < head) target[member] = source[member];
#pragma unroll 1
    for (int first = head + member * kVector; first < end; first += members * kVector)
        *reinterpret_cast<uint4*>(target + first) = *reinterpret_cast<const uint4*>(source + first);
    if (end + member < count) target[end + member] = source[end + member];
}
