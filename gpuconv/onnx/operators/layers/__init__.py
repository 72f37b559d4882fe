"""Whole-layer operators on NumPy and CuPy arrays: attention, losses, and generated matrices and windows."""
