"""Compile the probes' kernels and run them once on host arrays."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gpuconv.cuda.build import kernel_files, nvrtc
from gpuconv.cuda.plan.launch import TensorMap

FOLDER = Path(__file__).parent
Unit = tuple[str, tuple[str, ...]]
_DEFAULT_SHARED_BYTES = 48 * 1024  # bytes of shared memory per block without opt-in


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel.

    Attributes
    ----------
    source : str
        File of this folder, without ``.cu``.
    name : str
        Name of the ``extern "C"`` kernel.
    defines : tuple of str
        Macros, each as ``NAME=VALUE``.
    """

    source: str
    name: str
    defines: tuple[str, ...] = ()

    @property
    def unit(self) -> Unit:
        """The compilation unit: a file and its macros."""
        return self.source, self.defines


@dataclass(frozen=True, slots=True)
class Result:
    """An array argument that the kernel writes; all its bits are set before."""

    shape: tuple[int, ...]
    dtype: Any = np.uint32


@dataclass(frozen=True, slots=True)
class Mapped:
    """An argument that is a TMA tensor map of an array."""

    array: Any
    described: TensorMap


class Device(Protocol):
    """Where probes run.

    Attributes
    ----------
    architecture : str
    blocks : int
        Enough blocks that each multiprocessor runs several in sequence.
    share : int
        Only 1/share of the sums is recorded.
    """

    architecture: str
    blocks: int
    share: int

    def compile_ahead(self, programs: Iterable[Program]) -> None:
        """Start compiling these programs in the background, if possible."""

    def alive(self) -> bool:
        """Return whether the CUDA context still works; an error of a kernel breaks it."""

    def run(
        self, program: Program, threads: int, arguments: Sequence[Any], *, shared_bytes: int = 0, grid: int = 1
    ) -> list[Any]:
        """Run a kernel and return its results. Arguments are arrays, 32-bit integers, `Result` and `Mapped`."""


class Refused(RuntimeError):
    """A kernel compiles but cannot run as intended."""


@cache
def compiled(
    source: str, defines: tuple[str, ...], architecture: str, folder: Path = FOLDER, headers: Path | None = None
) -> bytes:
    """Return a cubin for ``sm_…`` or PTX for ``compute_…``, compiled with the headers of kernels_cu.

    Raises
    ------
    CompileError, Refused
    """
    text = (folder / f"{source}.cu").read_text(encoding="utf-8")
    include = headers or Path(str(kernel_files.folder()))
    options = ("--std=c++17", f"-I{include}", *(f"-D{define}" for define in defines))
    content, log = nvrtc.build(source, text, architecture, options)
    if re.search(r"setmaxnreg.*ignored", log):
        raise Refused(f"{source}: the assembler ignores setmaxnreg")
    return content


class Absent(Exception):
    """There is no usable device; the message says why."""


class Cuda:
    """The current CUDA device, through CuPy."""

    def __init__(self, share: int = 1) -> None:
        from gpuconv.cuda.call import device

        reason = device.unavailable_reason()
        if reason is not None:
            raise Absent(f"no GPU to run on: {reason}")
        self._device = device
        limits = device.limits(device.current_device())
        self.architecture, self.name = limits.architecture, limits.name
        self.share = share
        self.blocks = 2 * limits.multiprocessors + 1
        self._contents: dict[Unit, Future[bytes]] = {}
        self._modules: dict[Unit, Any] = {}
        self._functions: dict[Program, Any] = {}

    def compile_ahead(self, programs: Iterable[Program]) -> None:
        """As `Device.compile_ahead`, with one thread per core."""
        with_threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="compile")
        for unit in {program.unit: None for program in programs}:
            self._contents[unit] = with_threads.submit(compiled, *unit, self.architecture)
        with_threads.shutdown(wait=False)

    def alive(self) -> bool:
        """As `Device.alive`."""
        try:
            sys.modules["cupy"].cuda.runtime.deviceSynchronize()
        except Exception:
            return False
        return True

    def run(
        self, program: Program, threads: int, arguments: Sequence[Any], *, shared_bytes: int = 0, grid: int = 1
    ) -> list[Any]:
        """As `Device.run`; it synchronises, and raises the kernel's error."""
        cupy = sys.modules["cupy"]
        function = self._function(program)
        if shared_bytes > _DEFAULT_SHARED_BYTES:
            driver = cupy.cuda.driver
            driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
        kept: list[Any] = []
        results: list[Any] = []
        rooms = [self._room(argument, kept, results) for argument in arguments]
        pointers = tuple(cupy.cuda.function.CPointer(room.ctypes.data) for room in rooms)
        function((grid, 1, 1), (threads, 1, 1), pointers, shared_bytes)
        cupy.cuda.get_current_stream().synchronize()
        return [result.get() for result in results]

    def _function(self, program: Program) -> Any:
        found = self._functions.get(program)
        if found is None:
            module = self._modules.get(program.unit)
            if module is None:
                content = self._content(program.unit)
                module = self._modules[program.unit] = sys.modules["cupy"].cuda.Module()
                module.load(content)
            found = self._functions[program] = module.get_function(program.name)
        return found

    def _content(self, unit: Unit) -> bytes:
        ahead = self._contents.get(unit)
        return compiled(*unit, self.architecture) if ahead is None else ahead.result()

    def _room(self, argument: Any, kept: list[Any], results: list[Any]) -> Any:
        """Return the host memory that holds one kernel parameter."""
        cupy = sys.modules["cupy"]
        if isinstance(argument, int):
            return np.array([argument], np.int32)
        if isinstance(argument, Mapped):
            array = cupy.asarray(argument.array)
            kept.append(array)
            return np.frombuffer(bytes(self._device.tensor_map(argument.described)(array.data.ptr)), np.uint8)
        if isinstance(argument, Result):
            array = cupy.asarray(unwritten(argument))
            results.append(array)
        else:
            array = cupy.asarray(argument)
        kept.append(array)
        return np.array([array.data.ptr], np.uint64)


def unwritten(result: Result) -> Any:
    """Return an array with all bits set."""
    size = int(np.prod(result.shape)) * np.dtype(result.dtype).itemsize
    return np.full(size, 0xFF, np.uint8).view(result.dtype).reshape(result.shape)
