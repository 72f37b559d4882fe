"""Theoretical occupancy: how many blocks of a kernel one multiprocessor runs at a time.

The limits are those of NVIDIA's CUDA C++ Programming Guide.
"""

from __future__ import annotations

from gpuconv.cuda.plan.limits import nearest

_REGISTERS = 65536  # 32-bit registers per multiprocessor, a quarter for each of its four schedulers
_SCHEDULERS = 4
_WARP = 32
_REGISTER_UNIT = 256  # allocation unit of a warp's registers
_SHARED_UNIT = 128  # bytes; allocation unit of a block's shared memory
_RESERVED = 1024  # bytes of shared memory that the system reserves per block
_RESIDENT = {  # most resident threads and blocks per multiprocessor, by compute capability
    80: (2048, 32),
    86: (1536, 16),
    87: (1536, 16),
    89: (1536, 24),
    90: (2048, 32),
    100: (2048, 32),
    120: (1536, 24),
}


def threads_per_multiprocessor(architecture: str) -> int:
    """Return the most threads that are resident on one multiprocessor."""
    return _resident(architecture)[0]


def blocks(architecture: str, threads: int, registers: int, shared_bytes: int) -> int:
    """Return how many blocks one multiprocessor runs at a time.

    Parameters
    ----------
    architecture : str
        Such as ``sm_90a``.
    threads : int
        Threads per block.
    registers : int
        Registers per thread.
    shared_bytes : int
        Shared memory per block, static and dynamic.
    """
    most_threads, most_blocks = _resident(architecture)
    warps = -(-threads // _WARP)
    of_a_warp = _rounded(registers * _WARP, _REGISTER_UNIT)
    by_registers = _REGISTERS // _SCHEDULERS // of_a_warp * _SCHEDULERS // warps
    shared = _rounded(shared_bytes, _SHARED_UNIT) + _RESERVED
    by_shared = nearest(architecture).limits.shared_bytes_per_multiprocessor // shared
    return min(most_blocks, most_threads // (warps * _WARP), by_registers, by_shared)


def _resident(architecture: str) -> tuple[int, int]:
    number = int("".join(filter(str.isdigit, nearest(architecture).limits.architecture)))
    return _RESIDENT[number]


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit
