"""Measured rates by device name or architecture, written by ``benchmarks.learn --write``."""

MEASURED: dict[str, dict[str, float]] = {}
