"""Convolutions of a real and a complex operand: one real convolution each for the real and the imaginary part.

That takes half of the multiplications of two complex operands. Both results are written into the complex result's
memory, through its ``real`` and ``imag`` views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuconv import cuda
from gpuconv._errors import ArgumentTypeError
from gpuconv.rules import activation as activations
from gpuconv.rules import layout as layouts
from gpuconv.rules import memory
from gpuconv.rules import precision as precisions
from gpuconv.rules.activation import Activation
from gpuconv.rules.operators import OPERATORS

_MIXED = ("Ff", "fF", "Dd", "dD")  # NumPy's letters for complex64 with float32, and complex128 with float64


def are_mixed(x: Any, w: Any) -> bool:
    """Return whether exactly one of two arrays is complex and both have one precision, as float32 and complex64."""
    return x.dtype.char + w.dtype.char in _MIXED


def by_parts(
    compute: Callable[[dict[str, Any], Any], Any],
    operator: str,
    library: str,
    arrays: dict[str, Any],
    attributes: tuple[Any, ...],
    layout: str,
    precision: str | None,
    activation: Activation | None,
    out: Any,
) -> Any:
    """Return a convolution of a real and a complex operand, computed as two real convolutions.

    Parameters
    ----------
    compute : callable
        Computes one part: takes the real arrays of that part by name, and the part of the result to write into.
    operator : str
        "conv" or "conv_transpose".
    library : str
        "numpy" or "cuda".
    arrays : dict of str to array or None
        x, w, b and residual; b and residual must be complex.
    attributes : tuple
        In alphabetical order of their names.
    layout, precision, activation
        As in the public function, parsed.
    out : array or None
        The array to write into; None to allocate one.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A shape, dtype or attribute breaks a rule of the operator.
    """
    called = OPERATORS[operator]
    shapes = [None if arrays[name] is None else arrays[name].shape for name in ("x", "w", "b")]
    named = dict(zip(called.attributes, attributes, strict=True))
    geometry = called.geometry(*shapes, layout=layout, **named)
    dtype = next(arrays[name].dtype for name in ("x", "w") if arrays[name].dtype.kind == "c")
    for name in ("b", "residual"):
        if arrays[name] is not None and arrays[name].dtype != dtype:
            raise ArgumentTypeError(
                f"{operator}: {name} has dtype {arrays[name].dtype}, but must have the result's dtype {dtype}"
            )
    if precision is not None:
        precisions.check(operator, precision)
    shape = layouts.as_given(layout, geometry.y_shape)
    activations.check(operator, activation, arrays["residual"], shape, dtype.name)
    y = _result(operator, library, out, shape, dtype, {name: a for name, a in arrays.items() if a is not None})
    for part in ("real", "imag"):
        own = {name: getattr(a, part) if a is not None and a.dtype.kind == "c" else a for name, a in arrays.items()}
        compute(own, getattr(y, part))
    return y


def _result(operator: str, library: str, out: Any, shape: tuple[int, ...], dtype: Any, arrays: dict[str, Any]) -> Any:
    """Return an ``out`` that shares no memory with the arrays, or a new array of their library."""
    if library == "numpy":
        return memory.result(operator, out, shape, dtype, **arrays)
    for name, array in arrays.items():
        cuda.check_place(operator, name, array)
    if out is None:
        return cuda.runtime.empty(shape, dtype, f"{operator}: y of shape {shape}")
    memory.check_result(operator, "out", out, shape, dtype)
    for name, array in arrays.items():
        memory.refuse_overlap(operator, "out", _placed(out), name, _placed(array))
    return out


def _placed(array: Any) -> Any:
    """Return a device array's extent in memory, for the check of overlaps."""
    return memory.Place(array).at(cuda.runtime.address(array))
