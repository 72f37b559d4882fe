// Kernels timed by benchmarks/constants.py. Each does one kind of work, in enough independent dependency chains to hide
// the latency of its instruction, so that its throughput is measured.
#include <cuda_bf16.h>

extern "C" __global__ void empty() {}

// Streams a buffer that fits the L2 cache `rounds` times: each thread loads 16 bytes per step, past L1 (__ldcg).
extern "C" __global__ void read_cached(const uint4* data, unsigned count, int rounds, unsigned* sink)
{
    unsigned sum = 0;
    for (int round = 0; round < rounds; ++round) {
        for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) {
            const uint4 found = __ldcg(data + at);
            sum += found.x ^ found.y ^ found.z ^ found.w;
        }
    }
    if (sum == 0xdeadbeefu) *sink = sum;
}

// Per thread and round: 8 steps of 16 independent FFMAs.
extern "C" __global__ void ffma(float a, float b, int rounds, float* sink)
{
    float sums[16];
    for (int i = 0; i < 16; ++i) sums[i] = threadIdx.x + i;
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int step = 0; step < 8; ++step) {
#pragma unroll
            for (int i = 0; i < 16; ++i) sums[i] = fmaf(sums[i], a, b);
        }
    }
    float sum = 0;
    for (int i = 0; i < 16; ++i) sum += sums[i];
    if (sum == 12345.678f) *sink = sum;
}

// Returns pseudo-random operands. Non-zero bits take more power than zeros and may lower the clock, as real data does.
__device__ __forceinline__ unsigned noise(unsigned seed)
{
    seed = seed * 747796405u + 2891336453u;
    seed = ((seed >> ((seed >> 28) + 4)) ^ seed) * 277803737u;
    return (seed & 0x3fff3fffu) | 0x30003000u;  // two bfloat16 between 2^-31 and 2
}

// Per warp and round: 8 independent mma.sync of 16x8x16 (bfloat16) or 16x8x8 (TF32).
#define MMA_KERNEL(NAME, INSTRUCTION, A, B)                                                                            \
    extern "C" __global__ void NAME(int rounds, float* sink)                                                           \
    {                                                                                                                  \
        unsigned a[4], b[2];                                                                                           \
        for (int i = 0; i < 4; ++i) a[i] = noise(threadIdx.x * 6 + i);                                                 \
        for (int i = 0; i < 2; ++i) b[i] = noise(threadIdx.x * 6 + 4 + i) ^ (i << 31);                                 \
        float sums[8][4] = {};                                                                                         \
        for (int round = 0; round < rounds; ++round) {                                                                 \
            _Pragma("unroll") for (int i = 0; i < 8; ++i)                                                              \
                asm volatile(INSTRUCTION " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"            \
                             : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])                  \
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                      \
        }                                                                                                              \
        float sum = 0;                                                                                                 \
        for (int i = 0; i < 32; ++i) sum += sums[i / 4][i % 4];                                                        \
        if (sum == 12345.678f) *sink = sum;                                                                            \
    }

MMA_KERNEL(mma_bfloat16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 4, 2)
MMA_KERNEL(mma_tf32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2)

// Measures clocks and nanoseconds over the same span of dependent FFMAs; their ratio is the clock rate.
extern "C" __global__ void clock_rate(int rounds, unsigned long long* found, float* sink)
{
    unsigned long long from, to;
    const long long begin = clock64();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(from)::"memory");
    float sum = threadIdx.x;
    for (int round = 0; round < rounds; ++round) sum = fmaf(sum, 1.0001f, 0.5f);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(to)::"memory");
    const long long end = clock64();
    if (sum == 12345.678f) *sink = sum;
    if (threadIdx.x == 0 && blockIdx.x == 0) found[0] = end - begin, found[1] = to - from;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TEN(N) "%" #N "0, %" #N "1, %" #N "2, %" #N "3, %" #N "4, %" #N "5, %" #N "6, %" #N "7, %" #N "8, %" #N "9, "
#define F8(I) "+f"(s[I]), "+f"(s[I + 1]), "+f"(s[I + 2]), "+f"(s[I + 3]), "+f"(s[I + 4]), "+f"(s[I + 5]), "+f"(s[I + 6]), "+f"(s[I + 7])
#define F32(I) F8(I), F8(I + 8), F8(I + 16), F8(I + 24)

// Per warpgroup and round: 4 wgmma of 64x256x16, both operands in shared memory without swizzle. Results are meaningless.
extern "C" __global__ void __launch_bounds__(256, 1) wgmma_bfloat16(int rounds, float* sink)
{
    extern __shared__ __align__(1024) unsigned words[];
    for (unsigned i = threadIdx.x; i < 32768 / 4; i += blockDim.x) words[i] = noise(i) ^ (i << 31);
    __syncthreads();
    asm volatile("fence.proxy.async;" ::: "memory");
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(words));
    // Descriptor of core matrices (8 rows of 16 bytes): 128 bytes apart along K, 256 bytes apart along M or N.
    const unsigned long long form = (128ull >> 4) << 16 | (256ull >> 4) << 32;
    const unsigned long long a = form | (address & 0x3ffff) >> 4, b = form | ((address + 4096) & 0x3ffff) >> 4;
    float s[128];
    for (int i = 0; i < 128; ++i) s[i] = 0;
    for (int round = 0; round < rounds; ++round) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int step = 0; step < 4; ++step)
            asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8)
                         TEN(9) TEN(10) TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, 1, 1, 1, 0, 0;"
                         : F32(0), F32(32), F32(64), F32(96)
                         : "l"(a + step * 64), "l"(b + step * 64));
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    float sum = 0;
    for (int i = 0; i < 128; ++i) sum += s[i];
    if (sum == 12345.678f) *sink = sum;
}
#endif
