"""The CUDA backend's second device: the functions of gpuconv/cuda/call/device.py, on host arrays, in the emulator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from gpuconv import cuda
from gpuconv._errors import OutOfDeviceMemory
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build import structs
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan.launch import TensorMap
from gpuconv.cuda.plan.limits import Limits, representative
from gpuconv.rules import dtypes
from tests.emulated_cuda.emulator.counters import Counters
from tests.emulated_cuda.emulator.engine import EmulatorError, Options, Program, module
from tests.emulated_cuda.emulator.memory import UNWRITTEN, Array, Union, encode_map, without_values
from tests.emulator import tally
from tests.emulator.compile import turn, unavailable_reason

LARGEST_GRID = (2**31 - 1, 65535, 65535)
LARGEST_BLOCK = 1024
_ADDRESS_IN_MAP = 0  # bytes before it, as the engine has maps
DEFAULT_SHARED_BYTES = 48 * 1024  # that a block gets without asking


@dataclass(slots=True)
class Handle:
    """A loaded kernel."""

    variant: Variant
    architecture: str
    program: Program
    shared_bytes: int


class Slot:
    """The parameters of one launch."""

    __slots__ = ("buffer",)

    def __init__(self, template: bytes) -> None:
        self.buffer = np.frombuffer(template, np.uint8).copy()


class Workspace:
    """Memory without a shape."""

    __slots__ = ("data", "purpose")

    def __init__(self, nbytes: int, purpose: str) -> None:
        self.data = without_values(nbytes, np.uint8)
        self.purpose = purpose


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch as the device saw it."""

    variant: Variant
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    parameters: bytes
    counters: Counters | None


@dataclass(slots=True)
class Call:
    """What one call of an operator has shown the device."""

    arrays: list[Array] = field(default_factory=list)
    results: list[Array] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)  # names of kernels

    def visible(self, addresses: set[int]) -> list[Array]:
        """Return what a launch may touch, for the engine: no two of these meet."""
        led_to = [array for array in self.arrays if any(array.holds(address) for address in addresses)]
        chosen = {id(array.whole): array.whole for array in led_to}
        separate: list[Array] = []
        for array in sorted(chosen.values(), key=lambda array: array.base):
            while separate and separate[-1].meets(array):
                array = Union(separate.pop(), array)
            separate.append(array)
        return separate

    def check_written(self) -> None:
        """Raise EmulatorError where an element of a result was left out."""
        for array in self.results:
            missing = int((array.element_states() == UNWRITTEN).any(-1).sum())
            if missing and self.launched:
                raise EmulatorError(
                    f"{', '.join(self.launched)}: {missing} of {array.data.size} elements of {array.name}, "
                    f"of shape {array.data.shape}, were never written"
                )


