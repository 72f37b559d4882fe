"""Families of kernels that sum over taps without a matrix product."""
