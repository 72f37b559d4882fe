"""Run gpuconv's public functions on NumPy arrays, on the emulated CUDA device, and record every kernel launch.

`emulated_cuda` is the context in which tests of CUDA kernels run. It moves NumPy arrays to the device, compiles kernels
to PTX, and raises EmulatorError if a check of the emulator fails or an element of a result was not written.
"""

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

_ADDRESS_IN_MAP = 0  # byte offset of the address in an encoded tensor map, as in async.hpp of the emulator


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """A launch of one of gpuconv's kernels.

    Attributes
    ----------
    variant : Variant
        The kernel.
    launch : control.Launch
        Grid, block, parameters and, if requested, counters.
    """

    variant: Variant
    launch: control.Launch

    grid = property(lambda self: self.launch.grid)
    threads = property(lambda self: prod(self.launch.block))
    shared_bytes = property(lambda self: self.launch.shared_bytes)
    parameters = property(lambda self: self.launch.parameters)
    counters = property(lambda self: self.launch.counters)

    def names(self) -> dict[int, str]:
        """Return the names of the arrays that the parameters point to, by address: members of the kernel's struct."""
        found = pointers(self.variant.layout)
        return {int.from_bytes(self.parameters[at : at + 8], "little"): name for name, at in found}


@dataclass
class EmulatedCuda:
    """The state of one `emulated_cuda` context, and the launches that it has seen.

    The methods `limits_of`, `ptx` and `seconds` replace functions of gpuconv.cuda.

    Attributes
    ----------
    architecture : str or None
        The architecture that all kernels are compiled for; None if `turn` chooses one for each.
    limits : Limits
        The device limits that planners see.
    prepared : dict
        gpuconv.cuda's cache of calls that are ready to launch.
    launches : list of LaunchRecord
        All launches, in order.
    """

    architecture: str | None
    limits: Limits
    prepared: dict[Any, Any] = field(default_factory=dict)
    launches: list[LaunchRecord] = field(default_factory=list)
    _variants: dict[str, Variant] = field(default_factory=dict)

    def limits_of(self, _: int) -> Limits:
        """Return the device limits, instead of asking the driver."""
        return self.limits

    def ptx(self, variant: Variant, _: str) -> bytes:
        """Return the PTX of a kernel, instead of machine code; the architecture that is passed is ignored."""
        architecture = self.architecture or turn(variant)
        self._variants[variant.name] = variant
        return compiler.ptx(variant, architecture).encode()

    def see(self, launch: control.Launch) -> None:
        """Record a launch of gpuconv's, and name the arrays that it uses, for messages."""
        variant = self._variants.get(launch.name)
        if variant is None:  # a kernel of CuPy's
            return
        record = LaunchRecord(variant, launch)
        for address, name in record.names().items():
            control.name(address, name)
        tally.add(variant.name, self.architecture or turn(variant))
        self.launches.append(record)

    def counters(self) -> dict[str, Counters]:
        """Return the sums of each kernel's counters over all launches; empty unless `counters` was requested."""
        sums: dict[str, Counters] = {}
        for record in self.launches:
            if record.counters is not None:
                name = record.variant.name
                sums[name] = sums[name] + record.counters if name in sums else record.counters
        return sums

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return a reproducible time for tuning: one nanosecond per launched thread."""
        before = len(self.launches)
        run()
        return sum(record.threads * prod(record.grid) for record in self.launches[before:]) / 1e9

    @contextmanager
    def findings_raised(self) -> Iterator[None]:
        """Replace the CUDA error of a failed kernel by an EmulatorError with the findings of the check."""
        control.findings()
        try:
            yield
        except (gpuconv.GpuconvError, RuntimeError) as error:
            found = control.findings()
            if not found:
                raise
            raise EmulatorError(found) from error


def pointers(layout: np.dtype[Any], start: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the name and byte offset of each pointer in a kernel's struct: nested ones and those in tensor maps too."""
    for name in layout.names or ():
        kind, offset = layout.fields[name][:2]
        if kind == np.uint64:
            yield name, start + offset
        elif kind == structs.MAP:
            yield name, start + offset + _ADDRESS_IN_MAP
        else:
            yield from pointers(kind, start + offset)


def visible() -> Any:
    """Return a context in which CuPy finds the device; most tests run with the device hidden."""
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
    """Run gpuconv's operators on the emulated device in this context; they take and return NumPy arrays.

    Each launch runs at once.

    Parameters
    ----------
    architecture : str, optional
        Architecture to compile all kernels for. By default each kernel is compiled for one of those that it supports,
        the same one in all tests, so that tests share compiled kernels.
    multiprocessors : int, optional
        Number of SMs that planners see; by default that of a common device of the architecture.
    limits_of : str
        Architecture of the device that planners see, if `architecture` is None.
    counters : bool
        Whether to count instructions, shared-memory wavefronts and global sectors.
    async_order, late_async
        When asynchronous copies of kernels land: "late", "at once" or "random"; False for late_async is "at once".
    schedule : str
        Which warp runs next: "turns", "first", "last", "backwards" or "changing" (emulator.engine.Options).
    threads : int
        Host threads that run the blocks of a grid.
    **options
        Further fields of `emulated_cuda.Settings`: seed, check_shared, check_global, max_steps and others.

    Raises
    ------
    EmulatorError
        A check of a kernel failed, or elements of a result were never written.
    Unsuitable
        The emulated driver is not available here, or a real one is in use.
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
