"""What gpuconv.cuda.call.device uses of CuPy, on the memory of the host: it records launches, and fails when told to.

with cupy_stand_in() as cupy:
    y = gpuconv.conv(gpuconv.to_device(x), gpuconv.to_device(w))  # nothing is computed
    cupy.launches[0].parameters  # the bytes that the driver would have copied
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device, tensor_map


@dataclass(frozen=True)
class Launch:
    """One launch as the driver would have seen it."""

    name: str
    device: int
    stream: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: bytes


@dataclass(frozen=True)
class EncodedMap:
    """What the driver was asked to encode: its function's arguments in order, but for where the map goes."""

    function: str
    arguments: tuple[Any, ...]


class DriverError(RuntimeError):
    """Stands for CuPy's CUDARuntimeError and CUDADriverError."""


class OutOfMemoryError(MemoryError):
    """Stands for CuPy's error of this name."""


class Memory:
    """A piece of device memory: some of the host's, or what another library owns."""

    def __init__(self, ptr: int, device_id: int, owner: Any) -> None:
        self.ptr, self.device_id, self.mem = ptr, device_id, owner

    def __add__(self, nbytes: int) -> Memory:
        return Memory(self.ptr + nbytes, self.device_id, self.mem)

    def memset_async(self, value: int, size: int, stream: Stream) -> None:
        assert self.mem.nbytes >= size


class Stream:
    """A stream: CuPy's null stream has no device."""

    def __init__(self, standin: StandIn, ptr: int, device_id: int, capturing: bool = False) -> None:
        self.ptr, self.device_id, self.waits = ptr, device_id, []
        self._standin, self._capturing = standin, capturing

    def is_capturing(self) -> bool:
        self._standin.queries += 1
        return self._capturing

    def synchronize(self) -> None:
        self._standin.synchronisations += 1

    def wait_event(self, event: Any) -> None:
        self.waits.append(event.recorded)

    def __enter__(self) -> Stream:
        self._before = self._standin.streams.get(self._standin.current)
        self._standin.streams[self._standin.current] = self
        return self

    def __exit__(self, *_: Any) -> None:
        self._standin.streams[self._standin.current] = self._before or self._standin.null


