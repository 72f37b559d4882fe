"""PackedWeights: weights that are packed into the kernels' order once and shared by many calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, NoReturn

from gpuconv._errors import ArgumentError, ArgumentTypeError
from gpuconv.cuda.turns import turn


class PackedWeights:
    """Weights for many calls: :func:`pack` creates them, and the operator takes them in place of ``w``.

    They are a snapshot: later writes into the original array have no effect. A call on CUDA arrays normally packs its
    weights into the order in which its kernels read them, each time. With packed weights, that happens once per order.
    The packed copies are stored here, shared by all calls and threads, and freed with this object. Like any array, it
    must live until the results that use it are complete.

    Attributes
    ----------
    operator : str
        "conv" or "conv_transpose".
    shape, ndim, dtype
        Those of the weights.
    nbytes : int
        Bytes used by the snapshot and the packed copies so far.
    """

    __slots__ = ("__weakref__", "_array", "_buffers", "_operator", "_packing", "ahead")

    def __init__(self, operator: str, array: Any) -> None:
        self._operator, self._array = operator, array  # owned: nobody else writes it
        self._buffers: dict[Hashable, Any] = {}
        self._packing = Lock()
        self.ahead = False  # see only()

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
        """Within this context, calls on CUDA arrays pack these weights and compile kernels, and return None.

        No other thread may use the weights meanwhile.
        """
        self.ahead = True
        try:
            yield
        finally:
            self.ahead = False

    def buffer(self, order: Hashable) -> Any | None:
        """Return the packed copy for an order, ready for every stream; None if there is none yet."""
        return self._buffers.get(order)

    def add(self, order: Hashable, make: Callable[[Any], Any]) -> Any:
        """Return the packed copy for an order: ``make(snapshot)``, or the copy of another thread that was faster."""
        with turn(self._packing, 10.0):  # on a timeout both threads pack, and one copy is dropped
            buffer = self._buffers.get(order)
            return self._buffers.setdefault(order, make(self._array)) if buffer is None else buffer