class EmulatedDevice:
    """Stands for the module gpuconv.cuda.call.device while `emulated_cuda` lasts.

    A call begins where the backend asks for the current device or shows arrays after a launch; whether all of the
    results were written is checked when the next one begins, and at the end.

    Attributes
    ----------
    prepared : of gpuconv.cuda: its calls that are ready to run, which belong to this device.
    launches : LaunchRecord of each launch, in order.
    """

    def __init__(self, architecture: str | None, limits: Limits, options: Options) -> None:
        self.architecture = architecture
        self._limits = limits
        self.options = options
        self.prepared: dict[Any, Any] = {}
        self.launches: list[LaunchRecord] = []
        self._of_thread = threading.local()
        self._calls: list[Call] = []

    # ---------------------------------------------------------------- results of a test

    def counters(self) -> dict[str, Counters]:
        """Return the sums of each kernel's counters; needs the option `counters`."""
        sums: dict[str, Counters] = {}
        for record in self.launches:
            if record.counters is not None:
                name = record.variant.name
                sums[name] = sums[name] + record.counters if name in sums else record.counters
        return sums

    def check_written(self) -> None:
        """Raise EmulatorError where a call that has ended left out elements of its results."""
        for call in self._calls:
            self._end(call)

    def _end(self, call: Call) -> None:
        ended = Call(call.arrays, call.results, call.launched)
        call.arrays, call.results, call.launched = [], [], []
        if self.options.check_global:
            ended.check_written()

    def _call(self) -> Call:
        call: Call | None = getattr(self._of_thread, "call", None)
        if call is None:
            call = self._of_thread.call = Call()
            self._calls.append(call)
        return call

    def _add(self, array: Array) -> int:
        call = self._call()
        if call.launched:
            self._end(call)
        call.arrays.append(array)
        return array.address

    # ---------------------------------------------------------------- the interface of gpuconv.cuda.call.device

    def unavailable_reason(self) -> str | None:
        return unavailable_reason()

    def array_type(self) -> type | None:
        return np.ndarray

    def current_device(self) -> int:
        self._end(self._call())
        return 0

    def device_of(self, array: Any) -> int:
        return 0

    def layout(self, array: Any) -> Any:
        return array.shape, array.strides, array.dtype

    def limits(self, device: int) -> Limits:
        return self._limits

    def load(self, variant: Variant, device: int, shared_bytes: int) -> Handle:
        architecture = self.architecture or turn(variant)
        program = module(compiler.ptx(variant, architecture))[variant.name]
        if shared_bytes > self._limits.shared_bytes_per_block:
            raise EmulatorError(
                f"{variant.name}: {shared_bytes} bytes of dynamic shared memory are more than a block can have"
            )
        return Handle(variant, architecture, program, max(shared_bytes, DEFAULT_SHARED_BYTES))

    def parameters(self, template: bytes) -> Slot:
        return Slot(template)

    def bind(
        self, kernel: Handle, grid: tuple[int, int, int], threads: int, shared_bytes: int, slot: Slot
    ) -> Callable[[], None]:
        return partial(self._launch, kernel, grid, threads, shared_bytes, slot)

    def tensor_map(self, described: TensorMap) -> Callable[[int], memoryview]:
        return partial(_encoded, described)

    def _launch(self, kernel: Handle, grid: tuple[int, int, int], threads: int, shared_bytes: int, slot: Slot) -> None:
        variant, parameters = kernel.variant, slot.buffer.tobytes()
        self._check_launch(kernel, grid, threads, shared_bytes, parameters)
        call = self._call()
        call.launched.append(variant.name)
        arrays = call.visible(_name_arrays(call, variant, parameters))
        tally.add(variant.name, kernel.architecture)
        try:
            counters = kernel.program.launch(grid, (threads, 1, 1), shared_bytes, parameters, arrays, self.options)
        except EmulatorError:
            call.results = []  # enough was found
            raise
        self.launches.append(LaunchRecord(variant, grid, threads, shared_bytes, parameters, counters))

    def _check_launch(
        self, kernel: Handle, grid: tuple[int, int, int], threads: int, shared_bytes: int, parameters: bytes
    ) -> None:
        """Refuse what the driver would refuse, and a struct of the wrong size, which it would not notice."""
        decoded = kernel.program.kernel
        static = decoded.static_shared_bytes
        asked = kernel.shared_bytes if kernel.shared_bytes > DEFAULT_SHARED_BYTES else DEFAULT_SHARED_BYTES - static
        largest = min(asked, self._limits.shared_bytes_per_block - static)
        if len(parameters) != decoded.parameter_bytes:
            wrong = f"a struct of {len(parameters)} bytes, but the kernel takes {decoded.parameter_bytes}"
        elif not all(1 <= size <= limit for size, limit in zip(grid, LARGEST_GRID, strict=True)):
            wrong = f"a grid of {grid}, which must be from (1, 1, 1) to {LARGEST_GRID}"
        elif not 1 <= threads <= min(LARGEST_BLOCK, kernel.variant.threads):
            wrong = f"{threads} threads a block, which must be from 1 to {min(LARGEST_BLOCK, kernel.variant.threads)}"
        elif shared_bytes > largest:
            wrong = f"{shared_bytes} bytes of dynamic shared memory, but at most {largest} can be had"
        else:
            return
        raise EmulatorError(f"{decoded.name}: launched with {wrong}")

    def empty(self, shape: tuple[int, ...], dtype: Any, purpose: str) -> Any:
        try:
            return without_values(shape, dtype)
        except MemoryError as error:
            raise OutOfDeviceMemory(f"{purpose} does not fit ({error})") from error

    def workspace(self, nbytes: int, purpose: str) -> Workspace:
        try:
            return Workspace(nbytes, purpose)
        except MemoryError as error:
            raise OutOfDeviceMemory(f"{purpose} does not fit ({error})") from error

    def address(self, array: Any) -> int:
        if isinstance(array, Workspace):
            return self.result_address(array)
        for known in self._call().arrays:
            if known.data is array and not known.writable and not self._call().launched:
                return known.address  # asked for twice
        return self._add(Array(array, "an input", writable=False))

    def result_address(self, array: Any) -> int:
        if isinstance(array, Workspace):
            return self._add(Array(array.data, "the workspace", initialised=False))
        result = Array(array, "a result", initialised=False)
        address = self._add(result)
        self._call().results.append(result)
        return address

    def parts(self, workspace: Workspace, sizes: Sequence[int]) -> list[int]:
        ends = accumulate(sizes, initial=0)
        pieces = [workspace.data[start:][:nbytes] for start, nbytes in zip(ends, sizes, strict=False)]
        return [self._add(Array(piece, "the workspace", initialised=False)) for piece in pieces]

    def keep(self, memory: Any, result: Any) -> None:
        """Do nothing: there are no graphs."""

    def is_capturing(self) -> bool:
        return False

    def wait(self) -> None:
        """Do nothing: launches return when they are done."""

    def copied(self, array: Any, purpose: str) -> Any:
        return array.copy(order="C")

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return a time that depends on nothing but the launches: a nanosecond per thread."""
        before = len(self.launches)
        run()
        return sum(record.threads * prod(record.grid) for record in self.launches[before:]) / 1e9

    def strided(self, flat: Any, shape: tuple[int, ...], strides: tuple[int, ...], start: int) -> Any:
        return np.lib.stride_tricks.as_strided(flat[start // flat.itemsize :], shape, strides)

    def to_device(self, array: Any) -> Any:
        return np.array(array, order="K")

    def to_host(self, array: Any) -> Any:
        return np.array(array, order="K")


def _encoded(described: TensorMap, address: int) -> memoryview:
    """Return the words that the engine takes for a map."""
    corners = (described.lower, described.upper, described.channels, described.pixels)
    try:
        encoded = encode_map(
            address,
            dtypes.entry(described.dtype).itemsize,
            described.sizes,
            described.strides,
            described.steps,
            (0, 32, 64, 128).index(described.swizzle),
            described.box,
            None if described.box else corners,
        )
    except ValueError as error:
        raise EmulatorError(f"the driver would refuse {described} for address {address:#x}: {error}") from error
    return memoryview(encoded).cast("Q")


def _pointers(layout: np.dtype[Any], start: int = 0) -> Iterator[tuple[str, int]]:
    """Name the pointers of a struct, at any depth, those in maps too, and their offsets."""
    for name in layout.names or ():
        kind, offset = layout.fields[name][:2]
        if kind == np.uint64:
            yield name, start + offset
        elif kind == structs.MAP:
            yield name, start + offset + _ADDRESS_IN_MAP
        else:
            yield from _pointers(kind, start + offset)


def _name_arrays(call: Call, variant: Variant, parameters: bytes) -> set[int]:
    """Return the addresses in a launch's struct, and give the arrays there the names of its fields."""
    names = {int.from_bytes(parameters[at : at + 8], "little"): name for name, at in _pointers(variant.layout)}
    for array in call.arrays:
        array.name = names.get(array.address, array.name)
    return set(names)


@contextmanager
def emulated_cuda(
    architecture: str | None = None,
    multiprocessors: int | None = None,
    limits_of: str = "sm_90a",
    **options: Any,
) -> Iterator[EmulatedDevice]:
    """Let gpuconv's operators on NumPy arrays run the whole CUDA backend, in the emulator instead of on a device.

    Parameters
    ----------
    architecture : str, optional
        What all kernels are compiled for. By default each is compiled for one of those that have it, the same in all
        tests, which so share what is compiled.
    multiprocessors : int, optional
        That planners know of; otherwise those of the architecture's well-known device.
    limits_of : str
        The architecture whose well-known device planners know of, where `architecture` does not say it.
    **options
        Fields of `Options`.

    Raises
    ------
    EmulatorError
        A kernel did what it must not do. At the end: elements of a result were never written.
    """
    limits = representative(architecture or limits_of).limits
    limits = replace(limits, multiprocessors=multiprocessors or limits.multiprocessors)
    device = EmulatedDevice(architecture, limits, Options(**options))
    before = cuda.runtime
    cuda.runtime = device
    try:
        yield device
        device.check_written()
    finally:
        cuda.runtime = before
