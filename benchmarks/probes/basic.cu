// One kernel per instruction that all architectures have, called through the headers of kernels_cu.
#include "base/numeric.cuh"
#include "base/ptx.cuh"
#include "base/tickets.cuh"

extern __shared__ __align__(1024) unsigned char memory[];

// ldmatrix by one warp: lane i passes the shared-memory offset of a 16-byte row and stores the four registers it gets.
template <class Load> __device__ __forceinline__ void load_rows(const uint4* rows, const int* places, unsigned* y, Load load)
{
    for (int i = threadIdx.x; i < 64; i += 32) reinterpret_cast<uint4*>(memory)[i] = rows[i];
    __syncwarp();
    unsigned values[4];
    load(values, shared_address(memory) + places[threadIdx.x]);
    for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = values[i];
}
extern "C" __global__ void matrices(const uint4* rows, const int* places, unsigned* y)
{
    load_rows(rows, places, y, [](unsigned (&v)[4], unsigned at) { load_matrices(v, at); });
}
extern "C" __global__ void transposed_matrices(const uint4* rows, const int* places, unsigned* y)
{
    load_rows(rows, places, y, [](unsigned (&v)[4], unsigned at) { load_transposed_matrices(v, at); });
}

// cp.async of SIZE bytes per thread: the first bytes[t] come from x, the rest must become zero. With `nowhere`, threads
// that copy 0 bytes pass an invalid source address.
template <int SIZE> __device__ __forceinline__ void copy_some(const unsigned char* x, const int* bytes, unsigned char* y, int nowhere)
{
    const int t = threadIdx.x, at = t * SIZE;
    for (int i = 0; i < SIZE; ++i) memory[at + i] = 0xa5;
    __syncthreads();
    const void* source = nowhere && bytes[t] == 0 ? reinterpret_cast<const void*>(16ull) : x + at;
    copy_async<SIZE>(shared_address(memory + at), source, bytes[t]);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    for (int i = 0; i < SIZE; ++i) y[at + i] = memory[at + i];
}
extern "C" __global__ void copies_4(const unsigned char* x, const int* n, unsigned char* y, int nowhere) { copy_some<4>(x, n, y, nowhere); }
extern "C" __global__ void copies_8(const unsigned char* x, const int* n, unsigned char* y, int nowhere) { copy_some<8>(x, n, y, nowhere); }
extern "C" __global__ void copies_16(const unsigned char* x, const int* n, unsigned char* y, int nowhere) { copy_some<16>(x, n, y, nowhere); }

// A pipeline of three stages, one cp.async group each: two are in flight while other threads read the third.
extern "C" __global__ void copies_in_groups(const uint4* x, uint4* y, int rounds)
{
    const int t = threadIdx.x, n = blockDim.x;
    auto start = [&](int round) {
        if (round < rounds) copy_async<16>(shared_address(memory) + (round % 3 * n + t) * 16, x + round * n + t, 16);
        copy_async_commit();
    };
    start(0);
    start(1);
    for (int round = 0; round < rounds; ++round) {
        copy_async_wait<1>();
        __syncthreads();
        start(round + 2);
        y[round * n + t] = reinterpret_cast<const uint4*>(memory)[round % 3 * n + (t + 37) % n];
    }
}

// Two warpgroups alternate through named barriers, as in wgmma kernels; y[turn] records the group and a shared counter.
extern "C" __global__ void turns(int* y, int count)
{
    __shared__ int counted;
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) counted = 0;
    __syncthreads();
    for (int turn = group; turn < count; turn += 2) {
        if (turn > 0) asm volatile("bar.sync %0, %1;" ::"r"(4 + group), "r"(256) : "memory");
        if (threadIdx.x % 128 == 0) {
            y[turn] = counted * 2 + group;
            counted += turn;
        }
        if (turn + 1 < count) asm volatile("bar.arrive %0, %1;" ::"r"(4 + (group ^ 1)), "r"(256) : "memory");
    }
}

// Rounding to TF32, and max.NaN of all pairs of numbers.
extern "C" __global__ void rounded(const float* x, unsigned* y) { y[threadIdx.x] = round_tf32(x[threadIdx.x]); }
extern "C" __global__ void larger(const float* x, float* y)
{
    for (int i = 0; i < blockDim.x; ++i) y[threadIdx.x * blockDim.x + i] = max_nan(x[threadIdx.x], x[i]);
}
extern "C" __global__ void larger_f16(const unsigned* x, unsigned* y)
{
    for (int i = 0; i < blockDim.x; ++i) y[threadIdx.x * blockDim.x + i] = max_nan_f16x2(x[threadIdx.x], x[i]);
}
extern "C" __global__ void larger_bf16(const unsigned* x, unsigned* y)
{
    for (int i = 0; i < blockDim.x; ++i) y[threadIdx.x * blockDim.x + i] = max_nan_bf16x2(x[threadIdx.x], x[i]);
}

