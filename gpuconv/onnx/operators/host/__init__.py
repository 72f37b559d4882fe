"""Operators that the host computes on every device: of classical machine learning, of sequences and of text."""
