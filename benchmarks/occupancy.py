"""How many blocks of a kernel a multiprocessor runs at a time, by the tables of NVIDIA's programming guide."""

from __future__ import annotations

from gpuconv.cuda.plan.limits import nearest

_REGISTERS = 65536  # of a multiprocessor, a quarter for each of its four schedulers
_SCHEDULERS = 4
_WARP = 32
_REGISTER_UNIT = 256  # that a warp's are handed out in
_SHARED_UNIT = 128  # bytes, likewise for a block's shared memory
_RESERVED = 1024  # bytes of shared memory that the system takes for each block
_RESIDENT = {  # threads and blocks of a multiprocessor, by architecture
    80: (2048, 32),
    86: (1536, 16),
    87: (1536, 16),
    89: (1536, 24),
    90: (2048, 32),
    100: (2048, 32),
    120: (1536, 24),
}


def threads_per_multiprocessor(architecture: str) -> int:
    """Return how many threads a multiprocessor runs at a time at most."""
    return _resident(architecture)[0]


def blocks(architecture: str, threads: int, registers: int, shared_bytes: int) -> int:
    """Return the blocks that a multiprocessor runs at a time.

    Parameters
    ----------
    architecture : str
        As ``sm_90a``.
    threads : int
        Of a block.
    registers : int
        Of a thread.
    shared_bytes : int
        Of a block, static and dynamic.
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
