"""Operators that always run on the host: classical machine learning, sequences, maps and strings."""
