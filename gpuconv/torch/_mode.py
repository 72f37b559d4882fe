"""The mode in which PyTorch's own operators give an image the same bits in every batch.

The design is one permanent override per operator. When the mode is first used, kernels are registered for the dispatch
keys CPU and CUDA (``torch.library.Library("aten", "IMPL")``). Each asks whether the mode is on, which takes one look at
PyTorch's thread-local state, and calls the previous kernel (``torch.library.get_kernel``) if it is not. These keys are
below autograd and autocast, so that both work as before, and operators such as ``linear``, ``matmul`` and ``conv2d``,
which consist of the replaced ones, need nothing. A TorchDispatchMode would take Python code for every operator of the
model, and would not reach the threads of autograd by itself; registering and removing kernels would race with other
threads.

The setting of a thread is an object in PyTorch's thread-local state, which the autograd engine passes on to its own
threads: a backward pass has the setting of the thread that starts it.

A compiled graph may contain code for these operators that was generated without asking anybody. So while the mode is on
in any thread, compiled functions run eagerly, in all threads (``torch.compiler.set_stance("force_eager")``). Entering
the mode inside of a compiled function is an error of PyTorch's.
"""

from __future__ import annotations

import threading
from contextlib import ContextDecorator
from typing import Any

import torch

from gpuconv.torch import _overrides, _state

_lock = threading.Lock()
_entered = threading.local()  # per thread: the settings before each open block


class _Eager:
    """Lets compiled functions run eagerly as long as anybody holds this."""

    def __init__(self) -> None:
        self._holders = 0
        self._stance: Any = None

    def hold(self) -> None:
        """Begin to run compiled functions eagerly, unless that is so already."""
        with _lock:
            if not self._holders:
                self._stance = torch.compiler.set_stance("force_eager")
            self._holders += 1

    def release(self) -> None:
        """Go back to the previous stance if nobody else holds this."""
        with _lock:
            self._holders -= 1
            if not self._holders:
                self._stance.__exit__(None, None, None)


_EAGER = _Eager()


class batch_invariant(ContextDecorator):  # noqa: N801  # it is used as a function
    """Give an image the same bits in every batch, in a block of code or a decorated function.

    Convolution, pooling and matrix products of PyTorch, with their gradients, are then computed by gpuconv, in this
    thread and in the backward passes that it starts. Each image's result has the same bits whatever else is in the
    batch, and each element of a product has the same bits for every number of rows and columns, and all strides.
    Gradients of weights sum over the batch and are outside of this.

    Blocks can be nested; leaving one restores the previous setting, after an exception too. Compiled functions run
    eagerly while a block is open in any thread.

    Parameters
    ----------
    enabled : bool
        False makes an exception inside of another block, or of :func:`enable`.

    Examples
    --------
    >>> import torch, gpuconv.torch
    >>> layer, x = torch.nn.Conv1d(3, 16, 1), torch.randn(4, 3, 1)
    >>> with gpuconv.torch.batch_invariant(), torch.no_grad():
    ...     print(torch.equal(layer(x)[:1], layer(x[:1])))
    True
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = bool(enabled)

    def __enter__(self) -> None:
        if self._enabled:
            _overrides.install()
            _EAGER.hold()
        _stack().append((self._enabled, _state.of_thread()))
        _state.set_thread(self._enabled)

    def __exit__(self, *_: object) -> None:
        enabled, before = _stack().pop()
        _state.set_thread(before)
        if enabled:
            _EAGER.release()


def _stack() -> list[tuple[bool, bool | None]]:
    if not hasattr(_entered, "settings"):
        _entered.settings = []
    settings: list[tuple[bool, bool | None]] = _entered.settings
    return settings


def enable() -> None:
    """Turn :class:`batch_invariant` on for the process: for all threads but those in a block that says otherwise."""
    if not _state.of_process():
        _overrides.install()
        _EAGER.hold()
        _state.set_process(True)


def disable() -> None:
    """Undo :func:`enable`."""
    if _state.of_process():
        _state.set_process(False)
        _EAGER.release()
