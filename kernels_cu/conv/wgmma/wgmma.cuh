// wgmma.mma_async instructions: d += a * b with 64 x N sums and 32 bytes along K. Both operands are in shared memory,
// given by descriptors (base/hopper.cuh), or operand A is in registers.
//
// Lanes hold each 16 x 8 part of the sums as they hold those of mma.sync (conv/gemm/fragments.cuh). d[j] covers columns
// 8 j to 8 j + 7; warp w of the warpgroup holds rows 16 w to 16 w + 15. Operand A in registers is distributed likewise.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "base/hopper.cuh"

#define WGMMA_SUM(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define WGMMA_SUMS(j) WGMMA_SUM(j), WGMMA_SUM(j + 1), WGMMA_SUM(j + 2), WGMMA_SUM(j + 3)
#define WGMMA_32                                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_64                                                                                                      \
    WGMMA_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
             "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_128                                                                                              \
    WGMMA_64                                                                                                   \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "   \
    "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, " \
    "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, "   \
    "%121, %122, %123, %124, %125, %126, %127"

// The instruction for N = 256. LAST: the operands after the scale factors, which are 1.
#define WGMMA_MULTIPLY(SHAPE, TYPES, LAST)                                                                             \
    asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n256" SHAPE ".f32" TYPES \
                 " {" WGMMA_128 "}, %128, %129, add, 1, 1" LAST ";\n}"                                                 \
                 : WGMMA_SUMS(0), WGMMA_SUMS(4), WGMMA_SUMS(8), WGMMA_SUMS(12), WGMMA_SUMS(16), WGMMA_SUMS(20),        \
                   WGMMA_SUMS(24), WGMMA_SUMS(28)                                                                      \
                 : "l"(a), "l"(b))

// a is K-major. b is K-major too, or, with CROSSWISE, MN-major, which only 16-bit elements allow.
struct WgmmaHalf {
    using Element = __half;
    using Acc = float;
    static constexpr bool kExact = true;

    template <bool CROSSWISE>
    static DEVICE void multiply(float (&d)[32][4], unsigned long long a, unsigned long long b) {
        if constexpr (CROSSWISE) WGMMA_MULTIPLY("k16", ".f16.f16", ", 0, 1");
        else WGMMA_MULTIPLY("k16", ".f16.f16", ", 0, 0");
    }
};
struct WgmmaBfloat16 {
    using Element = __nv_bfloat16;
    using Acc = float;
    static constexpr bool kExact = true;

    template <bool CROSSWISE>
    static DEVICE void multiply(float (&d)[32][4], unsigned long long a, unsigned long long b) {
        if constexpr (CROSSWISE) WGMMA_MULTIPLY("k16", ".bf16.bf16", ", 0, 1");
        else WGMMA_MULTIPLY("k16", ".bf16.bf16", ", 0, 0");
    }
};
// float32 elements. The tensor cores ignore their last 13 bits, so operands must be rounded before.
struct WgmmaTf32 {
    using Element = float;
    using Acc = float;
    static constexpr bool kExact = false;

    template <bool CROSSWISE>
    static DEVICE void multiply(float (&d)[32][4], unsigned long long a, unsigned long long b) {
        static_assert(!CROSSWISE);
        WGMMA_MULTIPLY("k8", ".tf32.tf32", "");
    }
    // Operand A in registers.
    template <int COLUMNS>
    static DEVICE void multiply_rows(float (&d)[COLUMNS / 8][4], const unsigned (&a)[4], unsigned long long b) {
        static_assert(COLUMNS == 64 || COLUMNS == 128);
        if constexpr (COLUMNS == 128)
            asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
                         "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {" WGMMA_64
                         "}, {%64, %65, %66, %67}, %68, add, 1, 1;\n}"
                         : WGMMA_SUMS(0), WGMMA_SUMS(4), WGMMA_SUMS(8), WGMMA_SUMS(12)
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
        else
            asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
                         "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" WGMMA_32
                         "}, {%32, %33, %34, %35}, %36, add, 1, 1;\n}"
                         : WGMMA_SUMS(0), WGMMA_SUMS(4)
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
};
