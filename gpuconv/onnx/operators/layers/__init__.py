"""Operators that make whole layers and grids of arrays of either library: attention, losses, matrices and windows."""
