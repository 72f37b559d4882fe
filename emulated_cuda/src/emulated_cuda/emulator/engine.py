"""Kernels made of PTX, and their launches on arrays of the host."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from . import build, ptx, sums
from .counters import FIELDS, Counters
from .memory import Array, TensorMap
from .operands import Kernel, Preset, UnsupportedPtx

PRESET_SOURCES = {"constant": 0, "special": 1, "shared": 2, "dynamic": 3, "global": 0}  # as in state.hpp
ASYNC_ORDERS = ("late", "at once", "random")
SCHEDULES = ("turns", "first", "last", "backwards", "changing")
_TEXT_BYTES = 2**16


class EmulatorError(AssertionError):
    """A kernel did what it must not do; the message lists all that was found."""


@dataclass(frozen=True, slots=True)
class Options:
    """How kernels run.

    Attributes
    ----------
    seed : of the scheduler that interleaves warps; 0: each runs as far as it can.
    late_async : asynchronous copies land as late as allowed, else at once; where it is False, async_order says nothing.
    async_order : "late", "at once" or "random": at any time between, by the seed.
    threads : of the host.
    check_shared, check_global : races and initialisation; bounds and alignment are always checked.
    counters : count instructions, bank conflicts and sectors.
    max_steps : instructions of one warp before the kernel counts as endless.
    schedule : "turns": warps take turns, as `seed` says. Otherwise the most important warp that can go on does, and
        copies land when none can. "first" and "last": warp `seed`, counted around, is more, or less, important than the
        others; "backwards": the last warp is the most important; "changing": by the seed, with three changes.
    sums : how tensor cores add; a number of `accumulation`.
    """

    seed: int = 0
    late_async: bool = True
    async_order: str = "late"
    threads: int = 1
    check_shared: bool = True
    check_global: bool = True
    counters: bool = False
    max_steps: int = 200_000_000
    schedule: str = "turns"
    sums: int = 0


class _Program(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_char_p) for name in ("name", "keys", "texts", "lines")),
        ("instructions", ctypes.c_int),
        *(
            (name, ctypes.c_void_p)
            for name in ("predicates", "operand_counts", "operands", "attribute_counts", "attributes")
        ),
        ("presets", ctypes.c_int),
        ("preset", ctypes.c_void_p),
        ("gaps", ctypes.c_int),
        ("gap", ctypes.c_void_p),
        *(
            (name, ctypes.c_int)
            for name in ("register_bytes", "shared_bytes", "dynamic_alignment", "local_bytes", "granule")
        ),
    )


class _Array(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("host", ctypes.c_void_p),
        ("state", ctypes.c_void_p),
        ("writable", ctypes.c_int),
        ("name", ctypes.c_char_p),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_uint32),
        ("arrays", ctypes.c_int),
        ("parameters", ctypes.c_char_p),
        ("parameter_bytes", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("host_threads", "check_shared", "check_global", "async_order")),
        ("seed", ctypes.c_uint64),
        ("max_steps", ctypes.c_uint64),
        ("schedule", ctypes.c_int64),
        ("sums", ctypes.c_int64),
        ("counters", ctypes.c_void_p),
        ("footprint", ctypes.c_void_p),
        ("chained", ctypes.c_int64),
    )


class Explored(ctypes.Structure):
    """What `Program.explore` has seen: different states, steps tried in them, how often the block came to its end."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("states", "steps", "ends", "complete"))


def _lines(texts: Iterable[str]) -> bytes:
    return "".join(text.replace("\n", " ") + "\n" for text in texts).encode()


def _shown(tokens: bytes) -> bytes:
    """Instructions as one writes them, of their tokens with a blank between any two."""
    for old, new in ((b" , ", b", "), (b"[ ", b"["), (b" ]", b"]"), (b"@ ", b"@"), (b"! ", b"!")):
        tokens = tokens.replace(old, new)
    return tokens


def _joined(lists: Iterable[Sequence[int]], dtype: Any) -> Any:
    return np.array([value for values in lists for value in values], dtype)


