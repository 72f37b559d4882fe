"""CUDA graphs that own their memory: a function's launches, captured once and replayed on new values.

A graph replays launches on the addresses of its capture. An array that dies during the capture, such as an activation
between layers, would return to CuPy's pool and be overwritten by each replay while others use it. So a captured
function allocates from a :class:`GraphMemory`, which returns memory only when the graph ends.
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

_MOST_ROOM = 4  # most bytes of a block relative to its array; an output keeps its block to itself


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """``nbytes`` of memory at ``pointer``, and the stream whose work may use it next."""

    pointer: Any
    nbytes: int
    stream: int


class _Lease:
    """Owner of one array's memory: returns the block to the graph's memory when the array dies."""

    __slots__ = ("_allocate", "_block", "_memory")

    def __init__(self, memory: GraphMemory, block: _Block) -> None:
        self._memory, self._block = weakref.ref(memory), block
        self._allocate = memory.allocate  # keeps the allocator alive: a CuPy pool frees its memory when it dies

    def __del__(self) -> None:
        memory = self._memory()
        if memory is not None:
            memory.take_back(self._block)


class GraphMemory:
    """Device memory for the arrays of one graph, taken in blocks from the allocator that is current at construction.

    A block whose array was dropped is reused for later arrays of the same stream, since the graph writes those after it
    has read the earlier ones. Blocks return to the allocator with this object, or with their array if that lives
    longer.

    Attributes
    ----------
    allocate : callable
        Takes bytes and returns a ``cupy.cuda.MemoryPointer``: CuPy's current allocator.
    home : cupy.cuda.Stream
        The current stream. Blocks are allocated on it, never on one that captures.
    """

    def __init__(self, cupy: Any) -> None:
        self.allocate, self.home = cupy.cuda.get_allocator(), cupy.cuda.get_current_stream()
        self._cupy, self._device = cupy, device.current_device()
        self._blocks: dict[int, _Block] = {}  # by address
        self._free: list[_Block] = []
        self._kept: dict[int, Any] = {}  # memory of other owners that the graph uses, by address
        self._captures = False
        self._streams = {self.home.ptr: self.home}  # streams on which arrays were made before the capture

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in list(self._blocks.values()))

    def malloc(self, nbytes: int) -> Any:
        """Return memory as a CuPy allocator does: the smallest free block that suffices, or a new one.

        Raises DeviceError if another device is current, or if the current stream is not captured during the capture.
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
        """Return a block to the free list."""
        self._free.append(block)

    def keep(self, arrays: Iterable[Any]) -> None:
        """Keep the memory of arrays that a captured launch uses alive as long as this object."""
        for array in arrays:
            if (memory := array.data.mem).ptr not in self._blocks:
                self._kept[memory.ptr] = memory

    def begin(self, stream: Any) -> None:
        """Start of a capture on ``stream``, which may reuse what work on the home stream has freed."""
        self._free = [_Block(block.pointer, block.nbytes, stream.ptr) for block in self._free]
        self._captures = True

    def wait(self) -> None:
        """Wait for the streams on which arrays were made; the allocator may give their memory to the home stream."""
        for stream in self._streams.values():
            stream.synchronize()

    def end(self) -> None:
        """End of the capture."""
        self._captures = False

    def _check_place(self, stream: Any) -> None:
        """Raise DeviceError if another device is current, or the current stream is not captured."""
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
    """A function's launches on arrays of fixed shapes and dtypes, as a CUDA graph with all memory that they use.

    Parameters
    ----------
    function : callable
        Called twice: once on the current stream, which compiles and loads kernels and packs weights, and once on the
        stream that is captured.
    arrays : mapping of str to CuPy array
        By their names in messages, on the current device. Copies of them are the function's arguments.
    check : callable
        Takes a result of the function, and raises if a graph cannot return it.
    operator, what : str
        The public function and what it captures, for messages.

    Raises
    ------
    DeviceError
        No device; a capture is under way; or the function does what cannot be captured, with its error as the cause.
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
        self._function = function  # keeps the arrays that it refers to alive
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
            with suppress(Exception):  # the error that ended the capture says more
                self._memory.wait()
            raise
        self._done.record(self._memory.home)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the graph owns."""
        return self._memory.nbytes

    def _refuse_capture(self, cupy: Any) -> None:
        """Raise DeviceError if a graph is already being captured, or a function is being tried for one."""
        owner = getattr(cupy.cuda.get_allocator(), "__self__", None)
        if device.is_capturing() or isinstance(owner, GraphMemory):
            raise DeviceError(
                f"{self._operator}: {self._what} is called while another graph is captured, and graphs cannot be "
                "nested; capture it before, or call it as it is"
            )

    def _captured(self, cupy: Any) -> tuple[Any, Any]:
        """Capture a call of the function; return the graph and the function's result."""
        stream = cupy.cuda.Stream(non_blocking=True)
        self._memory.begin(stream)
        device.captures[get_ident()] = self._memory
        try:
            with stream:
                stream.begin_capture()
                result = self._function(*self.inputs)
                return stream.end_capture(), result
        except BaseException as error:
            with suppress(Exception):  # it may have ended, and a broken one ends with an error
                stream.end_capture()
            if isinstance(error, Exception):
                raise self._not_captured(error) from error
            raise
        finally:
            del device.captures[get_ident()]
            self._memory.end()

    def _not_captured(self, error: Exception) -> DeviceError:
        """Return the error for a function that cannot be captured."""
        said = str(error) if isinstance(error, GpuconvError) else f"{type(error).__name__}: {error}"
        return DeviceError(f"{self._operator}: {self._what} cannot be captured: {said}")

    def replay(self, arrays: Sequence[Any], finish: Callable[[Any], Any]) -> Any:
        """Copy arrays into the inputs and launch the graph on the current stream; return ``finish`` of the result.

        Replays are serialised across streams and threads. ``finish`` may launch more work, for which the next replay
        waits too.

        Raises
        ------
        DeviceError
            Something is on another device than the graph; the current stream captures a graph; or the driver refuses.
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
        """Wait for the last replay: the allocator may give the memory to other streams at once."""
        with suppress(Exception):  # interpreter shutdown, or a constructor that failed
            self._done.synchronize()
