"""Direct convolution: kernels that sum over taps without a matrix product, for few channels or few filters."""