def _preset_row(preset: Preset, module: Module) -> tuple[int, int, int, int]:
    value = preset.value if isinstance(preset.value, int) else module.address_of(preset.value)
    signed = value - 2**64 if value >= 2**63 else value
    return preset.offset, preset.width, PRESET_SOURCES[preset.source], signed


class Program:
    """A kernel as the engine knows it."""

    def __init__(self, kernel: Kernel, module: Module) -> None:
        self.kernel = kernel
        self.module = module
        code = kernel.instructions
        self.keys, self.lines = [one.key for one in code], [one.line for one in code]
        arrays = {
            "predicates": _joined(((one.predicate, one.negated) for one in code), np.int32),
            "operand_counts": np.array([len(one.operands) for one in code], np.int32),
            "operands": _joined((one.operands for one in code), np.int32),
            "attribute_counts": np.array([len(one.attributes) for one in code], np.int32),
            "attributes": _joined((one.attributes for one in code), np.int64),
            "preset": _joined((_preset_row(preset, module) for preset in kernel.presets), np.int64),
            "gap": _joined(kernel.gaps, np.int32),
        }
        numbers = {
            name: getattr(kernel, name)
            for name in ("register_bytes", "shared_bytes", "dynamic_alignment", "local_bytes", "granule")
        }
        description = _Program(
            name=kernel.name.encode(),
            keys=_lines(self.keys),
            texts=_shown(_lines(one.text for one in code)),
            lines=_lines(self.lines),
            instructions=len(code),
            presets=len(kernel.presets),
            gaps=len(kernel.gaps),
            **{name: array.ctypes.data for name, array in arrays.items()},
            **numbers,
        )
        missing = ctypes.create_string_buffer(_TEXT_BYTES)
        handle = build.engine().emulator_load(ctypes.byref(description), missing, len(missing))
        if not handle:
            raise UnsupportedPtx(f"{kernel.name}: instructions not modelled: {missing.value.decode()}")
        self.handle = ctypes.c_void_p(handle)
        kernel.instructions = []  # which the engine has; kept of many kernels they slow the garbage collector down

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            build.engine().emulator_unload(self.handle)

    def launch(
        self,
        grid: Sequence[int],
        threads: Sequence[int],
        shared_bytes: int,
        parameters: bytes,
        arrays: Sequence[Array],
        options: Options,
    ) -> Counters | None:
        """Run all blocks; raise EmulatorError with what the checks found."""
        counts = np.zeros((len(self.keys), len(FIELDS)), np.uint64) if options.counters else None
        self._run("launch", (grid, threads, shared_bytes, parameters, arrays, options, counts))
        return None if counts is None else self.counters(counts)

    def _run(self, what: str, launch: tuple[Any, ...], *more: Any) -> None:
        description, kept = self._description(*launch)
        findings = ctypes.create_string_buffer(_TEXT_BYTES)
        run = getattr(build.engine(), f"emulator_{what}")
        if run(self.handle, ctypes.byref(description), *more, findings, len(findings)):
            raise EmulatorError(findings.value.decode(errors="replace"))
        del kept  # arrays that the description points to

    def _description(
        self,
        grid: Sequence[int],
        threads: Sequence[int],
        shared_bytes: int,
        parameters: bytes,
        arrays: Sequence[Array],
        options: Options,
        counts: npt.NDArray[np.uint64] | None,
    ) -> tuple[_Launch, Any]:
        kernel = self.kernel
        if kernel.max_threads and np.prod(threads) > kernel.max_threads:
            raise EmulatorError(
                f"{kernel.name}: a block of {threads} threads exceeds __launch_bounds__({kernel.max_threads})"
            )
        descriptions = (_Array * max(1, len(arrays)))(*map(_array_description, arrays))
        description = _Launch(
            grid=(ctypes.c_uint32 * 3)(*grid),
            threads=(ctypes.c_uint32 * 3)(*threads),
            dynamic_shared=shared_bytes,
            arrays=len(arrays),
            parameters=parameters,
            parameter_bytes=len(parameters),
            array=ctypes.addressof(descriptions),
            host_threads=options.threads,
            check_shared=options.check_shared,
            check_global=options.check_global,
            async_order=ASYNC_ORDERS.index(options.async_order if options.late_async else "at once"),
            seed=options.seed,
            max_steps=options.max_steps,
            schedule=SCHEDULES.index(options.schedule),
            sums=options.sums,
            counters=None if counts is None else counts.ctypes.data,
        )
        return description, descriptions

    def counters(self, counts: npt.NDArray[np.uint64]) -> Counters:
        """Return what the engine has counted of each instruction, without those that the emulator added."""
        counts[[key in (sums.CHECK, sums.COPY) for key in self.keys]] = 0
        return Counters(self.keys, self.lines, counts)

    def __call__(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int = 0,
        **options: Any,
    ) -> Counters | None:
        """Launch with one argument per parameter: Array, TensorMap, bytes, a NumPy value, an int or None."""
        return self.launch(_three(grid), _three(block), shared_bytes, *self._call(arguments), Options(**options))

    def explore(
        self,
        block: int | Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int = 0,
        limit: int = 10**6,
        **options: Any,
    ) -> Explored:
        """Run one block in every order of its events, as far as orders differ in the states that they lead to.

        Events are those of barriers, waits and arrivals, and copies that land. Raises EmulatorError with what the
        checks find in any order, and where results depend on it. After `limit` states it stops, not `complete`.
        """
        explored = Explored()
        launch = ((1, 1, 1), _three(block), shared_bytes, *self._call(arguments), Options(**options), None)
        self._run("explore", launch, ctypes.c_int64(limit), ctypes.byref(explored))
        return explored

    def _call(self, arguments: Sequence[Any]) -> tuple[bytes, list[Array]]:
        """Return the parameters' bytes, and all arrays that the kernel may touch."""
        parameters = bytearray(self.kernel.parameter_bytes)
        places = self.kernel.parameters.values()
        for argument, (offset, size) in zip(arguments, places, strict=True):
            parameters[offset : offset + size] = _argument_bytes(argument, size)
        seen = [argument.array if isinstance(argument, TensorMap) else argument for argument in arguments]
        arrays = {id(array): array for array in seen if isinstance(array, Array)}
        return bytes(parameters), [*arrays.values(), *self.module.arrays.values()]


