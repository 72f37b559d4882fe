// What comes before Indices are used: clearing memory that is claimed by them, and looking for one out of range.
#include "base/device.cuh"

struct ClearParams {
    int* words;
    long long count;
};

DEVICE void clear(const ClearParams& p) {
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.count;
         i += static_cast<long long>(gridDim.x) * blockDim.x)
        p.words[i] = 0;
}

template <int NDIM> struct CheckIndicesParams {
    const long long* indices;
    long long* found; // elements left from the first one on that is out of range; 0 where none is
    long long elements, limit;
    long long extent[NDIM], stride[NDIM];
};

// Indices from -1 to below the limit are in range. A thread tells of the first that it finds, when it has looked at
// all: so that its loads need not wait for one another.
template <int NDIM> DEVICE void check_indices(const CheckIndicesParams<NDIM>& p) {
    long long left = 0;
#pragma unroll 4
    for (long long element = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; element < p.elements;
         element += static_cast<long long>(gridDim.x) * blockDim.x) {
        long long rest = element, offset = 0;
#pragma unroll
        for (int axis = NDIM - 1; axis > 0; --axis) {
            offset += rest % p.extent[axis] * p.stride[axis];
            rest /= p.extent[axis];
        }
        const long long index = p.indices[offset + rest * p.stride[0]];
        if ((index < -1 || index >= p.limit) && left == 0) left = p.elements - element;
    }
    if (left > 0) atomicMax(p.found, left);
}
