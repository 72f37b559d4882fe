"""Pooling on NumPy arrays."""