class StandIn:
    """The state behind the module, and the module's attributes.

    Attributes
    ----------
    launches : list of Launch
    capabilities : list of str, one per device
    no_driver, refusal : str or None
        What the driver says to any question, and to a launch.
    memory_left : int
        Bytes; a larger allocation fails.
    times : dict of str to float
        Milliseconds that kernels take.
    allocations : list of int
        Bytes, in order.
    maps : list of EncodedMap
    driver_version : int
    version_code : int
        What asking for it returns: 0 for success.
    map_code : int
        What encoding a map returns: 0 for success, 201 where the thread has no context yet.
    """

    def __init__(self, capabilities: list[str]) -> None:
        self.capabilities = capabilities
        self.no_driver: str | None = None
        self.refusal: str | None = None
        self.memory_left = 2**40
        self.times: dict[str, float] = {}
        self.launches: list[Launch] = []
        self.loads: list[tuple[str, int]] = []
        self.functions: list[_Function] = []
        self.shared_limits: list[tuple[str, int]] = []
        self.allocations: list[int] = []
        self.maps: list[EncodedMap] = []
        self.driver_version, self.version_code, self.map_code = 13020, 0, 0
        self.synchronisations = self.queries = 0
        self.null = Stream(self, 0, -1)
        self.streams: dict[int, Stream] = {}
        self._of_thread = threading.local()
        self.module = self._module()

    @property
    def current(self) -> int:
        """The calling thread's device."""
        return getattr(self._of_thread, "device", 0)

    def stream(self, ptr: int, device_id: int = 0, capturing: bool = False) -> Stream:
        return Stream(self, ptr, device_id, capturing)

    def allocate(self, nbytes: int) -> Memory:
        if nbytes > self.memory_left:
            raise OutOfMemoryError(f"Out of memory allocating {nbytes:,} bytes")
        self.allocations.append(nbytes)
        room = np.zeros(nbytes + 512, np.uint8)  # CuPy's pool gives addresses of whole 512 bytes
        return Memory(-(-room.ctypes.data // 512) * 512, self.current, room)

    def libcuda(self) -> Any:
        """Return the driver's library: C functions with the prototypes of cuda.h, for maps that tell addresses apart.

        A map's first word is the address, all bits of the second are set.
        """
        enum, u32, pointer = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
        u32s, u64s, ints = map(ctypes.POINTER, (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int))

        def encoded(function: str, room: int, *arguments: Any) -> int:
            assert room % 64 == 0
            dtype, rank, address, *rest = arguments
            counts = {"cuTensorMapEncodeTiled": (rank, rank - 1, rank, rank)}.get(
                function, (rank, rank - 1, rank - 2, rank - 2, rank)
            )
            lengths = iter(counts)
            read = [one[: next(lengths)] if hasattr(one, "contents") else one for one in rest]
            self.maps.append(EncodedMap(function, (dtype, rank, address, *read)))
            if self.map_code == 0:
                words = (ctypes.c_uint64 * 16).from_address(room)
                words[:] = [address, 2**64 - 1, *range(3, 17)]
            return self.map_code

        def version(found: Any) -> int:
            found[0] = self.driver_version
            return self.version_code

        def error_name(code: int, name: Any) -> int:
            name[0] = b"CUDA_ERROR_INVALID_VALUE" if code == 1 else None
            return 0 if code == 1 else 1

        array, loading = (pointer, enum, u32, pointer, u64s, u64s), (enum, enum, enum, enum)
        prototypes: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "cuTensorMapEncodeTiled": (partial(encoded, "cuTensorMapEncodeTiled"), (*array, u32s, u32s, *loading)),
            "cuTensorMapEncodeIm2col": (
                partial(encoded, "cuTensorMapEncodeIm2col"),
                (*array, ints, ints, u32, u32, u32s, *loading),
            ),
            "cuDriverGetVersion": (version, (ints,)),
            "cuGetErrorName": (error_name, (enum, ctypes.POINTER(ctypes.c_char_p))),
        }
        made = {name: ctypes.CFUNCTYPE(enum, *types)(function) for name, (function, types) in prototypes.items()}
        return SimpleNamespace(**made)

    def _module(self) -> Any:
        standin = self

        class ndarray(_Array):  # noqa: N801  # as CuPy calls it
            __module__ = "cupy"

            def __new__(cls, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None) -> Any:
                self = super().__new__(cls)
                size = int(np.prod(shape)) * np.dtype(dtype).itemsize
                self.data = standin.allocate(size) if memptr is None else memptr
                self.base = None
                self.host = _host_array(tuple(shape), np.dtype(dtype), self.data.ptr, strides)
                return self

            def get(self) -> Any:
                standin.synchronisations += 1
                return self.host.copy(order="C")

        class Device:
            def __init__(self, number: int) -> None:
                self.number = number
                self.compute_capability = standin.capabilities[number]
                self.attributes = {
                    "MultiProcessorCount": 132,
                    "MaxSharedMemoryPerBlockOptin": 232448,
                    "MaxSharedMemoryPerMultiprocessor": 233472,
                    "L2CacheSize": 50 * 2**20,
                }

            def __enter__(self) -> None:
                self.before, standin._of_thread.device = standin.current, self.number

            def __exit__(self, *_: Any) -> None:
                standin._of_thread.device = self.before

        def from_dlpack(tensor: Any) -> Any:
            stream = standin.streams.get(standin.current, standin.null)
            capsule = tensor.__dlpack__(stream=stream.ptr or 1)
            memory = Memory(capsule["ptr"], tensor.__dlpack_device__()[1], capsule)
            return ndarray(capsule["shape"], capsule["dtype"], memory, capsule["strides"])

        def event_record(event: Any, stream: int) -> None:
            event.recorded = stream

        def asarray(host: Any) -> Any:
            new = ndarray(host.shape, host.dtype)
            new.host[...] = host
            return new

        runtime = SimpleNamespace(
            getDeviceCount=standin.count_devices,
            getDevice=lambda: standin.current,
            getDeviceProperties=lambda number: {"name": f"Stand-in {standin.capabilities[number]}".encode()},
            eventRecord=event_record,
            free=standin.free,
        )
        cuda = SimpleNamespace(
            runtime=runtime,
            Device=Device,
            get_current_stream=lambda: standin.streams.get(standin.current, standin.null),
            alloc=standin.allocate,
            function=SimpleNamespace(CPointer=lambda address: address),
            Module=lambda: _Module(standin),
            driver=SimpleNamespace(
                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8, funcSetAttribute=standin.set_attribute
            ),
            Event=lambda disable_timing=False: _Event(standin),
            get_elapsed_time=standin.milliseconds,
            UnownedMemory=lambda ptr, size, owner, number: Memory(ptr, max(number, 0), owner),
            MemoryPointer=lambda memory, offset: memory,
        )
        return SimpleNamespace(
            ndarray=ndarray,
            cuda=cuda,
            asarray=asarray,
            ascontiguousarray=lambda a: a if a.flags.c_contiguous else asarray(a.host),
            from_dlpack=from_dlpack,
        )

    def milliseconds(self, begin: _Event, end: _Event) -> float:
        """Return the sum over the launches between of what `times` has for their kernels, or else 1.

        Nobody but who has waited for the end may ask: of a device that is at work, cudaEventElapsedTime knows nothing.
        """
        assert end.is_over, "cudaErrorNotReady"
        return float(sum(self.times.get(launch.name, 1.0) for launch in self.launches[begin.launches : end.launches]))

    def set_attribute(self, function: int, attribute: int, value: int) -> None:
        """Note how much shared memory a function may take, as the driver is told by this attribute."""
        assert attribute == 8, "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of cuda.h"
        self.shared_limits.append((self.functions[function].name, value))

    def free(self, address: int) -> None:
        """Free nothing, which makes a context current."""
        assert address == 0
        self.map_code = 0 if self.map_code == 201 else self.map_code

    def count_devices(self) -> int:
        if self.no_driver:
            raise DriverError(self.no_driver)
        return len(self.capabilities)


class _Event:
    recorded: int | None = None
    launches = 0
    is_over = False

    def __init__(self, standin: StandIn) -> None:
        self._standin = standin

    def record(self, stream: Stream) -> None:
        self.recorded, self.launches, self.is_over = stream.ptr, len(self._standin.launches), False

    def synchronize(self) -> None:
        self._standin.synchronisations += 1
        self.is_over = True

    @property
    def ptr(self) -> Any:
        return self


class _Array:
    """The members of cupy.ndarray that gpuconv uses, on a NumPy array of the same memory."""

    data: Memory
    host: Any
    base: Any

    shape = property(lambda self: self.host.shape)
    strides = property(lambda self: self.host.strides)
    dtype = property(lambda self: self.host.dtype)
    ndim = property(lambda self: self.host.ndim)
    size = property(lambda self: self.host.size)
    itemsize = property(lambda self: self.host.itemsize)
    nbytes = property(lambda self: self.host.nbytes)

    @property
    def flags(self) -> Any:
        return SimpleNamespace(c_contiguous=self.host.flags.c_contiguous)  # CuPy's know nothing of writing

    def _view(self, host: Any) -> Any:
        memory = Memory(host.ctypes.data, self.data.device_id, self.data.mem)
        view = type(self)(host.shape, host.dtype, memory, host.strides)
        view.base = self if self.base is None else self.base
        return view

    def __getitem__(self, key: Any) -> Any:
        return self._view(self.host[key])

    def view(self, dtype: Any) -> Any:
        return self._view(self.host.view(dtype))

    def transpose(self, axes: Any) -> Any:
        return self._view(self.host.transpose(axes))

    def reshape(self, shape: Any) -> Any:
        return self._view(self.host.reshape(shape))

    def copy(self) -> Any:
        new = type(self)(self.host.shape, self.host.dtype)
        new.host[...] = self.host
        return new


class _Module:
    def __init__(self, standin: StandIn) -> None:
        self._standin = standin

    def load(self, content: bytes) -> None:
        assert type(content) is bytes, "CuPy takes nothing else"
        self._sizes = json.loads(content)

    def get_function(self, name: str) -> _Function:
        self._standin.loads.append((name, self._standin.current))
        return _Function(self._standin, name, self._sizes[name])


class _Function:
    """A handle that the driver knows, and what launches it."""

    def __init__(self, standin: StandIn, name: str, nbytes: int) -> None:
        self._standin, self.name, self._nbytes = standin, name, nbytes
        self.ptr = len(standin.functions)
        standin.functions.append(self)

    def __call__(self, grid: Any, block: Any, arguments: Any, shared_bytes: int) -> None:
        if self._standin.refusal:
            raise DriverError(self._standin.refusal)
        (pointer,) = arguments
        parameters = ctypes.string_at(pointer, self._nbytes)
        stream = self._standin.streams.get(self._standin.current, self._standin.null)
        launch = Launch(self.name, self._standin.current, stream.ptr, grid, block, shared_bytes, parameters)
        self._standin.launches.append(launch)


def _host_array(shape: tuple[int, ...], dtype: np.dtype[Any], address: int, strides: Any) -> Any:
    interface = {
        "version": 3,
        "shape": shape,
        "typestr": f"|V{dtype.itemsize}",
        "data": (address, False),
        "strides": strides,
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface)).view(dtype)


