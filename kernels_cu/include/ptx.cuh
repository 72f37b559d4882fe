// Every special instruction that a kernel uses, each behind one small function.
#pragma once

// The block's number, read anew at each call: what follows from it need not stay in registers through a main loop.
__device__ __forceinline__ int block_number()
{
    int number;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
    return number;
}

// The thread's number in its block, likewise.
__device__ __forceinline__ int thread_number()
{
    int number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
}

__device__ __forceinline__ unsigned shared_address(const void* pointer)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Starts copying one element to shared memory; `bytes` of it come from global memory, zeros replace the rest.
// With 0 bytes nothing is read, and `source` may be any address.
template <int SIZE> __device__ __forceinline__ void copy_async(unsigned target, const void* source, int bytes)
{
    if constexpr (SIZE == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
    } else {
        static_assert(SIZE == 4 || SIZE == 8);
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(SIZE), "r"(bytes) : "memory");
    }
}

// Closes the group of copies started since the last call.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most KEEP of this thread's groups are in flight.
template <int KEEP> __device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(KEEP) : "memory");
}

// Stores 16 bytes to shared memory at once; written as a plain assignment, some become four stores with bank conflicts.
__device__ __forceinline__ void store_shared(void* target, const float (&v)[4])
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(target)), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
__device__ __forceinline__ void store_shared(void* target, const double (&v)[2])
{
    asm volatile("st.shared.v2.f64 [%0], {%1, %2};" ::"r"(shared_address(target)), "d"(v[0]), "d"(v[1]) : "memory");
}

// The larger one, NaN if either is NaN; +0 is larger than -0.
__device__ __forceinline__ float max_nan(float a, float b)
{
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
