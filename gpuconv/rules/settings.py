"""The context manager and decorator behind ``precision``, ``invariant`` and ``strict``."""

from __future__ import annotations

from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar
from typing import Any

_outer: ContextVar[tuple[tuple[ContextVar[Any], Any], ...]] = ContextVar("gpuconv.outer", default=())


class Setting(ContextDecorator, AbstractContextManager[None]):
    """Sets a context variable for a block of code, or for a decorated function.

    It is reentrant and can be shared by threads: previous values are stored per thread or asynchronous task, not in
    this object. Blocks in suspended generators may end in any order and still restore the right values.
    """

    def __init__(self, variable: ContextVar[Any], value: Any) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        _outer.set((*_outer.get(), (self._variable, self._variable.get())))
        self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        entered = _outer.get()
        for place in reversed(range(len(entered))):
            variable, value = entered[place]
            if variable is self._variable:
                _outer.set(entered[:place] + entered[place + 1 :])
                variable.set(value)
                return
