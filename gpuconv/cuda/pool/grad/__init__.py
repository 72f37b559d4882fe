"""Gradients of MaxPool and AveragePool with respect to x, without atomics."""
