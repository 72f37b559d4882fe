// Complex Conv and ConvTranspose as real ones with one more axis, of the two parts.
//
// With (re, im) of x along an axis of extent 2, y = x * w is a convolution along that axis too:
//
//     y[o] = sum over t = 0, 1, 2 of x[o + t - 1] * v[t],   v = (im w, re w, -im w)
//
// and ConvTranspose, whose taps go the other way, has v = (-im w, re w, im w). Here are the kernels around it: one that
// makes v of w, and one that adds a bias, whose parts a real kernel would not tell apart, and a residual after it.
#include "base/geometry.cuh"
#include "base/numeric.cuh"

template <class Index, int NDIM> struct ExpandComplexParams {
    const void* w;
    void* expanded; // element, v
    Index elements;
    Divider<Index> extent[NDIM]; // of w
    Index w_stride[NDIM];
    Index transposed;
};

template <class Acc, class Index, int NDIM> DEVICE void expand_complex(const ExpandComplexParams<Index, NDIM>& p) {
    const Index element = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (element >= p.elements) return;
    Index at[NDIM];
    unravel(element, p.extent, at);
    const Complex<Acc> w = static_cast<const Complex<Acc>*>(p.w)[dot(at, p.w_stride)];
    Acc* v = static_cast<Acc*>(p.expanded) + 3 * element;
    v[0] = p.transposed ? -w.im : w.im;
    v[1] = w.re;
    v[2] = p.transposed ? w.im : -w.im;
}

template <class Index, int NDIM> struct AddToComplexParams {
    const void* b;        // or null
    const void* residual; // or null
    void* y;
    Index elements; // of y
    Index b_stride;
    Index y_channel, y_stride[NDIM];
    Index residual_channel, residual_stride[NDIM];
    Divider<Index> channels, extent[NDIM]; // of y's other axes
};

template <class Acc, class Index, int NDIM> DEVICE void add_to_complex(const AddToComplexParams<Index, NDIM>& p) {
    const Index element = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (element >= p.elements) return;
    Index channel, at[NDIM];
    unravel(p.channels.split(element, channel), p.extent, at);
    const Index its = dot(at, p.residual_stride, channel * p.residual_channel);
    Complex<Acc>& y = static_cast<Complex<Acc>*>(p.y)[dot(at, p.y_stride, channel * p.y_channel)];
    Complex<Acc> sum = y;
    if (p.b != nullptr) sum += static_cast<const Complex<Acc>*>(p.b)[channel * p.b_stride];
    if (p.residual != nullptr) sum += static_cast<const Complex<Acc>*>(p.residual)[its];
    y = sum;
}
