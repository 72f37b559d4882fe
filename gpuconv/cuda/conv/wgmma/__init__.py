"""The family of kernels on Hopper's tensor cores, fed by TMA."""