// Loads and stores of every width: through shared memory, reading with other widths than were stored, and past L1.
extern "C" __global__ void moves(const unsigned* x, unsigned* y, double* z)
{
    const int t = threadIdx.x, n = blockDim.x;
    const unsigned at = shared_address(memory) + t * 80;
    const unsigned* mine = x + t * 8;
    store_shared(at, make_uint4(mine[0], mine[1], mine[2], mine[3]));
    store_shared(memory + t * 80 + 16, {__uint_as_float(mine[4]), __uint_as_float(mine[5]), __uint_as_float(mine[6]), __uint_as_float(mine[7])});
    store_shared(memory + t * 80 + 32, {static_cast<double>(mine[0]), static_cast<double>(mine[1])});
    store_shared(memory + t * 80 + 48, {__uint_as_float(mine[2]), __uint_as_float(mine[3])});
    store_word(at + 56, mine[0]);
    store_shared(at + 60, static_cast<unsigned short>(load_half(mine + 1)));
    store_shared(at + 62, static_cast<unsigned short>(load_half(reinterpret_cast<const unsigned short*>(mine) + 3)));
    store_shared(at + 64, __uint_as_float(mine[1]));
    store_word(at + 68, mine[2]);
    store_word(at + 72, mine[3]);
    store_word(at + 76, mine[4]);
    __syncthreads();
    const unsigned other = shared_address(memory) + (t + 1) % n * 80;
    for (int i = 0; i < 4; ++i) {
        const uint4 v = load_shared(other + i * 16);
        y[t * 20 + i * 4] = v.x, y[t * 20 + i * 4 + 1] = v.y, y[t * 20 + i * 4 + 2] = v.z, y[t * 20 + i * 4 + 3] = v.w;
    }
    for (int i = 16; i < 20; ++i) y[t * 20 + i] = load_word(other + i * 4);
    const double pair[2] = {mine[0] + 0.5, mine[1] + 0.25};
    store_l2(z + t * 2, pair);
}

// Warp shuffles (shfl), and byte permutations (prmt).
extern "C" __global__ void lanes(const unsigned* x, unsigned* y, double* z)
{
    const unsigned t = threadIdx.x, mine = x[t];
    const double wide = mine * 1.5;
    y[t] = lane_before(mine);
    y[32 + t] = lane_after(mine);
    y[64 + t] = __shfl_xor_sync(0xffffffff, mine, 4);
    y[96 + t] = __shfl_sync(0xffffffff, mine, (t * 7 + 3) % 32);
    y[128 + t] = shuffle_down(mine, 8);
    y[160 + t] = __byte_perm(mine, x[t ^ 1], t % 2 ? 0x3276 : 0x5410);
    y[192 + t] = __byte_perm(mine, x[t ^ 1], 0x7632);
    y[224 + t] = __byte_perm(mine, x[t ^ 1], 0x5432);
    z[t] = lane_before(wide);
    z[32 + t] = lane_after(wide);
}

// Each block stores partial sums in global memory; the last block to arrive adds all of them in order, loading past L1.
extern "C" __global__ void tickets(float* parts, int* ticket, float* y)
{
    float part[4];
    for (int i = 0; i < 4; ++i) part[i] = static_cast<float>((blockIdx.x * 31 + threadIdx.x * 4 + i) % 1021);
    store_l2(parts + (blockIdx.x * blockDim.x + threadIdx.x) * 4, part);
    if (!last_to_arrive(ticket, gridDim.x)) return;
    float sum[4] = {};
    for (int block = 0; block < gridDim.x; ++block) {
        load_l2(parts + (block * blockDim.x + threadIdx.x) * 4, part);
        for (int i = 0; i < 4; ++i) sum[i] += part[i];
    }
    for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = sum[i];
}

// atomicMax over all threads, of 32 and 64 bits.
extern "C" __global__ void largest(const int* x, int* y, long long* z)
{
    const int mine = x[blockIdx.x * blockDim.x + threadIdx.x];
    atomicMax(y + threadIdx.x % 8, mine);
    atomicMax(z + threadIdx.x % 8, mine * 4294967311ll);
}

// The address of dynamic shared memory modulo 1024, the alignment that swizzled tiles need.
extern "C" __global__ void beginning(unsigned* y)
{
    y[blockIdx.x] = shared_address(memory) & 1023;
}
