"""Which modules of a model change bits with the batch, by themselves or because of what they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpuconv._errors import ArgumentError
from gpuconv.torch._mode import batch_invariant


@dataclass(frozen=True)
class Row:
    """One module without submodules.

    Attributes
    ----------
    name, kind : str
        Its name in the model, and its class.
    own : float or None
        The largest difference if it is given the same inputs in batches of other sizes; None if its inputs and results
        do not all have the batch as their first axis.
    own_in_mode : float or None
        The same with :func:`gpuconv.torch.batch_invariant`.
    inherited : float or None
        The largest difference of its result if the whole model is run in batches of other sizes.
    inherited_in_mode : float or None
    """

    name: str
    kind: str
    own: float | None
    own_in_mode: float | None
    inherited: float | None
    inherited_in_mode: float | None


@dataclass(frozen=True)
class Report:
    """What :func:`report` found; ``str`` of it is a table.

    Attributes
    ----------
    sizes : tuple of int
        The batch sizes that were compared with the whole batch.
    rows : tuple of Row
        One for every module without submodules that was called, in the order of their first calls.
    """

    sizes: tuple[int, ...]
    rows: tuple[Row, ...] = field(repr=False)

    @property
    def uncovered(self) -> tuple[Row, ...]:
        """Modules that change bits by themselves even in the mode."""
        return tuple(row for row in self.rows if row.own_in_mode)

    def __str__(self) -> str:
        lines = [f"largest differences from the whole batch, in batches of {', '.join(map(str, self.sizes))}"]
        lines.append(f"{'module':36} {'class':20} {'own':>9} {'in mode':>9} {'model':>9} {'in mode':>9}")
        for row in self.rows:
            values = (row.own, row.own_in_mode, row.inherited, row.inherited_in_mode)
            columns = " ".join(f"{_shown(value):>9}" for value in values)
            lines.append(f"{row.name[:36]:36} {row.kind[:20]:20} {columns}")
        return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "?" if value is None else "0" if value == 0 else f"{value:.1e}"


def report(model: Any, example: Any, sizes: Sequence[int] = (1, 2, 3)) -> Report:
    """Run a model in batches of several sizes, and tell which modules change bits, without and with the mode.

    Each module without submodules is also given what it was given in the whole batch, in slices of these sizes. If its
    result changes then, the difference is its own; if the model's does and the module's own does not, it is inherited.
    The module must give the same result when it is called twice, so call ``model.eval()`` first. Operators that the
    model calls as functions belong to no such module: their differences are inherited by the modules behind them.

    Parameters
    ----------
    model : torch.nn.Module
    example : tensor (N, …)
        The model's only argument, with the batch as its first axis.
    sizes : sequence of int
        Batch sizes less than N.

    Returns
    -------
    Report

    Examples
    --------
    >>> import torch, gpuconv.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv1d(3, 16, 1), torch.nn.ReLU())
    >>> gpuconv.torch.report(model, torch.randn(4, 3, 1)).uncovered
    ()
    """
    total = len(example)
    if not sizes or any(not 0 < size < total for size in sizes):
        raise ArgumentError(f"report: sizes must be from 1 to {total - 1}, less than the example's batch, not {sizes}")
    plain = _differences(model, example, sizes, False)
    in_mode = _differences(model, example, sizes, True)
    rows = (
        Row(name, kind, own, in_mode[name][1], inherited, in_mode[name][2])
        for name, (kind, own, inherited) in plain.items()
    )
    return Report(tuple(sizes), tuple(rows))


def _differences(
    model: Any, example: Any, sizes: Sequence[int], is_on: bool
) -> dict[str, tuple[str, float | None, float | None]]:
    """Return, by the name of each module, its class, its own differences, and those in the whole model."""
    modules = dict(model.named_modules())
    with torch.no_grad(), batch_invariant(is_on):
        whole = _calls(model, example)
        inherited: dict[str, list[float | None]] = {name: [] for name in whole}
        for size in sizes:
            parts = [_calls(model, example[first : first + size]) for first in range(0, len(example), size)]
            for name, calls in whole.items():
                for place, (_, result) in enumerate(calls):
                    inherited[name].append(_distance(result, [part[name][place][1] for part in parts]))
        own = {
            name: [_own(modules[name], given, result, size) for given, result in calls for size in sizes]
            for name, calls in whole.items()
        }
    return {name: (type(modules[name]).__name__, _most(own[name]), _most(inherited[name])) for name in whole}


def _calls(model: Any, example: Any) -> dict[str, list[tuple[tuple[Any, ...], Any]]]:
    """Run a model; return the inputs and the result of every call of its modules without submodules, by their name."""
    calls: dict[str, list[tuple[tuple[Any, ...], Any]]] = {}
    given: list[tuple[Any, ...]] = []  # of the module that runs: it may write into what it is given
    handles = []
    for name, module in model.named_modules():
        if next(module.children(), None) is None:

            def before(module: Any, inputs: tuple[Any, ...]) -> None:
                given.append(tuple(map(_copy, inputs)))

            def after(module: Any, inputs: tuple[Any, ...], result: Any, name: str = name) -> None:
                calls.setdefault(name, []).append((given.pop(), _copy(result)))

            handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        model(example)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _own(module: Any, given: tuple[Any, ...], result: Any, size: int) -> float | None:
    if not isinstance(result, torch.Tensor) or not given or not result.dim():
        return None
    total = len(result)
    if any(not isinstance(value, torch.Tensor) or not value.dim() or len(value) != total for value in given):
        return None
    parts = [module(*(value[first : first + size].clone() for value in given)) for first in range(0, total, size)]
    return _distance(result, parts)


def _distance(result: Any, parts: list[Any]) -> float | None:
    """Return the largest difference between a result and the same one in parts; infinity where one is NaN only."""
    if not isinstance(result, torch.Tensor) or not result.dim():
        return None
    joined = torch.cat(parts) if all(isinstance(part, torch.Tensor) and part.dim() for part in parts) else None
    if joined is None or joined.shape != result.shape:
        return None
    wrong = (joined != result) & ~((joined != joined) & (result != result))
    if not bool(wrong.any()):
        return 0.0
    distance = float((joined[wrong].double() - result[wrong].double()).abs().max())
    return distance if distance == distance else float("inf")


def _most(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return None if len(known) < len(values) or not known else max(known)
