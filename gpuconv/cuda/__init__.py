"""The CUDA side. So far: finding a device and moving arrays; the kernels follow."""
