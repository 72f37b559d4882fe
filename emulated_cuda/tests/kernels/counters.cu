// Accesses whose shared-memory wavefronts and global sectors are known by hand; one block of 32 threads.
extern "C" __global__ void column_of_32(float* y)  // all 32 lanes in one bank
{
    __shared__ float tile[32 * 32];
    tile[threadIdx.x * 32] = threadIdx.x;
    __syncwarp();
    y[threadIdx.x] = tile[threadIdx.x * 32];
}

extern "C" __global__ void column_of_33(float* y)  // one lane in each bank
{
    __shared__ float tile[32 * 33];
    tile[threadIdx.x * 33] = threadIdx.x;
    __syncwarp();
    y[threadIdx.x] = tile[threadIdx.x * 33];
}

extern "C" __global__ void vectors(float4* y)  // 16 bytes per lane: four passes of 8 lanes
{
    __shared__ float4 tile[32];
    tile[threadIdx.x] = make_float4(1, 2, 3, 4);
    __syncwarp();
    y[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void strided(const float* x, float* y)  // each lane reads a different 32-byte sector
{
    const float value = x[threadIdx.x * 8];
    y[threadIdx.x] = value;
}
