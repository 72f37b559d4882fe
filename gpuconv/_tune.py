"""Measuring what the planner otherwise models: which kernel is the quickest for a call."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from gpuconv import _api, _arrays, _dtypes, cuda
from gpuconv._errors import ArgumentError, ArgumentTypeError, OutOfDeviceMemory
from gpuconv._operators import OPERATORS
from gpuconv._precision import CURRENT


def tune(
    operator: str,
    x: Any,
    w: Any = None,
    b: Any = None,
    *,
    layout: str = "NCHW",
    precision: str | None = None,
    return_indices: bool = False,
    **attributes: Any,
) -> dict[str, float]:
    """Measure every kernel that can make a call on CUDA arrays; calls like it take the quickest one from then on.

    Without it a model chooses, which :func:`explain` prints. What was measured is kept in ``choices.json`` in the cache
    folder, for devices of the same name, and holds in later processes too. A call is like another where shapes,
    strides, dtypes, attributes, layout and precision are the same. Results stay within the same bounds, though a sum
    may be added in another order; whoever needs the same bits everywhere takes the file along, or does not tune.

    Parameters
    ----------
    operator : {"conv", "conv_transpose", "max_pool"}
    x, w, b : array
        CuPy arrays as the call has them; of MaxPool x alone. Only their layout matters.
    layout, precision, return_indices, **attributes
        As the call has them.

    Returns
    -------
    dict of str to float
        Seconds on the device by kernel, the quickest first: the median of some calls that each find other data in the
        L2 cache. The packing of weights is part of it. Infinite where a kernel's workspace does not fit.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DeviceError, CompileError
        As the call itself; also an unknown operator, and arrays that are not on a CUDA device.

    Warns
    -----
    RuntimeWarning
        The file cannot be written: the choice holds in this process only.
    """
    from gpuconv.cuda import choice

    if _dtypes.allowed(operator) is None:
        raise ArgumentError(f"tune: operator must be one of {', '.join(_dtypes.OPERATORS)}, not {operator!r}")
    inputs = _inputs(operator, x, w, b)
    outs = (None, None) if return_indices else (None,)
    values = _values(operator, attributes)
    precision = CURRENT.get() if precision is None and operator != "max_pool" else precision or "ieee"
    found: dict[str, float] = {}
    plan: Any = None
    for turn in choice.every_candidate():
        with turn:
            prepared = cuda.prepare(cuda.runtime, operator, inputs, outs, values, layout, precision)
        plan = prepared.plan
        if plan.launches:
            found[plan.kernel] = _seconds(partial(prepared.run, inputs, outs))
    found = dict(sorted(found.items(), key=lambda item: item[1]))
    if found:
        _remember(plan.problem, next(iter(found)))
    return found


def _inputs(operator: str, x: Any, w: Any, b: Any) -> tuple[Any, ...]:
    if operator == "max_pool":
        library, x = _arrays.resolve_one(operator, "x", x)
        inputs: tuple[Any, ...] = (x,)
    else:
        library, x, w, b = _arrays.resolve(operator, x, w, b)
        inputs = (x, w) if b is None else (x, w, b)
    if library != "cuda":
        raise ArgumentTypeError("tune: kernels are measured on a CUDA device; pass CuPy arrays")
    return inputs


def _values(operator: str, attributes: dict[str, Any]) -> tuple[Any, ...]:
    """Return the attributes in the backend's order, with the operator's defaults."""
    names = OPERATORS[operator].attributes
    unknown = sorted(set(attributes) - set(names))
    if unknown:
        raise ArgumentTypeError(f"tune: {operator} has no attribute {unknown[0]!r}; it has {', '.join(names)}")
    parameters = inspect.signature(getattr(_api, operator)).parameters
    defaults = {name: parameters[name].default for name in names}
    required = {name: None for name, value in defaults.items() if value is inspect.Parameter.empty}
    return tuple({**defaults, **required, **attributes}[name] for name in names)


def _seconds(call: Callable[[], Any]) -> float:
    try:
        return float(cuda.runtime.seconds(call))
    except OutOfDeviceMemory:
        return float("inf")


def _remember(problem: Any, kernel: str) -> None:
    from gpuconv.cuda import tuned

    runtime = cuda.runtime
    try:
        tuned.store(runtime.limits(runtime.current_device()).name, problem, kernel)
    except OSError as error:
        warnings.warn(f"tune: the choice is not kept for later processes: {error}", RuntimeWarning, stacklevel=3)
    runtime.prepared.clear()
