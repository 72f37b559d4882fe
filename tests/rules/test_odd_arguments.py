"""Any parameter of any public function may be an object that cannot be read: the error is gpuconv's own."""

from __future__ import annotations

import importlib
import inspect
from itertools import product
from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.oracle.every_row import every_row
from tests.rules.public_calls import CALLS, W, X


class Breaks:
    """An object that raises on every operation, even on access to attributes."""

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)

    def _raise(self, *_: Any) -> Any:
        raise ZeroDivisionError("special")

    __index__ = __int__ = __len__ = __float__ = __iter__ = __next__ = __bool__ = __contains__ = __getitem__ = _raise
    __eq__ = __ne__ = __lt__ = __gt__ = __add__ = __repr__ = __str__ = __format__ = _raise  # type: ignore[assignment]
    __hash__ = _raise  # type: ignore[assignment]


class Text(str):
    """A string that cannot be compared or shown."""

    def _raise(self, *_: Any) -> Any:
        raise ZeroDivisionError("special")

    __hash__ = __eq__ = __ne__ = __repr__ = upper = startswith = _raise  # type: ignore[assignment]


ODD = {
    "breaks": Breaks(),
    "list": [Breaks()],
    "tuple": (Breaks(), 1),
    "set": {1, 2},
    "mapping": {1: 2},
    "bytes": b"\x02\x02",
    "matrix": memoryview(np.ones((2, 2), np.int64)),
    "array": np.ones((2, 2)),
    "nothing": np.ones(0, np.int64),
    "endless": iter(int, 1),
    "long": range(10**12),
}
SHAPES = {"x_shape": X.shape, "w_shape": W.shape}
EXPLAINED = {
    "explain": {"operator": "conv", **SHAPES},
    "pack": {"w": W, "operator": "conv"},
    "to_host": {"a": X},
    "precision": {"value": "ieee"},
    "invariant": {"value": None},
    "strict": {"value": True},
}
# Kinds of objects that are valid arguments.
TRUE = {"list", "tuple", "set", "mapping", "bytes", "matrix", "endless", "long"}  # whose truth value is True
MEANT = {
    ("to_host", "a"): {"array", "nothing"},
    ("explain", "bias"): TRUE,
    ("explain", "residual"): TRUE,
    ("max_pool", "return_indices"): TRUE,
    ("max_pool_grad", "check_indices"): TRUE,
    ("max_unpool", "check_indices"): TRUE,
}


CALLED = {name: {**arrays, **others} for name, (arrays, others) in CALLS.items()} | EXPLAINED


@pytest.mark.parametrize("name", CALLED)
def test_what_cannot_be_read_is_refused(name: str) -> None:
    function = getattr(gpuconv, name)
    parameters = [
        one.name for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD
    ]
    with every_row(name) as row:
        for parameter, (kind, value) in product(parameters, ODD.items()):
            if kind in MEANT.get((name, parameter), set()):
                continue
            with row(f"{parameter} is {kind}"):
                with pytest.raises((gpuconv.ArgumentError, gpuconv.ArgumentTypeError)) as caught:
                    function(**{**CALLED[name], parameter: value})
                assert len(str(caught.value)) < 600
                assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["conv", "conv_transpose", "max_pool", "average_pool"])
def test_dask_refuses_it_too(name: str) -> None:
    da, api = pytest.importorskip("dask.array"), importlib.import_module("gpuconv.dask")
    function = getattr(api, name)
    given = {"x": da.from_array(X, chunks=(1, 4, 7, 6)), **({"w": W} if "conv" in name else {"kernel_shape": 2})}
    for parameter in inspect.signature(function).parameters:
        for kind, value in ODD.items():
            if kind in MEANT.get((name, parameter), set()):
                continue
            with pytest.raises((gpuconv.ArgumentError, gpuconv.ArgumentTypeError)):
                function(**{**given, parameter: value})
