"""The gradients of MaxPool and AveragePool."""
