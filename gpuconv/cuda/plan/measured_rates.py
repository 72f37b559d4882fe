"""Rates that were measured, by a device's name or its architecture: what ``benchmarks.learn --write`` writes."""

MEASURED: dict[str, dict[str, float]] = {}
