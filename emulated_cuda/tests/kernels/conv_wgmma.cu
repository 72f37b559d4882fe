// Implicit GEMM convolution for sm_90a, NHWC bf16: x by TMA im2col loads, w by TMA tile loads, products by wgmma. One
// producer warp and one consumer warpgroup; a block computes 64 pixels x 64 filters, in steps of 64 channels of one
// filter tap.
#include "hopper.cuh"

struct ConvParams {
    int N, C, H, W, K, R, S, P, Q;
    int stride_h, stride_w, pad_h, pad_w, dil_h, dil_w;
};

constexpr int STAGES = 3;

extern "C" __global__ void __launch_bounds__(160)
conv_wgmma(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
           __nv_bfloat16* __restrict__ y, const ConvParams p)
{
    constexpr int BM = 64, BN = 64, BK = 64, TILE = BM * BK * 2;               // bytes of one operand tile
    extern __shared__ __align__(1024) unsigned char smem[];
    __shared__ __align__(8) unsigned long long full[STAGES], empty[STAGES];

    const int tid = threadIdx.x, m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    const int csteps = (p.C + BK - 1) / BK, steps = p.R * p.S * csteps;

    if (tid == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(smem_addr(&full[s]), 1);
            mbarrier_init(smem_addr(&empty[s]), 128);
        }
        fence_mbarrier_init();
    }
    __syncthreads();

    if (tid >= 128) {                                                         // producer
        if (tid == 128) {
            const int n = m0 / (p.P * p.Q), pq = m0 % (p.P * p.Q);
            const int h = pq / p.Q * p.stride_h - p.pad_h, w = pq % p.Q * p.stride_w - p.pad_w;
            for (int i = 0; i < steps; ++i) {
                const int s = i % STAGES, rs = i / csteps, c = i % csteps * BK;
                if (i >= STAGES) mbarrier_wait(smem_addr(&empty[s]), (i / STAGES - 1) & 1);
                const unsigned bar = smem_addr(&full[s]), a = smem_addr(smem) + s * 2 * TILE;
#ifdef EXPECTS_TOO_MUCH
                mbarrier_expect_tx(bar, 2 * TILE + 16);
#else
                mbarrier_expect_tx(bar, 2 * TILE);
#endif
                tma_load_im2col_4d(a, &x_map, bar, c, w, h, n, rs % p.S * p.dil_w, rs / p.S * p.dil_h);
                tma_load_2d(a + TILE, &w_map, bar, rs * p.C + c, n0);
            }
        }
        return;
    }

    float acc[32] = {};
    for (int i = 0; i < steps; ++i) {                                         // consumers
        const int s = i % STAGES;
        mbarrier_wait(smem_addr(&full[s]), (i / STAGES) & 1);
        const unsigned a = smem_addr(smem) + s * 2 * TILE;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / 16; ++k)
            wgmma_m64n64k16(acc, wgmma_desc(a + k * 32), wgmma_desc(a + TILE + k * 32), 1);
        wgmma_commit();
#ifdef RELEASES_EARLY  // fault: the stage is released before wgmma has read it
        mbarrier_arrive(smem_addr(&empty[s]));
        wgmma_wait<0>();
#elif defined(WAITS_FOR_TOO_FEW)  // fault: the last wgmma group is not waited for
        if (i < steps - 1) wgmma_wait<0>();
        mbarrier_arrive(smem_addr(&empty[s]));
#else
        wgmma_wait<0>();
        mbarrier_arrive(smem_addr(&empty[s]));
#endif
    }
    const int warp = tid / 32, lane = tid % 32, M = p.N * p.P * p.Q;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int m = m0 + warp * 16 + lane / 4 + i / 2 % 2 * 8, n = n0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (m < M && n < p.K) y[size_t(m) * p.K + n] = __float2bfloat16(acc[i]);
    }
}
