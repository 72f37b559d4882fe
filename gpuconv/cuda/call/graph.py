"""CUDA graphs that own their memory: a function's launches, captured once and replayed on new values.

A graph replays its launches on the addresses of the capture. An array that dies during the capture, such as what lies
between two layers, would go back to CuPy's pool and from there to somebody else, whom each replay then overwrites. So a
captured function allocates from a :class:`GraphMemory`, which gives nothing back before the graph ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock, get_ident
from typing import Any

from gpuconv._errors import DeviceError, GpuconvError
from gpuconv.cuda.call import device
from gpuconv.cuda.call.prepared import check_devices

_MOST_ROOM = 4  # times the bytes of an array are in its block, which an output keeps from all others


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Memory that the allocator gave, ``nbytes`` from ``pointer`` on, and the stream whose work may use it next."""

    pointer: Any
    nbytes: int
    stream: int


class _Lease:
    """What the memory of one array owns: a block, which goes back to the graph's memory when the array dies."""

    __slots__ = ("_allocate", "_block", "_memory")

    def __init__(self, memory: GraphMemory, block: _Block) -> None:
        self._memory, self._block = weakref.ref(memory), block
        self._allocate = memory.allocate  # a pool of CuPy's frees what it gave when it dies

    def __del__(self) -> None:
        memory = self._memory()
        if memory is not None:
            memory.take_back(self._block)


class GraphMemory:
    """Device memory for the arrays of one graph, taken in blocks from the allocator that is current when it is made.

    A block whose array is dropped is used again for later arrays of the same stream, which the graph writes after it
    has read the earlier ones. It returns to the allocator with this object, or with its array where that lives longer.

    Attributes
    ----------
    allocate : callable
        Takes bytes and returns a ``cupy.cuda.MemoryPointer``: the current allocator of CuPy.
    home : cupy.cuda.Stream
        The current stream. Blocks are allocated in it, never in one that captures.
    """

    def __init__(self, cupy: Any) -> None:
        self.allocate, self.home = cupy.cuda.get_allocator(), cupy.cuda.get_current_stream()
        self._cupy, self._device = cupy, device.current_device()
        self._blocks: dict[int, _Block] = {}  # by address
        self._free: list[_Block] = []
        self._kept: dict[int, Any] = {}  # memory of others that the graph uses, by address
        self._captures = False
        self._streams = {self.home.ptr: self.home}  # in which arrays were made before the capture

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in list(self._blocks.values()))

    def malloc(self, nbytes: int) -> Any:
        """Return memory as an allocator of CuPy does: the smallest free block that suffices, or a new one.

        DeviceError where another device is current, or a stream that is not captured while the function is.
        """
        stream = self._cupy.cuda.get_current_stream()
        self._check_place(stream)
        if not self._captures:
            self._streams[stream.ptr] = stream
        if nbytes == 0:
            return self.allocate(0)
        sizes = range(nbytes, _MOST_ROOM * nbytes + 1)
        fitting = [block for block in self._free if block.stream == stream.ptr and block.nbytes in sizes]
        if fitting:
            block = min(fitting, key=lambda block: block.nbytes)
            self._free.remove(block)
        else:
            with self.home:
                block = _Block(self.allocate(nbytes), nbytes, stream.ptr)
            self._blocks[block.pointer.ptr] = block
        memory = self._cupy.cuda.UnownedMemory(block.pointer.ptr, block.nbytes, _Lease(self, block), self._device)
        return self._cupy.cuda.MemoryPointer(memory, 0)

    def take_back(self, block: _Block) -> None:
        """Keep a block for the next array."""
        self._free.append(block)

    def keep(self, arrays: Iterable[Any]) -> None:
        """Keep the memory of arrays that a captured launch uses as long as this object."""
        for array in arrays:
            if (memory := array.data.mem).ptr not in self._blocks:
                self._kept[memory.ptr] = memory

    def begin(self, stream: Any) -> None:
        """Expect a capture in a stream, which may use what work in the home stream has left."""
        self._free = [_Block(block.pointer, block.nbytes, stream.ptr) for block in self._free]
        self._captures = True

    def wait(self) -> None:
        """Wait for the streams in which arrays were made, whose memory the allocator may give to the home stream."""
        for stream in self._streams.values():
            stream.synchronize()

    def end(self) -> None:
        """Expect no more of the capture."""
        self._captures = False

    def _check_place(self, stream: Any) -> None:
        current = device.current_device()
        if current != self._device:
            raise DeviceError(
                f"graph: the function makes an array on device {current}, but the graph is on device {self._device}; "
                "capture a graph for each device"
            )
        if self._captures and not device.is_capturing():
            raise DeviceError(
                f"graph: the function makes an array in the stream {stream.ptr:#x}, which is not captured; let it work "
                "in the current stream, or let the other one wait for an event of it"
            )


