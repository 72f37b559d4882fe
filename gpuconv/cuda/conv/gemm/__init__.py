"""Families of kernels that multiply matrices, on tensor cores or by FFMA."""
