"""gpuconv's operators on NumPy arrays, run by CuPy on the emulated device, with every access and every launch seen."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from math import prod
from typing import Any
from unittest import mock

import numpy as np

import gpuconv
from gpuconv import _arrays
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build import structs
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device
from gpuconv.cuda.plan.limits import Limits, representative
from gpuconv.rules.operators import OPERATORS
from tests.emulated_cuda import Unsuitable, control
from tests.emulated_cuda.emulator.counters import Counters
from tests.emulated_cuda.emulator.engine import EmulatorError
from tests.emulated_cuda.modules import in_use
from tests.emulator import tally
from tests.emulator.compile import turn
from tests.emulator.mirror import Mirror, on_host, unwritten
from tests.harness.cuda_device import emulated_unavailable_reason

ASYNC_ORDERS = ("late", "at once", "random")
_ATTRIBUTES = {name for operator in OPERATORS.values() for name in operator.attributes}
_MOVED = (*OPERATORS, "explain", "pack", "tune")  # the functions that take NumPy arrays as those of the device
_ADDRESS_IN_MAP = 0  # bytes before it, as the engine has maps


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch of a kernel of gpuconv's."""

    variant: Variant
    launch: control.Launch

    grid = property(lambda self: self.launch.grid)
    threads = property(lambda self: prod(self.launch.block))
    shared_bytes = property(lambda self: self.launch.shared_bytes)
    parameters = property(lambda self: self.launch.parameters)
    counters = property(lambda self: self.launch.counters)


@dataclass
class EmulatedCuda:
    """What has happened while `emulated_cuda` lasts.

    Attributes
    ----------
    architecture : what all kernels are compiled for; None where each is for one that it has.
    limits : what planners know of the device.
    prepared : of gpuconv.cuda: its calls that are ready to run.
    launches : LaunchRecord of each launch, in order.
    """

    architecture: str | None
    limits: Limits
    prepared: dict[Any, Any] = field(default_factory=dict)
    launches: list[LaunchRecord] = field(default_factory=list)
    _variants: dict[str, Variant] = field(default_factory=dict)

    def limits_of(self, _: int) -> Limits:
        """Stand for what asks the driver for them."""
        return self.limits

    def ptx(self, variant: Variant, _: str) -> bytes:
        """Stand for what compiles kernels for a device."""
        architecture = self.architecture or turn(variant)
        self._variants[variant.name] = variant
        return compiler.ptx(variant, architecture).encode()

    def see(self, launch: control.Launch) -> None:
        """Take down a launch of gpuconv's, and let findings call its arrays as the kernel's struct does."""
        variant = self._variants.get(launch.name)
        if variant is None:  # of CuPy's own
            return
        for name, at in pointers(variant.layout):
            control.name(int.from_bytes(launch.parameters[at : at + 8], "little"), name)
        tally.add(variant.name, self.architecture or turn(variant))
        self.launches.append(LaunchRecord(variant, launch))

    def counters(self) -> dict[str, Counters]:
        """Return the sums of each kernel's counters; needs the option `counters`."""
        sums: dict[str, Counters] = {}
        for record in self.launches:
            if record.counters is not None:
                name = record.variant.name
                sums[name] = sums[name] + record.counters if name in sums else record.counters
        return sums

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return a time that depends on nothing but the launches: a nanosecond per thread."""
        before = len(self.launches)
        run()
        return sum(record.threads * prod(record.grid) for record in self.launches[before:]) / 1e9

    def moving(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs on the device where it is given NumPy arrays, and returns such.

        Raises
        ------
        EmulatorError
            A kernel did what it must not do, or elements of a result were never written.
        """

        signature = inspect.signature(function)

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            try:
                bound = signature.bind_partial(*arguments, **keywords).arguments
            except TypeError:  # which the function says better
                bound = {**keywords, "": arguments}
            operands = [value for name, value in bound.items() if name not in _ATTRIBUTES | {"out", "attributes"}]
            outs = _found_in(keywords.get("out"))
            mirror = Mirror(_found_in(operands), outs)
            before = len(self.launches)
            with self.findings_raised():
                result = function(*_moved(arguments, mirror), **_moved(keywords, mirror))
            found = result if isinstance(result, tuple) else (result,)
            found = tuple(self._returned(array, mirror, outs, self.launches[before:]) for array in found)
            mirror.bring_back()
            return found if isinstance(result, tuple) else found[0]

        return call

    @contextmanager
    def findings_raised(self) -> Iterator[None]:
        """Raise EmulatorError with what was found in a kernel, in place of the error that says that it failed."""
        control.findings()
        try:
            yield
        except (gpuconv.GpuconvError, RuntimeError) as error:
            found = control.findings()
            if not found:
                raise
            raise EmulatorError(found) from error

    def _returned(self, result: Any, mirror: Mirror, outs: list[Any], launches: list[LaunchRecord]) -> Any:
        if not isinstance(result, sys.modules["cupy"].ndarray):
            return result
        check_written(result, launches)
        given = [out for out in outs if mirror.of(out) is result]
        return given[0] if given else on_host(result)


