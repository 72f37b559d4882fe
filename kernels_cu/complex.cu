// Complex Conv and ConvTranspose, computed by the real kernels with one more spatial axis: the real and imaginary
// parts. These two elementwise kernels surround that convolution. One expands the weights to three taps along the new
// axis; the other adds bias and residual afterwards. One thread handles one element; both are bound by memory.
//
// With (re, im) of x along an axis of extent 2 and padding 1, the complex product is a correlation along that axis:
//
//     y[o] = sum over t = 0, 1, 2 of x[o + t - 1] * v[t],   v = (im w, re w, -im w)
//
// ConvTranspose applies taps in the opposite order, so v = (-im w, re w, im w). The real kernels cannot add the bias,
// since its two parts belong to the same channel.
#include "base/geometry.cuh"
#include "base/numeric.cuh"

// Parameters of the expansion. Strides count elements.
template <class Index, int NDIM> struct ExpandComplexParams {
    const void* w;
    void* expanded; // (elements of w, 3 taps)
    Index elements;
    Divider<Index> extent[NDIM]; // extents of w
    Index w_stride[NDIM];
    Index transposed; // 1 for ConvTranspose
};

// Kernel before the convolution: one thread expands one element of w to its three taps.
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

// Parameters of the addition. Strides count elements; b is complex.
template <class Index, int NDIM> struct AddToComplexParams {
    const void* b;        // shape (M,), or null
    const void* residual; // shape of y, or null
    void* y;
    Index elements; // elements of y
    Index b_stride;
    Index y_channel, y_stride[NDIM];
    Index residual_channel, residual_stride[NDIM];
    Divider<Index> channels, extent[NDIM]; // extents of y's spatial axes
};

// Kernel after the convolution: one thread adds bias and residual to one element of y, in place.
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
