"""gpuconv's operators on NumPy arrays, run by CuPy on the emulated device, with every access and every launch seen."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from math import prod
from typing import Any
from unittest import mock

import numpy as np

import gpuconv
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build import structs
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device
from gpuconv.cuda.plan.limits import Limits, representative
from gpuconv.rules.operators import OPERATORS
from tests.emulated_cuda import control
from tests.emulated_cuda.emulator.counters import Counters
from tests.emulated_cuda.emulator.engine import EmulatorError
from tests.emulated_cuda.modules import in_use
from tests.emulator import tally
from tests.emulator.compile import turn
from tests.emulator.mirror import Mirror, on_host, unwritten

ASYNC_ORDERS = ("late", "at once", "random")
_MOVED = (*OPERATORS, "explain", "pack", "tune")  # the functions that take NumPy arrays as those of the device
_ADDRESS_IN_MAP = 0  # bytes before it, as the engine has maps


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch as the driver saw it."""

    variant: Variant
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    parameters: bytes
    counters: Counters | None = None


@dataclass
class EmulatedCuda:
    """What has happened while `emulated_cuda` lasts.

    Attributes
    ----------
    architecture : what all kernels are compiled for; None where each is for one that it has.
    limits : what planners know of the device.
    prepared : of gpuconv.cuda: its calls that are ready to run.
    launches : LaunchRecord of each launch, in order; counters are in `counters`.
    """

    architecture: str | None
    limits: Limits
    prepared: dict[Any, Any] = field(default_factory=dict)
    launches: list[LaunchRecord] = field(default_factory=list)
    _seen: list[tuple[str, control.Launch]] = field(default_factory=list)
    _variants: dict[str, Variant] = field(default_factory=dict)

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
        self._seen.append((variant.name, launch))
        self.launches.append(
            LaunchRecord(variant, launch.grid, prod(launch.block), launch.shared_bytes, launch.parameters)
        )

    def counters(self) -> dict[str, Counters]:
        """Return the sums of each kernel's counters; needs the option `counters`."""
        sums: dict[str, Counters] = {}
        for name, launch in self._seen:
            if launch.counters is not None:
                sums[name] = sums[name] + launch.counters if name in sums else launch.counters
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

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            outs = _arrays(keywords.get("out"))
            given = [*_arrays(arguments), *_arrays([value for key, value in keywords.items() if key != "out"])]
            if not given and not outs:
                return function(*arguments, **keywords)
            mirror = Mirror(given, outs)
            before = len(self.launches)
            control.findings()
            try:
                result = function(*_moved(arguments, mirror), **_moved(keywords, mirror))
            except gpuconv.GpuconvError as error:
                found = control.findings()
                if not found:
                    raise
                raise EmulatorError(found) from error
            return self._returned(result, mirror, outs, self.launches[before:])

        return call

    def _returned(self, result: Any, mirror: Mirror, outs: list[Any], launches: list[LaunchRecord]) -> Any:
        on_device = {id(mirror.of(out)): out for out in outs}
        found = []
        for array in result if isinstance(result, tuple) else (result,):
            if not isinstance(array, sys.modules["cupy"].ndarray):
                found.append(array)
                continue
            missing = unwritten(array) if launches and in_use[0].check_global else 0
            if missing:
                names = ", ".join(record.variant.name for record in launches)
                raise EmulatorError(
                    f"{names}: {missing} of {array.size} elements of a result, of shape {array.shape}, "
                    "were never written"
                )
            found.append(on_device[id(array)] if id(array) in on_device else on_host(array))
        mirror.bring_back()
        return tuple(found) if isinstance(result, tuple) else found[0]


def _arrays(value: Any) -> list[Any]:
    """Return the NumPy arrays in a value, in the order in which it has them."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, list | tuple):
        return [array for one in value for array in _arrays(one)]
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


def visible() -> Any:
    """Show the device also to tests from which it is hidden, as from most."""
    runtime = importlib.import_module("cupy").cuda.runtime
    return mock.patch.object(runtime, "getDeviceCount", lambda: in_use[0].devices)


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
        Fields of `Settings` of the emulated driver: seed, host_threads, check_shared, check_global.

    Raises
    ------
    EmulatorError
        A kernel did what it must not do, or elements of a result were never written.
    """
    limits = representative(architecture or limits_of).limits
    emulated = EmulatedCuda(architecture, replace(limits, multiprocessors=multiprocessors or limits.multiprocessors))
    order = ASYNC_ORDERS.index(async_order if late_async else "at once")
    with ExitStack() as stack:
        stack.enter_context(visible())
        stack.enter_context(control.changed(late=False, async_order=order, host_threads=threads, **options))
        stack.enter_context(control.watched(emulated.see, counters))
        stack.enter_context(mock.patch.object(compiler, "cubin", emulated.ptx))
        stack.enter_context(mock.patch.object(device, "prepared", emulated.prepared))
        stack.enter_context(mock.patch.object(device, "limits", lambda _: emulated.limits))
        stack.enter_context(mock.patch.object(device, "seconds", emulated.seconds))
        stack.enter_context(mock.patch.dict(device._kernels, clear=True))
        for name in _MOVED:
            stack.enter_context(mock.patch.object(gpuconv, name, emulated.moving(getattr(gpuconv, name))))
        yield emulated
