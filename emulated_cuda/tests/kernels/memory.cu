// Loads and stores of every width, state space and vector length; ldmatrix and mma.
#include "ptx.cuh"

struct Inner {
    unsigned divisor, multiplier, shift;
};
struct Parameters {
    const signed char* bytes;
    long long* y;
    int size[3];
    Inner divider[2];
    double scale;
    short tail[3];
};

// A struct parameter, read member by member; `index` is known only at run time, so the arrays in it are indexed
// indirectly.
extern "C" __global__ void reads_a_struct(const __grid_constant__ Parameters p)
{
    const int index = p.bytes[threadIdx.x];
    p.y[threadIdx.x] = p.size[index] + p.divider[index % 2].multiplier + p.tail[index] + (long long)p.scale;
}

// An array in local memory, because its indices are known only at run time.
extern "C" __global__ void uses_local_memory(const int* x, int* y)
{
    int values[16];
#pragma unroll 1
    for (int i = 0; i < 16; ++i) values[(i * 5 + x[0]) % 16] = i * i;
    y[threadIdx.x] = values[threadIdx.x % 16];
}

// Copies every byte from global to shared memory and back, as elements of type T, in reverse order of the elements.
template <class T> __device__ __forceinline__ void pass_on(const unsigned char* x, unsigned char* y, int count)
{
    extern __shared__ __align__(16) unsigned char buffer[];
    T* shared = reinterpret_cast<T*>(buffer);
    for (int i = threadIdx.x; i < count / int(sizeof(T)); i += blockDim.x) shared[i] = reinterpret_cast<const T*>(x)[i];
    __syncthreads();
    const int last = count / int(sizeof(T)) - 1;
    for (int i = threadIdx.x; i <= last; i += blockDim.x) reinterpret_cast<T*>(y)[last - i] = shared[i];
}
#define PASS_ON(NAME, T) extern "C" __global__ void NAME(const unsigned char* x, unsigned char* y, int count) { pass_on<T>(x, y, count); }
PASS_ON(by_1, unsigned char)
PASS_ON(by_2, unsigned short)
PASS_ON(by_4, unsigned)
PASS_ON(by_8, unsigned long long)
PASS_ON(by_2x4, int2)
PASS_ON(by_4x4, int4)
PASS_ON(by_2x8, longlong2)

// Loads of narrow types into wide registers, with and without sign extension.
extern "C" __global__ void widens(const signed char* a, const unsigned char* b, const short* c, const unsigned short* d, long long* y)
{
    y[threadIdx.x] = a[threadIdx.x] + 1000ll * b[threadIdx.x] + 1000000ll * c[threadIdx.x] + 1000000000000ll * d[threadIdx.x];
}

// Lane l copies SIZE bytes by cp.async: given[l] bytes from global memory, then zeros. With given[l] = 0, the address
// is invalid.
template <int SIZE> __device__ __forceinline__ void copy_part(const unsigned char* x, const int* given, unsigned char* y)
{
    __shared__ __align__(16) unsigned char buffer[32 * SIZE];
    const int lane = threadIdx.x, bytes = given[lane];
    const unsigned char* source = bytes ? x + lane * SIZE : x + (1 << 24);
    if (SIZE == 16) cp_async16(smem_addr(buffer + lane * SIZE), source, bytes);
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" :: "r"(smem_addr(buffer + lane * SIZE)), "l"(source), "n"(SIZE), "r"(bytes));
    asm volatile("cp.async.wait_all;" ::: "memory");
    for (int i = 0; i < SIZE; ++i) y[lane * SIZE + i] = buffer[lane * SIZE + i];
}
#define COPY_PART(NAME, SIZE) extern "C" __global__ void NAME(const unsigned char* x, const int* given, unsigned char* y) { copy_part<SIZE>(x, given, y); }
COPY_PART(copy_4, 4)
COPY_PART(copy_8, 8)
COPY_PART(copy_16, 16)

__constant__ float table[4] = {1, 2, 3, 4};
__device__ int counter = 7;
extern "C" __global__ void reads_variables(float* y) { y[threadIdx.x] = table[threadIdx.x] * counter; }

extern "C" __global__ void matrices(const unsigned short* x, unsigned short* y)  // four 8 x 8, then with .trans
{
    __shared__ __align__(16) unsigned short tile[256];
    for (int i = threadIdx.x; i < 256; i += 32) tile[i] = x[i];
    __syncwarp();
    unsigned r[4];
    const unsigned row = smem_addr(tile + threadIdx.x * 8);
    ldmatrix_x4(r, row);
    for (int k = 0; k < 4; ++k) reinterpret_cast<unsigned*>(y)[32 * k + threadIdx.x] = r[k];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
    for (int k = 0; k < 4; ++k) reinterpret_cast<unsigned*>(y)[128 + 32 * k + threadIdx.x] = r[k];
}

extern "C" __global__ void multiplies(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d)  // 16 x 16 times 16 x 8, b by columns
{
    const int row = threadIdx.x / 4, k = threadIdx.x % 4 * 2;
    const auto pair = [](const __nv_bfloat16* p) { return *reinterpret_cast<const unsigned*>(p); };
    const unsigned rows[4] = {pair(a + row * 16 + k), pair(a + (row + 8) * 16 + k), pair(a + row * 16 + k + 8), pair(a + (row + 8) * 16 + k + 8)};
    float sums[4] = {};
    mma_bf16(sums, rows, pair(b + row * 16 + k), pair(b + row * 16 + k + 8));
    for (int i = 0; i < 4; ++i) d[(row + i / 2 * 8) * 8 + k + i % 2] = sums[i];
}