class CapturedCall:
    """A function's launches on arrays of fixed shapes and dtypes, as a graph, with all memory that they use.

    Parameters
    ----------
    function : callable
        Called twice: once in the current stream, which compiles and loads kernels and packs weights, and once in the
        stream that is captured.
    arrays : mapping of str to CuPy array
        By their names in messages, on the current device. Copies of them are the function's arguments.
    check : callable
        Takes a result of the function, and raises where a graph cannot have it.
    operator, what : str
        The public function and what it captures, in messages.

    Raises
    ------
    DeviceError
        No device; a capture is under way; the function does what cannot be captured, with its error as the cause.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arrays: Mapping[str, Any],
        check: Callable[[Any], Any],
        operator: str,
        what: str,
    ) -> None:
        cupy = device.library()
        self._operator, self._what = operator, what
        self._refuse_capture(cupy)
        self.names, self.device = tuple(arrays), device.current_device()
        places = {name: device.device_of(array) for name, array in arrays.items()}
        check_devices(operator, self.device, places)
        self._memory = GraphMemory(cupy)
        self._function = function  # with the arrays that it refers to
        self._lock = RLock()
        self._done = cupy.cuda.Event(disable_timing=True)
        try:
            with cupy.cuda.using_allocator(self._memory.malloc):
                self.inputs = tuple(
                    device.dense_copy(array, f"{operator}: a copy of {name}") for name, array in arrays.items()
                )
                check(function(*self.inputs))
                self._graph, self.result = self._captured(cupy)
            check(self.result)
        except BaseException:
            with suppress(Exception):  # the error that ends the capture says more
                self._memory.wait()
            raise
        self._done.record(self._memory.home)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the graph owns."""
        return self._memory.nbytes

    def _refuse_capture(self, cupy: Any) -> None:
        """Raise DeviceError where a graph is being captured already, or a function tried for one."""
        owner = getattr(cupy.cuda.get_allocator(), "__self__", None)
        if device.is_capturing() or isinstance(owner, GraphMemory):
            raise DeviceError(
                f"{self._operator}: {self._what} is called while another graph is captured, and graphs cannot be "
                "nested; capture it before, or call it as it is"
            )

    def _captured(self, cupy: Any) -> tuple[Any, Any]:
        """Return the graph of a call of the function, and its result."""
        stream = cupy.cuda.Stream(non_blocking=True)
        self._memory.begin(stream)
        device.captures[get_ident()] = self._memory
        try:
            with stream:
                stream.begin_capture()
                result = self._function(*self.inputs)
                return stream.end_capture(), result
        except BaseException as error:
            with suppress(Exception):  # it may have ended, and one that is broken ends with an error
                stream.end_capture()
            if isinstance(error, Exception):
                raise self._not_captured(error) from error
            raise
        finally:
            del device.captures[get_ident()]
            self._memory.end()

    def _not_captured(self, error: Exception) -> DeviceError:
        said = str(error) if isinstance(error, GpuconvError) else f"{type(error).__name__}: {error}"
        return DeviceError(f"{self._operator}: {self._what} cannot be captured: {said}")

    def replay(self, arrays: Sequence[Any], finish: Callable[[Any], Any]) -> Any:
        """Copy arrays into the inputs and launch the graph, in the current stream; return ``finish`` of the result.

        Replays come one after the other, in whatever streams and threads. ``finish`` may launch more, which the next
        replay waits for as well.

        Raises
        ------
        DeviceError
            Something is on another device than the graph; the current stream captures a graph; the driver refuses.
        """
        places = {name: device.device_of(array) for name, array in zip(self.names, arrays, strict=True)}
        check_devices("graph", device.current_device(), {"the graph": self.device, **places})
        if device.is_capturing():
            raise DeviceError(
                f"graph: the current stream captures a graph, and graphs cannot be nested; call {self._what} as it is"
            )
        with self._lock:
            stream = device.current_stream()
            stream.wait_event(self._done)
            try:
                for static, array in zip(self.inputs, arrays, strict=True):
                    device.write(static, array)
                self._graph.launch(stream)
                return finish(self.result)
            except RuntimeError as error:
                if isinstance(error, GpuconvError):
                    raise
                raise DeviceError(f"graph: the driver refused to launch the graph: {error}") from error
            finally:
                self._done.record(stream)

    def __del__(self) -> None:
        """Wait for the last replay: memory goes back to an allocator, which may give it to other streams at once."""
        with suppress(Exception):  # the end of the process, or of a constructor
            self._done.synchronize()
