"""CuPy on the emulated device with kernels that do nothing, to observe what calls request of the driver.

with idle_kernels(tmp_path) as sent:
    y = gpuconv.conv(gpuconv.to_device(x), gpuconv.to_device(w))  # nothing is compiled or computed
    sent.launches[0].parameters  # the bytes that the driver received
"""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from emulated_cuda import control
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device, tensor_map
from tests.emulator.device import visible

_PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry {name}(.param .align 64 .b8 parameters[{nbytes}])
{{
    ret;
}}
"""


@dataclass
class Sent:
    """Requests to the driver.

    Attributes
    ----------
    cupy : the CuPy module.
    launches : in order; each runs as late as possible.
    loads : name and device of each kernel that was loaded.
    allocations : sizes in bytes, in order.
    times : milliseconds that events measure, by kernel name; 1 by default.
    """

    cupy: Any
    launches: list[control.Launch] = field(default_factory=list)
    loads: list[tuple[str, int]] = field(default_factory=list)
    allocations: list[int] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    _before: int = field(default_factory=lambda: int(control.driver().emulated_launches()))

    @property
    def have_run(self) -> int:
        """The number of launches that have run: 0 unless something has synchronised with the device."""
        return int(control.driver().emulated_launches()) - self._before

    @contextmanager
    def room(self, nbytes: int) -> Iterator[None]:
        """Limit the device memory for new arrays in this thread; allocations are rounded up to 512 bytes."""
        pool = self.cupy.cuda.MemoryPool()
        pool.set_limit(size=nbytes)
        with self.cupy.cuda.using_allocator(pool.malloc):
            yield


def _nothing(variant: Variant, architecture: str) -> bytes:
    return _PTX.format(name=variant.name, nbytes=variant.layout.itemsize).encode()


@contextmanager
def idle_kernels(folder: Path, **settings: Any) -> Iterator[Sent]:
    """Replace all of gpuconv's kernels by empty ones; ``settings`` are fields of the emulated driver's settings.

    Measured choices are stored in ``folder``, apart from the user's.
    """
    cupy = importlib.import_module("cupy")
    sent = Sent(cupy)

    class Module(cupy.cuda.Module):  # type: ignore[misc, name-defined]
        def get_function(self, name: str) -> Any:
            sent.loads.append((name, device.current_device()))
            return super().get_function(name)

    class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc, name-defined]
        def malloc_preprocess(self, *, size: int, **_: Any) -> None:
            sent.allocations.append(size)

    class Event(cupy.cuda.Event):  # type: ignore[misc, name-defined]
        launches = 0

        def record(self, stream: Any = None) -> None:
            super().record(stream)
            self.launches = len(sent.launches)

    def elapsed(begin: Event, end: Event, real: Any = cupy.cuda.get_elapsed_time) -> float:
        real(begin, end)  # raises if an event has not completed
        return float(sum(sent.times.get(launch.name, 1.0) for launch in sent.launches[begin.launches : end.launches]))

    with ExitStack() as stack:
        gc.disable()  # collecting a module would unload it, which synchronises with the device
        stack.callback(gc.enable)
        stack.callback(cupy.cuda.runtime.deviceSynchronize)
        stack.enter_context(visible())
        stack.enter_context(control.changed(late=True, **settings))
        stack.enter_context(control.watched(sent.launches.append))
        stack.enter_context(mock.patch.object(compiler, "cubin", _nothing))
        stack.enter_context(mock.patch.multiple(cupy.cuda, Module=Module, Event=Event, get_elapsed_time=elapsed))
        stack.enter_context(mock.patch.dict(os.environ, GPUCONV_CACHE_DIR=str(folder / "cache")))
        stack.callback(tensor_map.driver.cache_clear)
        for known in (device.prepared, device._limits, device._kernels):
            stack.enter_context(mock.patch.dict(known, clear=True))
        stack.enter_context(Hook())
        stack.callback(cupy.cuda.runtime.deviceSynchronize)
        yield sent
