"""MaxPool, AveragePool, their gradients and MaxUnpool on NumPy arrays: separable reductions, one axis at a time."""
