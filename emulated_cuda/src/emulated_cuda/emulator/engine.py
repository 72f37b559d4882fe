"""Load kernels from PTX text and launch them in the emulator on host arrays, without CuPy or a CUDA driver.

`module` parses PTX; ``module(text)["name"]`` is a `Program`, which is called with a grid, a block and arguments.
The interpreter is C++ (engine.cpp); this module passes it decoded instructions through ctypes. The emulated driver uses
the same programs; tests of single kernels use this module directly.
"""

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

PRESET_SOURCES = {"constant": 0, "special": 1, "shared": 2, "dynamic": 3, "global": 0}  # Preset::Source in state.hpp
ASYNC_ORDERS = ("late", "at once", "random")  # Options::Order in state.hpp
SCHEDULES = ("turns", "first", "last", "backwards", "changing")  # Options::Schedule in state.hpp
_TEXT_BYTES = 2**16  # buffer for messages of the engine


class EmulatorError(AssertionError):
    """A kernel failed a check: out of bounds, a race, a deadlock and the like; the message lists all findings."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the emulator runs a kernel: scheduling, asynchronous copies, checks and counters.

    Attributes
    ----------
    seed : int
        Seed of the scheduler. 0: blocks run in order, and each warp runs until it must wait. Otherwise warps are
        interleaved and blocks shuffled at random, reproducibly.
    late_async : bool
        If False, asynchronous copies land at once and `async_order` is ignored.
    async_order : str
        When asynchronous copies land: "late" is as late as the program allows (when they are waited for), "at once" is
        when they are issued, "random" is at any time between, chosen by the seed.
    threads : int
        Host threads that run the blocks of a grid.
    check_shared, check_global : bool
        Whether to report races and uninitialised reads in shared and global memory. Bounds and alignment are always
        checked.
    counters : bool
        Whether to count instructions, shared-memory wavefronts and global sectors.
    max_steps : int
        Instructions that one warp may execute before the kernel fails as an endless loop.
    schedule : str
        Which warp of a block runs next. "turns": warps take turns, and each runs until it waits or, with a seed, for a
        random number of instructions. The others are priority schedules: the runnable warp of highest priority runs.
        "first", "last": warp ``seed % warps`` has the highest or the lowest priority.
        "backwards": later warps have priority. "changing": random priorities, with three random demotions.
    sums : int
        How tensor cores accumulate: a code from the module `accumulation`.
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
    """The ctypes counterpart of struct ProgramDescription in interface.hpp."""

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
    """The ctypes counterpart of struct ArrayDescription in interface.hpp."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("host", ctypes.c_void_p),
        ("state", ctypes.c_void_p),
        ("writable", ctypes.c_int),
        ("name", ctypes.c_char_p),
    )


class _Launch(ctypes.Structure):
    """The ctypes counterpart of struct LaunchDescription in interface.hpp."""

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
    """Result of `Program.explore`.

    `states` is the number of different states, `steps` the number of events tried in them, `ends` how often the block
    finished, and `complete` is 1 if every reachable state was explored.
    """

    _fields_ = tuple((name, ctypes.c_int64) for name in ("states", "steps", "ends", "complete"))


def _lines(texts: Iterable[str]) -> bytes:
    """Join texts into one line each, as the engine's C interface takes them."""
    return "".join(text.replace("\n", " ") + "\n" for text in texts).encode()


def _shown(tokens: bytes) -> bytes:
    """Format tokens that are separated by blanks as PTX is usually written: ``[ %r1 ] , 0`` becomes ``[%r1], 0``."""
    for old, new in ((b" , ", b", "), (b"[ ", b"["), (b" ]", b"]"), (b"@ ", b"@"), (b"! ", b"!")):
        tokens = tokens.replace(old, new)
    return tokens


def _joined(lists: Iterable[Sequence[int]], dtype: Any) -> Any:
    """Concatenate lists of numbers into one array."""
    return np.array([value for values in lists for value in values], dtype)


def _preset_row(preset: Preset, module: Module) -> tuple[int, int, int, int]:
    """Return offset, width, source and value of a preset, with a variable's name replaced by its address."""
    value = preset.value if isinstance(preset.value, int) else module.address_of(preset.value)
    signed = value - 2**64 if value >= 2**63 else value
    return preset.offset, preset.width, PRESET_SOURCES[preset.source], signed


