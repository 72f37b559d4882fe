"""Executes plans: allocation, loading kernels, launches. The only package that knows CuPy and the CUDA driver."""
