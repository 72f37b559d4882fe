"""Defaults of calls that belong to a context: ``precision``, ``invariant`` and ``strict``, set for a block of code."""

from __future__ import annotations

from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar
from typing import Any

_outer: ContextVar[tuple[tuple[ContextVar[Any], Any], ...]] = ContextVar("gpuconv.outer", default=())


class Setting(ContextDecorator, AbstractContextManager[None]):
    """Sets a context variable for a block of code, or for a function that this decorates.

    It may be entered again, also inside of itself and in several threads: the values to restore belong to the thread or
    the asynchronous task, not to this object. Blocks of suspended generators that end out of order restore them in
    order all the same.
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
