// Helpers around Indices: one kernel clears the claims for pool/unpool.cu, the other validates Indices that a caller
// passes. It looks for one that no forward MaxPool of these parameters could have returned. One thread checks several
// elements; bound by memory.
#include "base/geometry.cuh"

struct ClearParams {
    int* words;
    long long count;
};

DEVICE void clear(const ClearParams& p) {
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.count;
         i += static_cast<long long>(gridDim.x) * blockDim.x)
        p.words[i] = 0;
}

// Window q of an axis may name the coordinates q * stride - pad + i, for multiples i of the dilation in [0, reach).
template <class Index, int NDIM> struct CheckIndicesParams {
    const long long* indices;
    long long* found;     // elements from the first impossible Index to the end; 0 if there is none
    long long plane;      // elements per plane
    long long plane_step; // Index distance between planes
    Index elements;
    Index indices_batch, indices_channel, indices_stride[NDIM];
    Index stride[NDIM], pad[NDIM], reach[NDIM];
    Divider<Index> channels, windows[NDIM], extent[NDIM], dilation[NDIM];
    Index column_major; // Indices count the first axis fastest
};

// Whether window q can name this coordinate along an axis.
template <class Index, int NDIM>
DEVICE bool possible(const CheckIndicesParams<Index, NDIM>& p, int axis, Index q, Index coordinate) {
    const Index offset = coordinate - (q * p.stride[axis] - p.pad[axis]);
    Index between = 0;
    if (inside(offset, p.reach[axis])) p.dilation[axis].split(offset, between);
    return inside(offset, p.reach[axis]) && between == 0;
}

// Each thread checks all its elements before it reports, so that its loads do not wait for each other. The first
// impossible Index of the tensor wins (atomicMax of the remaining count).
template <class Index, int NDIM> DEVICE void check_indices(const CheckIndicesParams<Index, NDIM>& p) {
    long long left = 0;
#pragma unroll 4
    for (Index element = Index(blockIdx.x) * blockDim.x + threadIdx.x; element < p.elements;
         element += Index(gridDim.x) * blockDim.x) {
        Index q[NDIM], channel;
        const Index plane = unravel(element, p.windows, q), image = p.channels.split(plane, channel);
        const long long index =
            p.indices[dot(q, p.indices_stride, image * p.indices_batch + channel * p.indices_channel)];
        const long long in_plane = index - plane * p.plane_step;
        bool named = inside(in_plane, p.plane);
        Index rest = named ? Index(in_plane) : Index(0), coordinate;
#pragma unroll
        for (int i = 0; i < NDIM; ++i) {
            if (p.column_major) {
                rest = p.extent[i].split(rest, coordinate);
                named &= possible(p, i, q[i], coordinate);
            } else {
                rest = p.extent[NDIM - 1 - i].split(rest, coordinate);
                named &= possible(p, NDIM - 1 - i, q[NDIM - 1 - i], coordinate);
            }
        }
        if (!named && index != -1 && left == 0) left = p.elements - element;
    }
    if (left > 0) atomicMax(p.found, left);
}
