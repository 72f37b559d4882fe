"""The command ``gpuconv``."""
