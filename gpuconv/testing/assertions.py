"""The assertions of gpuconv.testing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuconv._arrays import refuse_masked
from gpuconv._errors import ArgumentError, ArgumentTypeError
from gpuconv.judge.problems import KINDS, Answer, Problem, answer
from gpuconv.judge.variants import explanations
from gpuconv.judge.verdicts import difference, matches
from gpuconv.rules import geometry
from gpuconv.rules.cases import Case

_RULE = "what a test asks"
_NEWEST = 22
_TYPES = ("float16", "bfloat16", "float32", "float64")


def assert_conv_close(
    got: npt.ArrayLike, x: npt.ArrayLike, w: npt.ArrayLike, b: npt.ArrayLike | None = None, **attributes: Any
) -> None:
    """Assert that each element of a result is within its error bound around ONNX's Conv of x and w.

    Parameters
    ----------
    got : array_like, shape (N, M, P1, …)
        The result to test.
    x : array_like, shape (N, C, D1, …)
        float16, bfloat16, float32 or float64.
    w : array_like, shape (M, C/group, k1, …)
        Same dtype as x.
    b : array_like, shape (M,), optional
        Same dtype as x.
    **attributes
        ONNX's attributes, as in :func:`gpuconv.conv`.

    Raises
    ------
    AssertionError
        ``got`` has a wrong shape or dtype, or an element differs by more than (K + 1)·u·S and one rounding (see
        :doc:`semantics`). The message names the element, its bound, and a known deviation from the rules that would
        give exactly this result, if there is one.
    ArgumentError, ArgumentTypeError
        x, w, b and the attributes break a rule of :func:`gpuconv.conv`.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuconv.testing import assert_conv_close
    >>> x, w = np.arange(4, dtype=np.float32).reshape(1, 1, 4), np.ones((1, 1, 2), np.float32)
    >>> assert_conv_close(np.array([[[1, 3, 5, 3]]], np.float32), x, w, auto_pad="SAME_UPPER")
    >>> assert_conv_close(np.array([[[1, 3, 5, 3]]], np.float32), x, w, auto_pad="SAME_LOWER")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: Conv: output 0[0, 0, 0] is 1.0, expected 0.0 ... equals SAME_UPPER and SAME_LOWER exchanged
    """
    __tracebackhide__ = True
    _compare("conv", got, {"x": x, "w": w, "b": b}, attributes)


def assert_conv_transpose_close(
    got: npt.ArrayLike, x: npt.ArrayLike, w: npt.ArrayLike, b: npt.ArrayLike | None = None, **attributes: Any
) -> None:
    """Assert that each element of a result is within its error bound around ONNX's ConvTranspose of x and w.

    Parameters
    ----------
    got : array_like, shape (N, M, P1, …)
        The result to test.
    x : array_like, shape (N, C, D1, …)
        float16, bfloat16, float32 or float64.
    w : array_like, shape (C, M/group, k1, …)
        Same dtype as x.
    b : array_like, shape (M,), optional
        Same dtype as x.
    **attributes
        ONNX's attributes, as in :func:`gpuconv.conv_transpose`.

    Raises
    ------
    AssertionError, ArgumentError, ArgumentTypeError
        As from :func:`assert_conv_close`.
    """
    __tracebackhide__ = True
    _compare("conv_transpose", got, {"x": x, "w": w, "b": b}, attributes)


def _compare(op: str, got: Any, given: dict[str, Any], attributes: dict[str, Any]) -> None:
    __tracebackhide__ = True  # pytest shows the line of the test instead
    for name, array in {"got": got, **given}.items():
        refuse_masked(f"assert_{op}_close", name, array)
    arrays = {name: np.asarray(array) for name, array in given.items() if array is not None}
    x, w = arrays["x"], arrays["w"]
    attributes = _checked(f"assert_{op}_close", op, arrays, attributes)
    case = Case("", op, x.shape, w.shape, "b" in arrays, attributes, "", (x.dtype.name,), _RULE)
    problem = Problem(case, x.dtype.name, _NEWEST, arrays=arrays)
    right, outputs = answer(problem), (np.asarray(got),)
    reason = difference(right.outputs, right.bounds, outputs, bits=False, with_bound=True)
    if reason is None:
        return
    equal = (each.sentence for each, other in explanations(problem, right) if _equals(other, right, outputs))
    sentence = next(equal, None)
    explained = f"; the result equals {sentence}" if sentence else ""
    raise AssertionError(f"{KINDS[op]}: {reason}{explained}")


def _checked(name: str, op: str, arrays: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
    """Validate a call and return its attributes, each with one number per axis."""
    types = {array.dtype.name for array in arrays.values()}
    if len(types) > 1 or not types.issubset(_TYPES):
        told = ", ".join(f"{key} is {array.dtype}" for key, array in arrays.items())
        raise ArgumentTypeError(f"{name}: operands have one of the types {', '.join(_TYPES)}, all the same ({told})")
    if "layout" in attributes:
        raise ArgumentError(f"{name}: layout is no attribute of ONNX; arrays have their channels first")
    x, w, b = arrays["x"], arrays["w"], arrays.get("b")
    getattr(geometry, op)(x.shape, w.shape, None if b is None else b.shape, name=name, **attributes)
    axes = dict.fromkeys(("strides", "dilations", "kernel_shape", "output_padding"), w.ndim - 2)
    axes["pads"] = 2 * axes["strides"]
    return {
        key: [value] * axes[key] if key in axes and isinstance(value, int) else value
        for key, value in attributes.items()
        if value is not None
    }


def _equals(other: Answer, right: Answer, outputs: tuple[Any, ...]) -> bool:
    return matches(other.outputs, right.bounds, outputs)
