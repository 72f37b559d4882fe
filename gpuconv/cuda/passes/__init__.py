"""Passes over arrays that several operators need: sums and copies."""
