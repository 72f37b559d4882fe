// Shuffles, votes, reductions, shared-memory atomics and divergent branches; one block of 64 threads.
extern "C" __global__ void talks(int* y, float* sums)  // y[row][thread]
{
    __shared__ int counts[9];
    __shared__ float total;
    const int t = threadIdx.x, n = blockDim.x;
    if (t < 9) counts[t] = 0;
    if (t == 0) total = 0;
    __syncthreads();
    atomicAdd(&counts[t % 8], t);
    atomicMax(&counts[8], t);
    atomicAdd(&total, 0.5f);
    __syncthreads();
    int row = 0;
    y[row++ * n + t] = counts[t % 9];
    y[row++ * n + t] = __ballot_sync(~0u, t & 1);
    y[row++ * n + t] = __any_sync(~0u, t == 3);
    y[row++ * n + t] = __all_sync(~0u, t < 32);
    y[row++ * n + t] = __shfl_down_sync(~0u, t, 1);
    y[row++ * n + t] = __shfl_up_sync(~0u, t, 2);
    y[row++ * n + t] = __shfl_xor_sync(~0u, t, 5);
    y[row++ * n + t] = __shfl_sync(~0u, t, 3, 8);
    y[row++ * n + t] = __reduce_add_sync(~0u, t);
    y[row++ * n + t] = __reduce_max_sync(~0u, t * 7 % 32);
    y[row++ * n + t] = __syncthreads_count(t % 3 == 0);
    y[row++ * n + t] = __syncthreads_and(t < 63);
    y[row++ * n + t] = __syncthreads_or(t == 63);
    int branch = 0;
    for (int i = 0; i < t % 5; ++i) branch += i;
    switch (t % 4) {
        case 0: branch += 100; break;
        case 1: branch += 300; break;
        case 2: branch += 700; break;
        default: branch += 1500;
    }
    y[row++ * n + t] = branch;
    if (t % 32 < 7) y[row * n + t] = __shfl_sync(0x7f, t, 6);  // some lanes only
    else y[row * n + t] = __activemask() != 0;
    sums[t] = total;
}