def check_written(array: Any, launches: Sequence[LaunchRecord], name: str = "a result") -> None:
    """Raise EmulatorError where launches have left out an element of an array of the device."""
    missing = unwritten(array) if launches and in_use[0].check_global else 0
    if missing:
        names = ", ".join(record.variant.name for record in launches)
        raise EmulatorError(
            f"{names}: {missing} of {array.size} elements of {name}, of shape {array.shape}, were never written"
        )


def _found_in(value: Any) -> list[Any]:
    """Return the NumPy arrays in a value, in the order in which it has them."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, list | tuple):
        return [array for one in value for array in _found_in(one)]
    return []


def _moved(value: Any, mirror: Mirror) -> Any:
    if isinstance(value, np.ndarray):
        return mirror.of(value)
    if isinstance(value, dict):
        return {key: _moved(one, mirror) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_moved(one, mirror) for one in value)
    return value


def pointers(layout: np.dtype[Any], start: int = 0) -> Iterator[tuple[str, int]]:
    """Name the pointers of a struct, at any depth, those in maps too, and their offsets."""
    for name in layout.names or ():
        kind, offset = layout.fields[name][:2]
        if kind == np.uint64:
            yield name, start + offset
        elif kind == structs.MAP:
            yield name, start + offset + _ADDRESS_IN_MAP
        else:
            yield from pointers(kind, start + offset)


def _refusing_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what finds an operator's library, but for NumPy's: a call that was not moved would test the CPU."""

    @wraps(function)
    def resolve(operator: str, *arrays: Any) -> Any:
        found = function(operator, *arrays)
        if found[0] == "numpy" and operator in OPERATORS:
            raise AssertionError(f"inside of emulated_cuda() look {operator} up in gpuconv, where it runs on the device")
        return found

    return resolve


def visible() -> Any:
    """Show the device also to tests from which it is hidden, as from most."""
    runtime = importlib.import_module("cupy").cuda.runtime
    return mock.patch.object(runtime, "getDeviceCount", return_value=in_use[0].devices)


@contextmanager
def emulated_cuda(
    architecture: str | None = None,
    multiprocessors: int | None = None,
    limits_of: str = "sm_90a",
    *,
    counters: bool = False,
    async_order: str = "late",
    late_async: bool = True,
    threads: int = 1,
    **options: Any,
) -> Iterator[EmulatedCuda]:
    """Let gpuconv's operators run NumPy arrays on the emulated device; each launch runs at once.

    Parameters
    ----------
    architecture : str, optional
        What all kernels are compiled for. By default each is compiled for one of those that have it, the same in all
        tests, which so share what is compiled.
    multiprocessors : int, optional
        That planners know of; otherwise those of the architecture's well-known device.
    limits_of : str
        The architecture whose well-known device planners know of, where `architecture` does not say it.
    counters : bool
        Count instructions, bank conflicts and sectors.
    async_order, late_async
        "late", "at once" or "random": when asynchronous copies of kernels land; at once where late_async is False.
    threads : int
        Of the host, which run the blocks of a grid.
    **options
        Fields of `Settings` of the emulated driver: seed, host_threads, check_shared, check_global, max_steps.

    Raises
    ------
    EmulatorError
        A kernel did what it must not do, or elements of a result were never written.
    Unsuitable
        The emulated driver cannot be had here, or a real one is in use.
    """
    limits = representative(architecture or limits_of).limits
    emulated = EmulatedCuda(architecture, replace(limits, multiprocessors=multiprocessors or limits.multiprocessors))
    settings = {
        "capability": int(limits.architecture.removeprefix("sm_").rstrip("a")),
        "multiprocessors": emulated.limits.multiprocessors,
        "late": False,
        "async_order": ASYNC_ORDERS.index(async_order if late_async else "at once"),
        "host_threads": threads,
    }
    reason = emulated_unavailable_reason()
    if reason is not None:
        raise Unsuitable(reason)
    with ExitStack() as stack:
        stack.enter_context(visible())
        stack.enter_context(control.changed(**settings, **options))
        stack.enter_context(control.watched(emulated.see, counters))
        stack.enter_context(mock.patch.object(compiler, "cubin", emulated.ptx))
        stack.enter_context(mock.patch.object(device, "prepared", emulated.prepared))
        stack.enter_context(mock.patch.object(device, "limits", emulated.limits_of))
        stack.enter_context(mock.patch.object(device, "seconds", emulated.seconds))
        stack.enter_context(mock.patch.dict(device._kernels, clear=True))
        for name in _MOVED:
            stack.enter_context(mock.patch.object(gpuconv, name, emulated.moving(getattr(gpuconv, name))))
        for name in ("resolve", "resolve_one", "resolve_all"):
            stack.enter_context(mock.patch.object(_arrays, name, _refusing_host(getattr(_arrays, name))))
        yield emulated
