"""Validates and dispatches calls of operators with one result: average pooling, gradients and MaxUnpool.

Conv and MaxPool have dispatch code of their own, in ``_conv.py`` and ``_pooling.py``.
"""

from __future__ import annotations

from typing import Any

from gpuconv import _arrays, cpu, cuda
from gpuconv.rules import dtypes, invariance, memory
from gpuconv.rules import layout as layouts
from gpuconv.rules import precision as precisions
from gpuconv.rules.geometry import Ints
from gpuconv.rules.indices import IndexWindows, refuse
from gpuconv.rules.integers import flag
from gpuconv.rules.invariance import CURRENT as INVARIANT
from gpuconv.rules.operators import OPERATORS, settled
from gpuconv.rules.precision import CURRENT


def run(
    name: str,
    arrays: dict[str, Any],
    attributes: dict[str, Any],
    layout: str,
    precision: str | None,
    out: Any,
    check_indices: Any = False,
    invariant: str | None = None,
) -> Any:
    """Validate a call of an operator with one result, choose the backend by its arrays, and return the result.

    Parameters
    ----------
    name : str
        A key of ``operators.OPERATORS``; also the prefix of error messages.
    arrays : dict of str to array
        The inputs by name, in the operator's order.
    attributes : dict
        The operator's attributes by name.
    layout, precision, out, check_indices, invariant
        As in the public functions.
    """
    operator = OPERATORS[name]
    library, arrays = _arrays.resolve_all(name, arrays)
    first = next(iter(arrays.values()))
    if out is not None:
        plain = _arrays.check_out(name, "out", out, library, first)
        if plain is not out:
            run(name, arrays, attributes, layout, precision, plain, check_indices, invariant)
            return out
    if check_indices is not True and check_indices is not False:
        check_indices = flag(name, "check_indices", check_indices)
    if library == "cuda":
        if check_indices:
            attributes = settled(name, attributes)  # they are read twice
            geometry = operator.geometry(*(array.shape for array in arrays.values()), layout=layout, **attributes)
            dtypes.check(name, **arrays)
            windows = geometry.index_windows
            wrong = cuda.first_impossible(name, arrays["indices"], windows, layout)
            _refuse_index(name, arrays["indices"], wrong, windows, layout)
        values = tuple(attributes[attribute] for attribute in operator.attributes)
        precise = CURRENT.get() if precision is None else precision
        word = INVARIANT.get() if invariant is None else invariant
        return cuda.run(name, tuple(arrays.values()), (out,), values, layout, precise, invariant=word)[0]
    geometry = operator.geometry(*(array.shape for array in arrays.values()), layout=layout, **attributes)
    dtypes.check(name, **arrays)
    if precision is not None:
        precisions.check(name, precision)
    invariant_layout = layout if invariance.asked(name, invariant) else None
    if check_indices:
        windows = geometry.index_windows
        wrong = cpu.first_impossible(layouts.view(layout, arrays["indices"]), windows)
        _refuse_index(name, arrays["indices"], wrong, windows, layout)
    order = operator.order("out", layout)
    result = memory.result(name, out, layouts.as_given(order, operator.result(geometry)), first.dtype, **arrays)
    views = {
        role: layouts.view(operator.order(array, layout), arrays[array]) for array, role in operator.inputs.items()
    }
    _compute(operator.kernel, views, layouts.view(order, result), geometry, invariant_layout, check_indices)
    return result


def _refuse_index(name: str, indices: Any, wrong: Ints | None, windows: IndexWindows, layout: str) -> None:
    """Raise ArgumentError for the impossible index at position ``wrong`` (n, c, q1, …), unless that is None."""
    if wrong is not None:
        refuse(name, int(indices[layouts.as_given(layout, wrong)]), wrong, windows, layout)


def _compute(
    kernel: str, arrays: dict[str, Any], result: Any, geometry: Any, invariant_layout: str | None, is_checked: bool
) -> None:
    """Run the NumPy backend's function ``kernel`` on arrays by role, in NCHW order; writes into ``result``."""
    if kernel in ("conv", "conv_transpose"):
        getattr(cpu, kernel)(arrays["x"], arrays["w"], None, result, geometry, invariant_layout=invariant_layout)
    elif kernel == "bias_grad":
        cpu.bias_grad(arrays["x"], result)
    elif kernel == "weight_grad":
        cpu.weight_grad(arrays["x"], arrays["dy"], result, geometry)
    elif kernel == "average_pool":
        cpu.average_pool(arrays["x"], result, geometry, invariant_layout=invariant_layout)
    elif kernel == "average_pool_grad":
        cpu.average_pool_grad(arrays["dy"], result, geometry)
    elif kernel == "max_pool_grad":
        cpu.max_pool_grad(arrays["dy"], arrays["indices"], result, geometry, is_checked=is_checked)
    else:
        cpu.max_unpool(arrays["x"], arrays["indices"], result, geometry, is_checked=is_checked)
