"""Functions of CuPy that operators use: only those that the fake has, and those of CuPy if it is installed."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from gpuconv.onnx import batch, operators
from tests.harness.device_arrays import FUNCTIONS, METHODS, UFUNCS

FILES = sorted(path for room in (batch, operators) for path in Path(room.__file__).parent.rglob("*.py"))


def functions_used() -> set[str]:
    """Return the names that operators look up in the library of their arrays: ``xp.NAME`` and ``namespace(x).NAME``."""
    names = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and _is_library(node.value):
                names.add(node.attr)
    return names


def _is_library(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "namespace"
    return isinstance(node, ast.Name) and node.id == "xp"


def test_the_stand_in_has_what_is_used_and_no_more() -> None:
    assert functions_used() <= {*UFUNCS, *FUNCTIONS}
    by_name = {"argmin", "max", "min"}  # picked by getattr
    assert {*UFUNCS, *FUNCTIONS} - functions_used() <= by_name


def test_cupy_loads_modules_from_memory() -> None:
    cuda = pytest.importorskip("cupy").cuda
    assert callable(cuda.Module().load)
    assert {"ptr", "__call__"} <= set(dir(cuda.Function))
    assert callable(cuda.driver.funcSetAttribute)
    assert cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == 8  # as in cuda.h


def test_cupy_has_these_functions_with_these_parameters() -> None:
    cupy = pytest.importorskip("cupy")
    for name in UFUNCS:
        assert isinstance(getattr(cupy, name), cupy.ufunc), name
    for name, parameters in FUNCTIONS.items():
        function = getattr(cupy, name)
        if parameters:
            expected = list(inspect.signature(eval(f"lambda {parameters}: None")).parameters)
            assert list(inspect.signature(function).parameters) == expected, name
    for name in METHODS:
        assert callable(getattr(cupy.ndarray, name))
