"""How fast gpuconv is on the layers of known networks: ``python -m benchmarks --help``."""
