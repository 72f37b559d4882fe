"""What must hold of a model before anything runs, and what of it may be put right without changing a result."""
