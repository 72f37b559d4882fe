"""Whether batch invariance is on: for the thread, by PyTorch's own thread-local state, or for the process.

PyTorch's autograd engine hands its thread-local objects to every thread that works for a backward pass, so that these
threads see the setting of the thread that called ``backward``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gpuconv.rules.invariance import invariant

KEY = "gpuconv.batch_invariant"
_process = [False]


def is_on() -> bool:
    """Return whether calls of this thread must give the same bits for every batch."""
    value = of_thread()
    return _process[0] if value is None else value


def of_thread() -> bool | None:
    """Return the setting of this thread; None if the process decides."""
    tls: Any = torch._C
    value: bool | None = tls._get_obj_in_tls(KEY) if tls._is_key_in_tls(KEY) else None
    return value


def set_thread(value: bool | None) -> None:
    """Set what :func:`of_thread` returns."""
    tls: Any = torch._C
    tls._stash_obj_in_tls(KEY, value)


def set_process(value: bool) -> None:
    """Set what holds for threads without a setting."""
    _process[0] = value


def of_process() -> bool:
    """Return what holds for threads without a setting."""
    return _process[0]


def setting() -> AbstractContextManager[None]:
    """Return gpuconv's own setting for a call of this thread."""
    return invariant("batch") if is_on() else nullcontext()
