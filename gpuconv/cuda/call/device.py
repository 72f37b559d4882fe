"""The device runtime: the only module that imports CuPy, and only when a device is asked for.

All functions act on the calling thread's current device and current stream, as CuPy's own do.
"""

from __future__ import annotations

import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from math import prod
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuconv import _environment
from gpuconv._errors import ArgumentTypeError, DeviceError, OutOfDeviceMemory
from gpuconv.cuda.turns import turn

if TYPE_CHECKING:
    from gpuconv.cuda.build.variant import Variant
    from gpuconv.cuda.plan.launch import TensorMap
    from gpuconv.cuda.plan.limits import Limits

prepared: dict[Any, Any] = {}  # cached calls, by everything that a plan depends on
_limits: dict[int, Limits] = {}
_kernels: dict[tuple[int, Variant], Kernel] = {}
captures: dict[int, Any] = {}  # thread → memory of the graph that it captures by gpuconv.graph
_loading = threading.Lock()
_SHARED_BYTES = 48 * 1024  # bytes per block without opt-in
_LEGACY_STREAM = 1


# ---------------------------------------------------------------- finding devices


def unavailable_reason() -> str | None:
    """Return why no CUDA device can be used; None if one can."""
    try:
        cupy: Any = importlib.import_module("cupy")
    except Exception as error:  # CuPy without its libraries fails in many ways, all meaning "no device"
        return f"CuPy cannot be imported: {error}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return f"the CUDA driver reports {error}"
    return None if count else "the CUDA driver lists no device"


def library() -> Any:
    """Import and return CuPy; DeviceError if it is not installed or finds no device."""
    reason = unavailable_reason()
    if reason is not None:
        raise DeviceError(f"no CUDA device was found ({reason}); pass NumPy arrays to run on the CPU")
    return importlib.import_module("cupy")


def array_type() -> type | None:
    """Return the class of device arrays; None if CuPy has not been imported, so that there can be none."""
    cupy = sys.modules.get("cupy")
    try:
        return None if cupy is None else cupy.ndarray
    except AttributeError:  # CuPy is being imported
        return None


def current_device() -> int:
    """Return the number of the current device."""
    number: int = sys.modules["cupy"].cuda.runtime.getDevice()
    return number


device_of = attrgetter("data.device_id")  # number of the device that holds an array
layout = attrgetter("shape", "strides", "dtype", "data.device_id")  # everything that a call depends on, except values


def limits(device: int) -> Limits:
    """Return what planning needs to know about a device; DeviceError if it is older than the oldest supported."""
    from gpuconv.cuda.build import compile as compiler
    from gpuconv.cuda.call import tuned
    from gpuconv.cuda.plan.limits import Limits, rates_of

    known = _limits.get(device)
    if known is None:
        described = library().cuda.Device(device)
        attributes, capability = described.attributes, described.compute_capability  # capability as text: "90"
        name = library().cuda.runtime.getDeviceProperties(device)["name"].decode(errors="replace")
        architecture = compiler.architecture((int(capability[:-1]), int(capability[-1])))
        known = _limits[device] = Limits(
            architecture=architecture,
            multiprocessors=attributes["MultiProcessorCount"],
            shared_bytes_per_block=attributes["MaxSharedMemoryPerBlockOptin"],
            shared_bytes_per_multiprocessor=attributes["MaxSharedMemoryPerMultiprocessor"],
            name=name,
            rates=rates_of(name, architecture),
            bandwidth=_bandwidth(attributes),
            measured=partial(tuned.find, name),
        )
    return known


def _bandwidth(attributes: Mapping[str, int]) -> float:
    """Return a device's memory bandwidth in bytes per second; 0 if the driver does not report it."""
    kilohertz, bits = (attributes.get(name, 0) for name in ("MemoryClockRate", "GlobalMemoryBusWidth"))
    return 2e3 * max(kilohertz, 0) * max(bits, 0) / 8  # DDR: two transfers per clock


# ---------------------------------------------------------------- kernels


@dataclass(slots=True)
class Kernel:
    """A kernel loaded on one device, with the dynamic shared memory that it is configured for."""

    function: Any
    shared_bytes: int = _SHARED_BYTES


class Slot:
    """A buffer for a kernel's parameters, which may be overwritten as soon as the launch call has returned."""

    __slots__ = ("arguments", "buffer")

    def __init__(self, template: bytes) -> None:
        cupy = sys.modules["cupy"]
        self.buffer = np.frombuffer(template, np.uint8).copy()
        self.arguments = (cupy.cuda.function.CPointer(self.buffer.ctypes.data),)


def load(variant: Variant, device: int, shared_bytes: int) -> Kernel:
    """Compile a kernel unless cached, and load it on a device, which must be the current one.

    Raises CompileError if the compiler refuses, DeviceError if the driver does.
    """
    from gpuconv.cuda.build import compile as compiler

    kernel = _kernels.get((device, variant))
    if kernel is None:
        content = compiler.cubin(variant, limits(device).architecture)
        module = library().cuda.Module()  # RawModule would read the file again, which might have been replaced
        try:
            module.load(content)
            kernel = Kernel(module.get_function(variant.name))
        except RuntimeError as error:
            raise DeviceError(f"the kernel {variant.name} could not be loaded on device {device}: {error}") from error
    with turn(_loading, 1.0):  # two threads may race: the larger size must win
        kernel = _kernels.setdefault((device, variant), kernel)
        if shared_bytes > kernel.shared_bytes:
            driver = library().cuda.driver
            largest = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.funcSetAttribute(kernel.function.ptr, largest, shared_bytes)
            kernel.shared_bytes = shared_bytes
    return kernel


parameters = Slot


def bind(
    kernel: Kernel, grid: tuple[int, int, int], threads: int, shared_bytes: int, slot: Slot, follows: bool = False
) -> Callable[[], None]:
    """Return a function that launches a kernel on the current stream, asynchronously; RuntimeError on refusal.

    A kernel that ``follows`` may start before the previous launch has ended (programmatic dependent launch). It must
    wait by itself.
    """
    if follows:
        return _following(kernel.function.ptr, grid, threads, shared_bytes, slot)
    return partial(kernel.function, grid, (threads, 1, 1), slot.arguments, shared_bytes)


def chains(device: int) -> bool:
    """Return whether a call's launches may overlap: if enabled, and supported by device and driver.

    Raises ArgumentError if GPUCONV_CHAINED_LAUNCHES has an invalid value.
    """
    from gpuconv.cuda.build.variant import can_chain

    asked = _environment.chained_launches()
    return asked and can_chain(limits(device).architecture) and _bindings() is not None


@cache
def _bindings() -> Any:
    """Return NVIDIA's driver binding; None if it is not installed or belongs to another CUDA version."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return None


def _following(
    function: int, grid: tuple[int, int, int], threads: int, shared_bytes: int, slot: Slot
) -> Callable[[], None]:
    """Return a function that launches with a programmatic-dependent-launch attribute, which CuPy does not support.

    A plain launch precedes it, which has given the thread a CUDA context.
    """
    driver, current = _bindings(), library().cuda.get_current_stream
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes, config.attrs, config.numAttrs = shared_bytes, [attribute], 1
    parameters = np.array([slot.buffer.ctypes.data], np.uint64)  # addresses of the parameters; there is one
    start, places = driver.cuLaunchKernelEx, parameters.ctypes.data

    def launch(_: Any = parameters) -> None:
        """Launch on the current stream; the default argument keeps the parameters alive."""
        config.hStream = current().ptr
        (code,) = start(config, function, places, 0)
        if code:
            raise RuntimeError(code.name)

    return launch


def tensor_map(described: TensorMap) -> Callable[[int], memoryview]:
    """Return a function from an array's address to the 16 words of its tensor map.

    Raises DeviceError if the driver has no tensor maps; the returned function raises it if the driver refuses one.
    """
    from gpuconv.cuda.call.tensor_map import Encoder

    return Encoder(described, partial(sys.modules["cupy"].cuda.runtime.free, 0))


# ---------------------------------------------------------------- memory


class Workspace:
    """Device memory without a shape."""

    __slots__ = ("data",)

    def __init__(self, data: Any) -> None:
        self.data = data


def empty(shape: tuple[int, ...], dtype: Any, purpose: str) -> Any:
    """Return a new, uninitialised, C-contiguous array.

    OutOfDeviceMemory names ``purpose`` and the number of bytes.
    """
    array = sys.modules["cupy"].ndarray
    try:
        return array.__new__(array, shape, dtype)  # equivalent to its constructor, but faster
    except MemoryError as error:
        raise _out_of_memory(purpose, prod(shape) * np.dtype(dtype).itemsize, error) from error


def workspace(nbytes: int, purpose: str) -> Workspace:
    """Return memory for launches on the current stream; it may be dropped before they have run.

    CuPy's pool reuses it on the same stream only, in order. Errors as in :func:`empty`.
    """
    try:
        return Workspace(sys.modules["cupy"].cuda.alloc(nbytes))
    except MemoryError as error:
        raise _out_of_memory(purpose, nbytes, error) from error


def parts(workspace: Workspace, sizes: Sequence[int]) -> list[int]:
    """Return the addresses of consecutive parts of a workspace with these sizes in bytes."""
    start: int = workspace.data.ptr
    return [start + before for before in accumulate(sizes[:-1], initial=0)]


def _out_of_memory(purpose: str, nbytes: int, error: Exception) -> OutOfDeviceMemory:
    """Return the error for an allocation that failed."""
    return OutOfDeviceMemory(f"{purpose} needs {nbytes} bytes, which do not fit on device {current_device()} ({error})")


address = attrgetter("data.ptr")  # address of an array's first element, or of a workspace


def keep(memory: Any, results: Sequence[Any], inputs: Sequence[Any] = ()) -> None:
    """While the current stream captures a graph, keep ``memory`` alive as long as the first result's memory.

    The graph uses both at every launch; otherwise a workspace would return to the pool. A graph of
    :mod:`gpuconv.cuda.call.graph` owns workspaces already, and keeps inputs and results alive instead. ``memory`` may
    be None.
    """
    if captures and (graph := captures.get(threading.get_ident())) is not None:
        graph.keep((*inputs, *results))
    elif memory is not None and _captures(sys.modules["cupy"]):
        owner = results[0] if results[0].base is None else results[0].base
        weakref.finalize(owner, _drop, memory).atexit = False


def _drop(_: Any) -> None:
    """Drop memory: the finalizer held the last reference to it."""


def is_capturing() -> bool:
    """Return whether the current stream is capturing a graph."""
    return _captures(library())


def _captures(cupy: Any) -> bool:
    """Return whether CuPy's current stream is capturing a graph."""
    stream = cupy.cuda.get_current_stream()
    return bool(stream.ptr > _LEGACY_STREAM and stream.is_capturing())


def current_stream() -> Any:
    """Return the calling thread's current stream, as a CuPy object."""
    return sys.modules["cupy"].cuda.get_current_stream()


def wait() -> None:
    """Block until all work on the current stream is done."""
    library().cuda.get_current_stream().synchronize()


# ---------------------------------------------------------------- time

_SAMPLES = 11


def seconds(run: Callable[[], Any]) -> float:
    """Return the device time of a call: the median of several, each after flushing the L2 cache.

    While the cache is being flushed the host runs ahead, so launch overhead is not measured.
    """
    cupy = library()
    stream = cupy.cuda.get_current_stream()
    nbytes = 2 * cupy.cuda.Device(current_device()).attributes["L2CacheSize"]
    other = workspace(nbytes, "tune: what fills the L2 cache").data
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    times = []
    for sample in range(_SAMPLES):
        other.memset_async(sample, nbytes, stream)
        begin.record(stream)
        run()
        end.record(stream)
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end) / 1e3)
    return float(median(times[1:]))  # the first call may have waited for its memory


# ---------------------------------------------------------------- transfer


def _bits(array: Any) -> Any:
    """Return the memory as integers: CuPy's own kernels flush subnormals, except for 16-byte elements."""
    return array.view(np.dtype(f"u{array.itemsize}") if array.itemsize <= 8 else array.dtype)


def copied(array: Any, purpose: str) -> Any:
    """Return a C-contiguous bitwise copy of an array on the current device; errors as in :func:`empty`."""
    try:
        return _bits(array).copy().view(array.dtype)
    except MemoryError as error:
        raise _out_of_memory(purpose, array.nbytes, error) from error


def dense_copy(array: Any, purpose: str) -> Any:
    """Return a bitwise copy with the array's order of axes in memory; a broadcast array is copied in C order."""
    order, back = _memory_order(array)
    if any(step == 0 and extent > 1 for step, extent in zip(array.strides, array.shape, strict=True)):
        order = back = list(range(array.ndim))
    copy = empty(tuple(array.shape[axis] for axis in order), array.dtype, purpose).transpose(back)
    write(copy, array)
    return copy


def write(target: Any, array: Any) -> None:
    """Copy an array into another of the same shape and dtype, bitwise; CuPy handles overlapping memory."""
    if target.data.ptr != array.data.ptr or target.strides != array.strides:
        _bits(target)[...] = _bits(array)


def strided(flat: Any, shape: tuple[int, ...], strides: tuple[int, ...], start: int) -> Any:
    """Return an array on another one's memory that starts ``start`` bytes after its first element; strides in bytes."""
    return sys.modules["cupy"].ndarray(shape, flat.dtype, flat.data + start, strides)


def to_device(array: Any) -> Any:
    """Copy a NumPy array, or another device's CuPy array, to the current device, keeping dtype and memory order."""
    cupy = library()
    order, back = _memory_order(array)
    try:
        if isinstance(array, cupy.ndarray):
            return _from_another(cupy, array.transpose(order)).transpose(back)
        if array.dtype.hasobject or not array.dtype.isnative:
            raise TypeError("a device reads numbers in its own byte order only")
        packed = np.asarray(array.transpose(order), order="C")
        return cupy.asarray(packed.reshape(-1)).reshape(packed.shape).transpose(back)
    except MemoryError as error:
        raise _out_of_memory(f"to_device: a copy of an array of shape {array.shape}", array.nbytes, error) from error
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"to_device: CuPy cannot hold an array of dtype {array.dtype}: {error}") from error


def _from_another(cupy: Any, array: Any) -> Any:
    """Return a C-contiguous copy, on the current device, of another device's array.

    CuPy orders such a copy by the current device's stream only. So this stream waits for the other device's, which may
    still write the array. The other stream then waits for the copy, before the temporary is reused there.
    """
    home, here = cupy.cuda.Device(device_of(array)), cupy.cuda.get_current_stream()
    with home:
        there = cupy.cuda.get_current_stream()
        packed = cupy.ascontiguousarray(array)
        packed_event = there.record(cupy.cuda.Event(disable_timing=True))
    here.wait_event(packed_event)
    copy = packed.copy()
    read = here.record(cupy.cuda.Event(disable_timing=True))
    with home:
        there.wait_event(read)
    return copy


def to_host(array: Any) -> Any:
    """Copy a CuPy array to a NumPy array, keeping dtype, shape and memory order."""
    cupy = library()
    order, back = _memory_order(array)
    with cupy.cuda.Device(device_of(array)):
        packed = array.transpose(order)
        if not packed.flags.c_contiguous:
            packed = cupy.ascontiguousarray(packed)
        return packed.get().transpose(back)


def _memory_order(array: Any) -> tuple[list[int], list[int]]:
    """Return the axes in descending order of stride, and the inverse permutation."""
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return order, sorted(range(array.ndim), key=order.__getitem__)


def from_dlpack(array: Any) -> Any:
    """Return a CuPy array on a CUDA tensor's memory; the current stream waits for its producer's."""
    return library().from_dlpack(array)


def from_interface(array: Any) -> Any:
    """Return a CuPy array on the memory of ``__cuda_array_interface__``; errors as in :func:`to_device`.

    The current stream waits for the producer's. CuPy's own conversion would block the host.
    """
    cupy = library()
    interface = array.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise TypeError("it is masked")
    dtype = np.dtype(interface["typestr"])
    if dtype.kind == "V":
        raise TypeError(f"the interface does not say what its dtype {dtype.str} means; bfloat16 goes by DLPack")
    shape, pointer, strides = tuple(interface["shape"]), interface["data"][0], interface.get("strides")
    home = current_device() if 0 in shape else -1  # otherwise CuPy asks the driver
    memory = cupy.cuda.UnownedMemory(pointer, prod(shape) * dtype.itemsize, array, home)
    result = cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)
    with cupy.cuda.Device(device_of(result)):
        _wait_for(cupy, interface.get("stream"))
    return result


def _wait_for(cupy: Any, producer: int | None) -> None:
    """Let the current stream wait for the producer's stream of a ``__cuda_array_interface__``."""
    current = cupy.cuda.get_current_stream()
    if producer is None or producer == (current.ptr or _LEGACY_STREAM):
        return
    event = cupy.cuda.Event(disable_timing=True)
    cupy.cuda.runtime.eventRecord(event.ptr, producer)
    current.wait_event(event)
