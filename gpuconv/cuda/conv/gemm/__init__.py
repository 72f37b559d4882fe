"""Implicit-GEMM kernel families, on tensor cores (mma.sync) or CUDA cores (FFMA)."""
