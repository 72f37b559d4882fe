// One mma.sync per dtype; the host passes and receives the fragments as [lane][register].
#include "base/ptx.cuh"

using Multiply = void (&)(float (&)[4], const uint4&, const unsigned (&)[2]);

__device__ __forceinline__ void multiply_once(const uint4* a, const uint2* b, const float4* c, float4* y, Multiply multiply)
{
    const int at = blockIdx.x * 32 + threadIdx.x;
    float d[4] = {c[at].x, c[at].y, c[at].z, c[at].w};
    const unsigned columns[2] = {b[at].x, b[at].y};
    multiply(d, a[at], columns);
    y[at] = make_float4(d[0], d[1], d[2], d[3]);
}
extern "C" __global__ void mma_f16(const uint4* a, const uint2* b, const float4* c, float4* y) { multiply_once(a, b, c, y, multiply_half); }
extern "C" __global__ void mma_bf16(const uint4* a, const uint2* b, const float4* c, float4* y) { multiply_once(a, b, c, y, multiply_bfloat16); }
extern "C" __global__ void mma_tf32(const uint4* a, const uint2* b, const float4* c, float4* y) { multiply_once(a, b, c, y, multiply_tf32); }

extern "C" __global__ void mma_f64(const double* a, const double* b, const double* c, double* y)
{
    const int t = threadIdx.x;
    double d[2] = {c[t * 2], c[t * 2 + 1]};
    multiply_double(d[0], d[1], a[t], b[t]);
    y[t * 2] = d[0];
    y[t * 2 + 1] = d[1];
}
// m16n8k16 in float64; before sm_90 the header composes it of eight m8n8k4 instructions.
extern "C" __global__ void mma_f64_large(const double* a, const double* b, const double* c, double* y)
{
    const int t = threadIdx.x;
    double d[4];
    double2 rows[4];
    double columns[4];
    for (int i = 0; i < 4; ++i) {
        d[i] = c[t * 4 + i];
        rows[i] = make_double2(a[t * 8 + i * 2], a[t * 8 + i * 2 + 1]);
        columns[i] = b[t * 4 + i];
    }
    multiply_double(d, rows, columns);
    for (int i = 0; i < 4; ++i) y[t * 4 + i] = d[i];
}
