"""Compilation: from a kernel variant to a loadable cubin or PTX, with caches. Knows nothing about convolution."""
