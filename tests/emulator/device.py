"""Run gpuconv's operators on NumPy arrays by CuPy on the emulated device, recording every launch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any
from unittest import mock

import numpy as np

import gpuconv
from emulated_cuda import Unsuitable, control
from emulated_cuda.emulator.counters import Counters
from emulated_cuda.emulator.engine import ASYNC_ORDERS, SCHEDULES, EmulatorError
from emulated_cuda.modules import in_use
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build import structs
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device
from gpuconv.cuda.plan.limits import Limits, representative
from tests.emulator import tally
from tests.emulator.compile import turn
from tests.emulator.moving import moved_to_device
from tests.harness import cuda_device

_ADDRESS_IN_MAP = 0  # byte offset of the address in the engine's tensor maps


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch of one of gpuconv's kernels."""

    variant: Variant
    launch: control.Launch

    grid = property(lambda self: self.launch.grid)
    threads = property(lambda self: prod(self.launch.block))
    shared_bytes = property(lambda self: self.launch.shared_bytes)
    parameters = property(lambda self: self.launch.parameters)
    counters = property(lambda self: self.launch.counters)

    def names(self) -> dict[int, str]:
        """Return the struct's names of the arrays by their addresses."""
        found = pointers(self.variant.layout)
        return {int.from_bytes(self.parameters[at : at + 8], "little"): name for name, at in found}


@dataclass
class EmulatedCuda:
    """Record of what happens inside `emulated_cuda`.

    Attributes
    ----------
    architecture : what all kernels are compiled for; None: each for an architecture of its own.
    limits : the device's limits as planners see them.
    prepared : the cache of gpuconv.cuda's prepared calls.
    launches : LaunchRecord of each launch, in order.
    """

    architecture: str | None
    limits: Limits
    prepared: dict[Any, Any] = field(default_factory=dict)
    launches: list[LaunchRecord] = field(default_factory=list)
    _variants: dict[str, Variant] = field(default_factory=dict)

    def limits_of(self, _: int) -> Limits:
        """Replaces the query of the driver."""
        return self.limits

    def ptx(self, variant: Variant, _: str) -> bytes:
        """Replaces the compilation to a cubin."""
        architecture = self.architecture or turn(variant)
        self._variants[variant.name] = variant
        return compiler.ptx(variant, architecture).encode()

    def see(self, launch: control.Launch) -> None:
        """Record a launch of gpuconv's, and name its arrays in findings as the kernel's struct does."""
        variant = self._variants.get(launch.name)
        if variant is None:  # a kernel of CuPy
            return
        record = LaunchRecord(variant, launch)
        for address, name in record.names().items():
            control.name(address, name)
        tally.add(variant.name, self.architecture or turn(variant))
        self.launches.append(record)

    def counters(self) -> dict[str, Counters]:
        """Return each kernel's counters, summed over launches; needs the option ``counters``."""
        sums: dict[str, Counters] = {}
        for record in self.launches:
            if record.counters is not None:
                name = record.variant.name
                sums[name] = sums[name] + record.counters if name in sums else record.counters
        return sums

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return a time that depends only on the launches: one nanosecond per thread."""
        before = len(self.launches)
        run()
        return sum(record.threads * prod(record.grid) for record in self.launches[before:]) / 1e9

    @contextmanager
    def findings_raised(self) -> Iterator[None]:
        """Raise EmulatorError with the findings in a kernel, instead of the error that it failed."""
        control.findings()
        try:
            yield
        except (gpuconv.GpuconvError, RuntimeError) as error:
            found = control.findings()
            if not found:
                raise
            raise EmulatorError(found) from error


def pointers(layout: np.dtype[Any], start: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the names and byte offsets of a struct's pointers, at any depth, including those in tensor maps."""
    for name in layout.names or ():
        kind, offset = layout.fields[name][:2]
        if kind == np.uint64:
            yield name, start + offset
        elif kind == structs.MAP:
            yield name, start + offset + _ADDRESS_IN_MAP
        else:
            yield from pointers(kind, start + offset)


def visible() -> Any:
    """Show the device to a test from which it is hidden, as from most."""
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
    schedule: str = "turns",
    threads: int = 1,
    **options: Any,
) -> Iterator[EmulatedCuda]:
    """Run gpuconv's operators on NumPy arrays on the emulated device; each launch runs at once.

    Parameters
    ----------
    architecture : str, optional
        Architecture that all kernels are compiled for. By default each kernel has its own, the same in all tests, which
        so share compiled kernels.
    multiprocessors : int, optional
        Number that planners see; by default that of the architecture's representative device.
    limits_of : str
        Architecture whose representative device planners see, if ``architecture`` is not given.
    counters : bool
        Count instructions, bank conflicts and sectors.
    async_order, late_async
        "late", "at once" or "random": when a kernel's asynchronous copies land; "at once" if late_async is False.
    schedule : str
        "turns", "first", "last", "backwards" or "changing": which warps run next, see the engine's `Options`.
    threads : int
        Host threads that run the blocks of a grid.
    **options
        Fields of the emulated driver's `Settings`: seed, host_threads, check_shared, check_global, max_steps.

    Raises
    ------
    EmulatorError
        A kernel violated a check, or elements of a result were never written.
    Unsuitable
        The emulated driver is not available, or a real one is in use.
    """
    limits = representative(architecture or limits_of).limits
    emulated = EmulatedCuda(architecture, replace(limits, multiprocessors=multiprocessors or limits.multiprocessors))
    settings = {
        "capability": int(limits.architecture.removeprefix("sm_").rstrip("a")),
        "multiprocessors": emulated.limits.multiprocessors,
        "late": False,
        "async_order": ASYNC_ORDERS.index(async_order if late_async else "at once"),
        "schedule": SCHEDULES.index(schedule),
        "host_threads": threads,
    }
    reason = cuda_device.emulated_unavailable_reason()
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
        stack.enter_context(moved_to_device(emulated))
        yield emulated
