"""Functions for tests to control and observe the emulated device, beyond what the CUDA API offers.

They change settings for a while, watch launches with their parameters and counters, and set or read the state of each
byte of device memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .emulator.counters import FIELDS, Counters
from .emulator.engine import Program
from .modules import configure_again, in_use, programs


class _Launched(ctypes.Structure):
    """The ctypes counterpart of struct Launched in device.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("program", ctypes.c_void_p),
        ("sizes", ctypes.POINTER(ctypes.c_uint32)),
        ("shared_bytes", ctypes.c_uint32),
        ("parameters", ctypes.c_void_p),
        ("parameter_bytes", ctypes.c_int64),
        ("device", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
        ("chained", ctypes.c_int64),
    )


_WATCH = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Launched))


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel launch as the driver received it.

    Attributes
    ----------
    name : str
        Name of the kernel.
    device, stream : int
        Number of the device, and handle of the stream (0: the default stream).
    grid, block : tuple of three int
    shared_bytes : int
        Bytes of dynamic shared memory per block.
    parameters : bytes
        The packed parameters.
    program : Program
        The kernel, in the emulator.
    counts : array or None
        Counters per instruction, filled in when the kernel runs; None if they were not requested.
    chained : bool
        Whether it may overlap the kernel before it (programmatic stream serialization).
    """

    name: str
    device: int
    stream: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: bytes
    program: Program
    counts: npt.NDArray[np.uint64] | None
    chained: bool = False

    @property
    def counters(self) -> Counters | None:
        """The counters of the kernel after it has run; None if they were not requested."""
        return None if self.counts is None else self.program.counters(self.counts)


@cache
def driver() -> ctypes.CDLL:
    """Return the installed emulated driver."""
    library = ctypes.CDLL("libcuda.so.1")
    for name in ("emulated_mark", "emulated_marks"):
        getattr(library, name).argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)
    library.emulated_name.argtypes = (ctypes.c_uint64, ctypes.c_char_p)
    library.emulated_findings.restype = ctypes.c_char_p
    library.emulated_watch.argtypes = (ctypes.c_void_p,)
    return library


_watches: list[Any] = [None]


@contextmanager
def changed(**fields: Any) -> Iterator[None]:
    """Change fields of `Settings` within a ``with`` block. No work may be pending when it begins and when it ends."""
    (before,) = in_use
    configure_again(driver(), replace(before, **fields))
    try:
        yield
    finally:
        configure_again(driver(), before)


@contextmanager
def watched(see: Callable[[Launch], None], counters: bool = False) -> Iterator[None]:
    """Call `see` with every launch before it runs, within a ``with`` block; inner blocks replace outer ones.

    With `counters`, instructions and memory traffic are counted (`Launch.counters`).
    """
    launches: list[Launch] = []  # keeps the arrays of counters alive until the kernels have run

    @_WATCH
    def watch(pointer: Any) -> int | None:
        launches.append(_launch(pointer[0], counters))
        see(launches[-1])
        counts = launches[-1].counts
        return None if counts is None else int(counts.ctypes.data)

    _watches.append(watch)
    driver().emulated_watch(ctypes.cast(watch, ctypes.c_void_p))
    try:
        yield
    finally:
        _watches.pop()
        driver().emulated_watch(_watches[-1] and ctypes.cast(_watches[-1], ctypes.c_void_p))


def _launch(given: Any, counters: bool) -> Launch:
    """Return the launch that the driver describes."""
    program = programs[given.program]
    return Launch(
        name=given.name.decode(),
        device=given.device,
        stream=given.stream or 0,
        grid=tuple(given.sizes[:3]),
        block=tuple(given.sizes[3:6]),
        shared_bytes=given.shared_bytes,
        parameters=ctypes.string_at(given.parameters, given.parameter_bytes),
        program=program,
        counts=np.zeros((len(program.keys), len(FIELDS)), np.uint64) if counters else None,
        chained=bool(given.chained),
    )


def mark(address: int, states: npt.NDArray[np.uint8]) -> None:
    """Set the state of each byte from an address on: NOTHING, UNWRITTEN, WRITTEN or READ_ONLY of `emulator.memory`."""
    assert states.flags.c_contiguous
    driver().emulated_mark(address, states.ctypes.data, states.size)


def marks(address: int, size: int) -> npt.NDArray[np.uint8] | None:
    """Return the states of `size` bytes from an address on (see `mark`); None if they are not tracked."""
    states = np.empty(size, np.uint8)
    return states if driver().emulated_marks(address, states.ctypes.data, size) else None


def name(address: int, text: str) -> None:
    """Set the name by which messages call the array that contains an address."""
    driver().emulated_name(address, text.encode())


def findings() -> str:
    """Return the text of the last failed check of a kernel and clear it; "" if there is none."""
    found: bytes = driver().emulated_findings()
    return found.decode(errors="replace")
