"""Auxiliary launches that several operators share: reductions, transpositions and copies."""
