"""Pools that tell the driver where each of their arrays begins and ends.

A pool gives away parts of what the driver gave to it, one beside the other. Here each part becomes memory of its own:
at another address, with nothing around it, and without values. The pool behaves as it does everywhere: the same part of
a block is at the same address when it is given away again, and what still works on it then destroys it.
"""

from __future__ import annotations

import ctypes
from typing import Any


def tell(cupy: Any, library: ctypes.CDLL) -> None:
    """Replace CuPy's class of pools, and its default pool."""
    library.emulated_piece.restype = ctypes.c_uint64
    library.emulated_piece.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
    library.emulated_release.argtypes = (ctypes.c_uint64,)
    memory = cupy.cuda.memory

    class Piece(memory.BaseMemory):  # type: ignore[misc, name-defined]
        """What a pool gave away, which goes back when nobody holds it."""

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
