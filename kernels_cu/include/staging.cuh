// Runs of neighbouring elements on their way from global to shared memory, 16 bytes at a time.
#pragma once
#include "ptx.cuh"

// Elements between an address and the multiple of 16 bytes before it.
template <class T> __device__ __forceinline__ int phase_of(const T* address)
{
    return int(reinterpret_cast<unsigned long long>(address) % 16) / int(sizeof(T));
}

// Starts copying a run of `count` elements, of which each of `members` threads takes a share. Element i goes to
// target[phase_of(source) + i], so that both sides of a copy are aligned; target itself is, to 16 bytes. Up to 16 bytes
// after the run are overwritten where it does not end at a multiple of them.
template <class T>
__device__ __forceinline__ void copy_run(T* target, const T* source, int count, int member, int members)
{
    constexpr int kVector = 16 / int(sizeof(T));
    const int begin = phase_of(source), end = begin + count;
    const T* origin = source - begin;
#pragma unroll 1
    for (int first = member * kVector; first < end; first += members * kVector) {
        const int left = end - first;
        if (first >= begin) {
            copy_async<16>(shared_address(target + first), origin + first, (left < kVector ? left : kVector) * int(sizeof(T)));
        } else {
#pragma unroll 1
            for (int i = begin; i < kVector && i < end; ++i) target[i] = origin[i];
        }
    }
}
