"""Conv and ConvTranspose: the normalised problem, and the kernel families that compute it."""
