// Wrappers of PTX instructions that have no CUDA C++ spelling, or whose spelling compiles to worse code. Those of
// sm_90a are in base/hopper.cuh.
#pragma once
#include "base/device.cuh"

// blockIdx.x, read again by each call. Values derived from it need not occupy registers during a main loop.
DEVICE int block_number() {
    int number;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
    return number;
}

// threadIdx.x, read again by each call.
DEVICE int thread_number() {
    int number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
}

DEVICE unsigned shared_address(const void* pointer) { return static_cast<unsigned>(__cvta_generic_to_shared(pointer)); }

// Hides how a number was computed, so that the compiler keeps it in a register and does not recompute it.
DEVICE void keep(int& number) { asm volatile("" : "+r"(number)); }
DEVICE void keep(unsigned& number) { asm volatile("" : "+r"(number)); }
template <class T> DEVICE void keep(T*& pointer) { asm volatile("" : "+l"(pointer)); }
// The same for a pointer into global memory. The compiler still emits global, not generic, loads and stores.
template <class T> DEVICE void keep_global(T*& pointer) {
    keep(pointer);
    __builtin_assume(__isGlobal(pointer));
}

// Loads the 16 bits of one element of global memory. Such loads stay in program order.
DEVICE unsigned load_half(const void* source) {
    unsigned bits;
    asm volatile("ld.global.u16 %0, [%1];" : "=r"(bits) : "l"(source));
    return bits;
}

// Loads and stores of shared memory by 32-bit address: 16 bytes, one accumulator, one 32-bit word, one 16-bit element.
DEVICE uint4 load_shared(unsigned address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
DEVICE void store_shared(unsigned address, const uint4& v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
DEVICE void store_shared(unsigned address, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
DEVICE void store_shared(unsigned address, double v) {
    asm volatile("st.shared.f64 [%0], %1;" ::"r"(address), "d"(v) : "memory");
}
DEVICE void load_shared(unsigned address, float& v) {
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
}
DEVICE void load_shared(unsigned address, double& v) {
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(v) : "r"(address) : "memory");
}
DEVICE void store_word(unsigned address, unsigned v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
DEVICE unsigned load_word(unsigned address) {
    unsigned v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}
template <class T>
DEVICE void store_shared(unsigned address, T v) // T has 16 bits
{
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(reinterpret_cast<const unsigned short&>(v)) : "memory");
}

// Starts a cp.async of SIZE bytes, global -> shared. Only the first `bytes` are read; zeros fill the rest. With bytes =
// 0 nothing is read, and `source` may be any address. Only 16-byte copies bypass the L1 cache (.cg).
template <int SIZE> DEVICE void copy_async(unsigned target, const void* source, int bytes) {
    if constexpr (SIZE == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
    } else {
        static_assert(SIZE == 4 || SIZE == 8);
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(SIZE), "r"(bytes)
                     : "memory");
    }
}

// Commits the copies that this thread has started since the last commit as one group.
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most KEEP of this thread's committed groups are still in flight.
template <int KEEP> DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(KEEP) : "memory"); }

// Stores a vector to shared memory in one instruction. The compiler splits some plain assignments into four stores,
// which have bank conflicts.
DEVICE void store_shared(void* target, const float (&v)[4]) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(target)), "f"(v[0]), "f"(v[1]),
                 "f"(v[2]), "f"(v[3])
                 : "memory");
}
DEVICE void store_shared(void* target, const double (&v)[2]) {
    asm volatile("st.shared.v2.f64 [%0], {%1, %2};" ::"r"(shared_address(target)), "d"(v[0]), "d"(v[1]) : "memory");
}
DEVICE void store_shared(void* target, const float (&v)[2]) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared_address(target)), "f"(v[0]), "f"(v[1]) : "memory");
}

// ---- tensor cores; conv/gemm/fragments.cuh describes how lanes hold fragments

// ldmatrix.x4: four 8 x 8 matrices of 16-bit elements. Lanes 8i to 8i + 7 give the addresses of matrix i's 16-byte
// rows.
DEVICE void load_matrices(unsigned (&values)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(address)
                 : "memory");
}

// ldmatrix.x4.trans: the same, transposed. A lane receives two elements of a column instead of a row.
DEVICE void load_transposed_matrices(unsigned (&values)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(address)
                 : "memory");
}

// mma.sync, d += a * b, with 16 x 8 sums in float32. K is 16 for float16 and bfloat16. K is 8 for TF32, which ignores
// the last 13 bits of each float32.
#define MULTIPLY_16X8(NAME, TYPES)                                                                           \
    DEVICE void NAME(float (&d)[4], const uint4& a, const unsigned (&b)[2]) {                                \
        asm("mma.sync.aligned." TYPES ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                 \
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));                                 \
    }
MULTIPLY_16X8(multiply_half, "m16n8k16.row.col.f32.f16.f16")
MULTIPLY_16X8(multiply_bfloat16, "m16n8k16.row.col.f32.bf16.bf16")
MULTIPLY_16X8(multiply_tf32, "m16n8k8.row.col.f32.tf32.tf32")
// The same for float64: 8 x 8 sums with K = 4, or 16 x 8 sums with K = 16, which is one instruction from sm_90 on.
DEVICE void multiply_double(double& d0, double& d1, double a, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(d0), "+d"(d1)
        : "d"(a), "d"(b));
}
// Before sm_90, this form is four pairs of the smaller instruction.
DEVICE void multiply_double(double (&d)[4], const double2 (&a)[4], const double (&b)[4]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
        "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0].x), "d"(a[0].y), "d"(a[1].x), "d"(a[1].y), "d"(a[2].x), "d"(a[2].y), "d"(a[3].x), "d"(a[3].y),
          "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
#else
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        multiply_double(d[0], d[1], a[k].x, b[k]);
        multiply_double(d[2], d[3], a[k].y, b[k]);
    }
#endif
}

// Rounds to TF32 (11 significant bits), ties away from zero.
DEVICE unsigned round_tf32(float value) {
    unsigned result;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(value));
    return result;
}

// ---- loads and stores past L1

// 16 bytes of global memory, cached in L2 only (.cg): the L1 cache is not coherent with writes of other SMs.
DEVICE void load_l2(const float* source, float (&v)[4]) {
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "l"(source)
                 : "memory");
}
DEVICE void load_l2(const double* source, double (&v)[2]) {
    asm volatile("ld.global.cg.v2.f64 {%0, %1}, [%2];" : "=d"(v[0]), "=d"(v[1]) : "l"(source) : "memory");
}
DEVICE void store_l2(float* target, const float (&v)[4]) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(target), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}
DEVICE void store_l2(double* target, const double (&v)[2]) {
    asm volatile("st.global.cg.v2.f64 [%0], {%1, %2};" ::"l"(target), "d"(v[0]), "d"(v[1]) : "memory");
}

// ---- maxima
//
// Returns the larger number, or NaN if either is NaN (max.NaN). +0 is larger than -0.
DEVICE float max_nan(float a, float b) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

// The same for two packed 16-bit numbers at once.
DEVICE unsigned max_nan_f16x2(unsigned a, unsigned b) {
    unsigned result;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}
DEVICE unsigned max_nan_bf16x2(unsigned a, unsigned b) {
    unsigned result;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

// Returns the value of the previous or next lane, for values of 4 or 8 bytes. All lanes of the warp must take part.
template <class T> DEVICE T lane_before(T value) { return __shfl_up_sync(0xffffffff, value, 1); }
template <class T> DEVICE T lane_after(T value) { return __shfl_down_sync(0xffffffff, value, 1); }