@contextmanager
def cupy_stand_in(folder: Path, capabilities: tuple[str, ...] = ("90",)) -> Iterator[StandIn]:
    """Let gpuconv.cuda.call.device find a stand-in for CuPy, with one device of each capability; compiling is left out.

    Choices that were measured are kept in the folder, and not found in the user's.
    """
    standin = StandIn(list(capabilities))

    def cubin(variant: Variant, architecture: str) -> bytes:
        return json.dumps({variant.name: variant.layout.itemsize}).encode()

    caches = [mock.patch.dict(cache, clear=True) for cache in (device.prepared, device._limits, device._kernels)]
    patches = [mock.patch.dict(sys.modules, cupy=standin.module), mock.patch.object(compiler, "cubin", cubin), *caches]
    patches.append(mock.patch.dict(os.environ, GPUCONV_CACHE_DIR=str(folder / "cache")))
    patches.append(mock.patch("gpuconv.cuda.build.nvrtc.capabilities", return_value=((8, 0), (9, 0))))
    patches.append(mock.patch.object(tensor_map, "load", standin.libcuda))
    tensor_map.driver.cache_clear()
    for patch in patches:
        patch.start()
    try:
        yield standin
    finally:
        tensor_map.driver.cache_clear()
        for patch in reversed(patches):
            patch.stop()