def _three(sizes: int | Sequence[int]) -> Sequence[int]:
    return [*([sizes] if isinstance(sizes, int) else sizes), 1, 1][:3]


def _array_description(array: Array) -> _Array:
    state = None if array.states is None else array.states.ctypes.data
    return _Array(array.base, array.size, array.host, state, array.writable, array.name.encode())


def _argument_bytes(argument: Any, size: int) -> bytes:
    if isinstance(argument, Array):
        argument = argument.address
    if argument is None:
        argument = 0
    encoded = argument.to_bytes(size, "little", signed=argument < 0) if isinstance(argument, int) else bytes(argument)
    if len(encoded) != size:
        raise TypeError(f"an argument of {len(encoded)} bytes for a parameter of {size}")
    return encoded


class Module:
    """The kernels of one PTX text, by name."""

    def __init__(self, text: str) -> None:
        self.parsed = ptx.Module(text)
        self.arrays: dict[str, Array] = {}  # __device__ and __constant__ variables
        self.programs: dict[str, Program] = {}

    def global_array(self, name: str) -> Array:
        if name not in self.arrays:
            self.arrays[name] = Array(np.frombuffer(self.parsed.globals[name], np.uint8).copy(), name)
        return self.arrays[name]

    def address_of(self, name: str) -> int:
        return self.global_array(name).address

    def __getitem__(self, name: str) -> Program:
        if name not in self.programs:
            self.programs[name] = Program(self.parsed.kernels[name], self)
        return self.programs[name]


@lru_cache(maxsize=512)
def module(text: str) -> Module:
    """Return the module of a PTX text, parsed once per process."""
    return Module(text)
