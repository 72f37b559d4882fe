"""MaxPool, AveragePool and MaxUnpool: the normalised problem, and the kernel families that compute it."""