class Program:
    """A kernel, loaded into the engine. Call it to launch it on arrays of the host.

    Raises
    ------
    UnsupportedPtx
        The kernel has instructions that the emulator does not implement; the message names them.
    """

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
        kernel.instructions = []  # the engine has copies; keeping thousands of objects slows garbage collection

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
        """Run all blocks of a grid and return the counters, or None if they were not requested.

        Parameters
        ----------
        grid, threads : three sizes each
        shared_bytes : bytes of dynamic shared memory per block
        parameters : the kernel's parameters, packed as in PTX
        arrays : all global memory that the kernel may access
        options : how to run

        Raises
        ------
        EmulatorError
            A check failed; the message lists all findings.
        """
        counts = np.zeros((len(self.keys), len(FIELDS)), np.uint64) if options.counters else None
        self._run("launch", (grid, threads, shared_bytes, parameters, arrays, options, counts))
        return None if counts is None else self.counters(counts)

    def _run(self, what: str, launch: tuple[Any, ...], *more: Any) -> None:
        """Call `emulator_launch` or `emulator_explore` and raise EmulatorError with its findings, if any."""
        description, kept = self._description(*launch)
        findings = ctypes.create_string_buffer(_TEXT_BYTES)
        run = getattr(build.engine(), f"emulator_{what}")
        if run(self.handle, ctypes.byref(description), *more, findings, len(findings)):
            raise EmulatorError(findings.value.decode(errors="replace"))
        del kept  # the description points to these arrays, so they must live until here

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
        """Return the C description of a launch, and the arrays of descriptions that it points to."""
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
        """Return counters per instruction, with zeros for the bookkeeping instructions that `sums.watch` inserted."""
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
        """Launch the kernel; see `Options` for the keyword arguments.

        Parameters
        ----------
        grid, block : int or up to three sizes
        arguments : one per parameter of the kernel
            Each is an Array, a TensorMap, bytes, a NumPy scalar, an int, or None for a null pointer.
        shared_bytes : bytes of dynamic shared memory per block

        Returns
        -------
        Counters, or None unless ``counters=True``.

        Raises
        ------
        EmulatorError
            A check failed; the message lists all findings.
        TypeError
            An argument does not have the size of its parameter.
        """
        return self.launch(_three(grid), _three(block), shared_bytes, *self._call(arguments), Options(**options))

    def explore(
        self,
        block: int | Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int = 0,
        limit: int = 10**6,
        **options: Any,
    ) -> Explored:
        """Model-check one block: run it in every order of its synchronisation events that leads to a new state.

        An event is a barrier, a wait, an arrival, an atomic, an exit, or an asynchronous copy that lands. Unlike a
        seed, which samples one order, this covers all of them; it is feasible for a few warps and iterations.

        Parameters
        ----------
        block, arguments, shared_bytes, options : as for a launch
        limit : number of states after which to stop; the result is then not `complete`

        Raises
        ------
        EmulatorError
            A check fails in some order, or the results depend on the order.
        """
        explored = Explored()
        launch = ((1, 1, 1), _three(block), shared_bytes, *self._call(arguments), Options(**options), None)
        self._run("explore", launch, ctypes.c_int64(limit), ctypes.byref(explored))
        return explored

    def _call(self, arguments: Sequence[Any]) -> tuple[bytes, list[Array]]:
        """Return the packed parameters, and all arrays that the kernel may access."""
        parameters = bytearray(self.kernel.parameter_bytes)
        places = self.kernel.parameters.values()
        for argument, (offset, size) in zip(arguments, places, strict=True):
            parameters[offset : offset + size] = _argument_bytes(argument, size)
        seen = [argument.array if isinstance(argument, TensorMap) else argument for argument in arguments]
        arrays = {id(array): array for array in seen if isinstance(array, Array)}
        return bytes(parameters), [*arrays.values(), *self.module.arrays.values()]


def _three(sizes: int | Sequence[int]) -> Sequence[int]:
    """Pad a size, or a sequence of sizes, with ones to three sizes."""
    return [*([sizes] if isinstance(sizes, int) else sizes), 1, 1][:3]


def _array_description(array: Array) -> _Array:
    """Return the C description of an array."""
    state = None if array.states is None else array.states.ctypes.data
    return _Array(array.base, array.size, array.host, state, array.writable, array.name.encode())


def _argument_bytes(argument: Any, size: int) -> bytes:
    """Return the bytes of one kernel argument; TypeError if there are not `size` of them."""
    if isinstance(argument, Array):
        argument = argument.address
    if argument is None:
        argument = 0
    encoded = argument.to_bytes(size, "little", signed=argument < 0) if isinstance(argument, int) else bytes(argument)
    if len(encoded) != size:
        raise TypeError(f"an argument of {len(encoded)} bytes for a parameter of {size}")
    return encoded


class Module:
    """The kernels of one PTX text, by name; each is loaded into the engine when it is first used.

    Attributes
    ----------
    parsed : ptx.Module
    arrays : dict of Array
        The ``__device__`` and ``__constant__`` variables that have been used.
    programs : dict of Program
        The kernels that have been loaded.
    """

    def __init__(self, text: str) -> None:
        self.parsed = ptx.Module(text)
        self.arrays: dict[str, Array] = {}
        self.programs: dict[str, Program] = {}

    def global_array(self, name: str) -> Array:
        """Return a ``__device__`` or ``__constant__`` variable as an array; it is allocated by the first call."""
        if name not in self.arrays:
            self.arrays[name] = Array(np.frombuffer(self.parsed.globals[name], np.uint8).copy(), name)
        return self.arrays[name]

    def address_of(self, name: str) -> int:
        """Return the device address of a ``__device__`` or ``__constant__`` variable."""
        return self.global_array(name).address

    def __getitem__(self, name: str) -> Program:
        """Return the kernel of that name, loading it into the engine by the first use."""
        if name not in self.programs:
            self.programs[name] = Program(self.parsed.kernels[name], self)
        return self.programs[name]


@lru_cache(maxsize=512)
def module(text: str) -> Module:
    """Return the module of a PTX text; the last 512 of this process are cached."""
    return Module(text)
