"""Conv and ConvTranspose: what they come down to, and the families of kernels that make them."""
