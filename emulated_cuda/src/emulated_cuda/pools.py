"""A CuPy memory pool that gives each array exact bounds.

A memory pool hands out parts of larger blocks, so an access beyond an array hits its neighbour in the same block. Here
each part gets an address range of its own in the emulated driver, with unmapped space around it and without initial
values. Otherwise the pool works as usual: if the same part is handed out again, it has the same address, and work that
still uses its former contents overwrites the new ones.
"""

from __future__ import annotations

import ctypes
from typing import Any


def tell(cupy: Any, library: ctypes.CDLL) -> None:
    """Replace CuPy's class MemoryPool, and its default pool."""
    library.emulated_piece.restype = ctypes.c_uint64
    library.emulated_piece.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
    library.emulated_release.argtypes = (ctypes.c_uint64,)
    memory = cupy.cuda.memory

    class Piece(memory.BaseMemory):  # type: ignore[misc, name-defined]
        """Memory of one array; it returns to the pool when nobody refers to it."""

        def __init__(self, pooled: Any, size: int) -> None:
            self.pooled = pooled
            self.ptr = library.emulated_piece(pooled.ptr, size)
            self.size = pooled.size
            self.device_id = pooled.device_id

        def __del__(self) -> None:
            library.emulated_release(self.ptr)

    class MemoryPool(memory.MemoryPool):  # type: ignore[misc, name-defined]
        __doc__ = memory.MemoryPool.__doc__

        def malloc(self, size: int) -> Any:
            given = super().malloc(size)
            return memory.MemoryPointer(Piece(given.mem, size), 0) if size else given

    cupy.cuda.MemoryPool = memory.MemoryPool = MemoryPool
    cupy._default_memory_pool = MemoryPool()
    cupy.cuda.set_allocator(cupy._default_memory_pool.malloc)
