"""What a test may ask of the emulated driver beside CUDA's functions: settings, launches, the state of memory."""

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
    """A launch as the driver was asked for it; the number of its stream, 0 for the null stream.

    A launch that is ``chained`` may overlap the kernel before it, by programmatic stream serialization.
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
        """What it cost, once it has run; None where that was not asked for."""
        return None if self.counts is None else self.program.counters(self.counts)


@cache
def driver() -> ctypes.CDLL:
    """Return the driver that is installed."""
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
    """Change fields of `Settings` for a while; nothing may be left to run when it begins and ends."""
    (before,) = in_use
    configure_again(driver(), replace(before, **fields))
    try:
        yield
    finally:
        configure_again(driver(), before)


@contextmanager
def watched(see: Callable[[Launch], None], counters: bool = False) -> Iterator[None]:
    """Call a function with every launch before it runs; an inner one takes the place of an outer one."""
    launches: list[Launch] = []  # their counts must live until they have run

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
    """Set what is known of bytes: each is one of NOTHING, UNWRITTEN, WRITTEN and READ_ONLY of emulator.memory."""
    assert states.flags.c_contiguous
    driver().emulated_mark(address, states.ctypes.data, states.size)


def marks(address: int, size: int) -> npt.NDArray[np.uint8] | None:
    """Return what is known of bytes; None where that is not kept."""
    states = np.empty(size, np.uint8)
    return states if driver().emulated_marks(address, states.ctypes.data, size) else None


def name(address: int, text: str) -> None:
    """Let findings call the memory that holds an address by a name."""
    driver().emulated_name(address, text.encode())


def findings() -> str:
    """Return what was found last in a kernel, unless it was returned before; "" where nothing was."""
    found: bytes = driver().emulated_findings()
    return found.decode(errors="replace")
