"""MaxPool: what it comes down to, and the families of kernels that make it."""
