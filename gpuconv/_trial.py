"""Cross-check of kernels for :func:`gpuconv.tune`: all candidates must agree bit for bit on integer-valued arrays.

Sums of small integers are exact in any order, so every correct kernel computes the same bits. A kernel that does not is
excluded, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from gpuconv import _pooling, cuda
from gpuconv._errors import ArgumentError, OutOfDeviceMemory
from gpuconv.rules import whole_numbers
from gpuconv.rules.layout import Layout
from gpuconv.rules.operators import OPERATORS

Call = Callable[[tuple[Any, ...]], list[Any]]  # takes a call's arrays, returns its results
_CALLER = 3  # stack level of the caller of tune, for warnings


def wrong(
    operator: str,
    calls: Mapping[str, Call],
    inputs: tuple[Any, ...],
    attributes: Mapping[str, Any],
    layout: Layout,
    precision: str,
) -> set[str]:
    """Return the names of the kernels whose results differ from those of the first one, with a warning for each.

    Parameters
    ----------
    operator : str
    calls : mapping of str to callable
        A call of each kernel, by the kernel's name; the general kernel first.
    inputs : tuple of arrays
        The arrays of the call that is tuned. The kernels run on new arrays of integers with the same shapes, strides
        and dtypes.
    attributes : mapping
        The operator's attributes.
    layout, precision : str
    """
    if len(calls) < 2:
        return set()
    (general, first), *others = calls.items()
    try:
        given = _whole(operator, inputs, attributes, layout, precision)
        expected = _made(first, inputs, given)
        differences = {name: _difference(_made(call, inputs, given), expected) for name, call in others}
    except OutOfDeviceMemory as error:
        warnings.warn(f"tune: kernels are not compared with {general}: {error}", RuntimeWarning, _CALLER)
        return set()
    except ArgumentError:  # Indices whose elements share memory cannot be filled with valid values
        return set()
    for name, said in differences.items():
        if said:
            message = f"tune: {name} is left out: of whole numbers it makes {said} than {general}; please report it"
            warnings.warn(message, RuntimeWarning, _CALLER)
    return {name for name, said in differences.items() if said}


def _made(call: Call, inputs: tuple[Any, ...], given: tuple[Any, ...]) -> list[Any]:
    """Return the results for ``given`` on the host.

    The call with ``inputs`` first fills the memory that the results will probably reuse with other values.
    """
    call(inputs)
    return [cuda.runtime.to_host(result) for result in call(given)]


def _difference(made: list[Any], expected: list[Any]) -> str:
    """Return in words in how many elements results differ, and by how much; empty if they are equal."""
    pairs = [(a, b) for a, b in zip(made, expected, strict=True) if (a != b).any()]
    if not pairs:
        return ""
    count, size = sum(int((a != b).sum()) for a, b in pairs), sum(a.size for a in expected)
    far = max(_farthest(a, b) for a, b in pairs)
    return f"{count} of {size} elements, by up to {far:.3g}, other"


def _farthest(made: Any, expected: Any) -> float:
    wide = np.complex128 if made.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        apart = abs(made.astype(wide) - expected.astype(wide))
    return float(np.where(np.isnan(apart), np.inf, apart)[made != expected].max())


def _whole(
    operator: str, inputs: tuple[Any, ...], attributes: Mapping[str, Any], layout: Layout, precision: str
) -> tuple[Any, ...]:
    names = [*OPERATORS[operator].inputs, "residual"]
    named = dict(zip(names, inputs, strict=False))
    factors = [array for name, array in named.items() if name != "indices"]
    terms = min(array.size for array in factors[:2])
    most = whole_numbers.largest(np.dtype(factors[0].dtype).name, precision, terms)

    def made(name: str, seed: int) -> Any:
        if name == "indices":
            return whole_numbers.holding(cuda.runtime, named[name], _indices(attributes, layout))
        return whole_numbers.alike(cuda.runtime, named[name], most, seed)

    return tuple(made(name, seed) for seed, name in enumerate(named))


def _indices(attributes: Mapping[str, Any], layout: Layout) -> Any:
    """Return valid Indices: those of MaxPool of a random x of the gradient's shape."""
    windows = dict(attributes)
    shape = tuple(windows.pop("x_shape"))
    x = whole_numbers.random(prod(shape), np.dtype(np.float32), 2**20, 0).reshape(shape)
    return _pooling.max_pool(x, layout=layout, return_indices=True, **windows)[1]
