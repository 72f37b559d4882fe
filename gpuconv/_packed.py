"""Weights that calls share in the order in which kernels read them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, NoReturn

from gpuconv._errors import ArgumentError, ArgumentTypeError
from gpuconv.cuda.turns import turn


class PackedWeights:
    """Weights of many calls, made by :func:`pack` and taken by its operator in place of ``w``.

    A snapshot: later writes into the original array have no effect. Calls on CUDA arrays pack weights into the order in
    which their kernels read them, anew each time; with packed weights, they do so only once for each order that they
    need. The packed copies are kept here, shared by all calls and threads, and freed with this object. Like any array,
    it must live until the results that use it are complete.

    Attributes
    ----------
    operator : str
    shape, ndim, dtype
        Those of the weights.
    nbytes : int
        Memory taken: the snapshot and what calls have packed so far.
    """

    __slots__ = ("__weakref__", "_array", "_buffers", "_operator", "_packing", "ahead")

    def __init__(self, operator: str, array: Any) -> None:
        self._operator, self._array = operator, array  # the array is nobody else's
        self._buffers: dict[Hashable, Any] = {}
        self._packing = Lock()
        self.ahead = False  # calls on CUDA arrays only pack, and return None

    operator = property(lambda self: self._operator)
    shape = property(lambda self: self._array.shape)
    ndim = property(lambda self: self._array.ndim)
    dtype = property(lambda self: self._array.dtype)

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in (self._array, *self._buffers.copy().values()))

    def __repr__(self) -> str:
        kind = type(self._array).__module__.partition(".")[0]
        return f"<PackedWeights for {self._operator}: {kind} {self.dtype} {self.shape}>"

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError("PackedWeights cannot be pickled or copied; keep w, and pack it where it is needed")

    def array_for(self, operator: str) -> Any:
        """Return the snapshot, which must not be written; raise ArgumentError for another operator's weights."""
        if operator != self._operator:
            raise ArgumentError(
                f"{operator}: w was packed for {self._operator}; pack it with gpuconv.pack(w, operator={operator!r})"
            )
        return self._array

    @contextmanager
    def only(self) -> Iterator[None]:
        """Let calls on CUDA arrays do all that their kind needs once, and nothing else: they return None.

        Meanwhile no other thread may have these weights.
        """
        self.ahead = True
        try:
            yield
        finally:
            self.ahead = False

    def buffer(self, order: Hashable) -> Any | None:
        """Return what was packed in an order, complete for every stream, or None."""
        return self._buffers.get(order)

    def add(self, order: Hashable, make: Callable[[Any], Any]) -> Any:
        """Return what ``make`` packs from the snapshot in an order, or what another thread has packed meanwhile."""
        with turn(self._packing, 10.0):  # two threads that pack: the memory of one more copy for a while
            buffer = self._buffers.get(order)
            return self._buffers.setdefault(order, make(self._array)) if buffer is None else buffer
