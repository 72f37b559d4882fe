"""Numba on the emulated device, with its separate driver library, whose cuInit NVRTC does not find."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import numpy as np
import pytest

from emulated_cuda.install import hardware

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # Numba's own


@pytest.fixture
def cuda() -> Any:
    if hardware():
        pytest.skip("Numba on a GPU needs no tests of this project")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pytest.importorskip("numba.cuda")
    if "cuda_of_numba" not in os.environ.get("NUMBA_CUDA_DRIVER", ""):
        pytest.fail("Numba would look for another driver")
    return found


def cupy() -> Any:
    return importlib.import_module("cupy")


def test_numba_finds_the_device_and_nvrtc_still_compiles(cuda: Any) -> None:
    assert cuda.is_available()
    squares = cupy().ElementwiseKernel("T x", "T y", "y = x * x + 12345", "not_compiled_before")(cupy().arange(4))
    np.testing.assert_array_equal(cupy().asnumpy(squares), np.arange(4) ** 2 + 12345)


def test_arrays_go_both_ways_without_a_copy(cuda: Any) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    there = cuda.to_device(array)
    np.testing.assert_array_equal(there.copy_to_host(), array)
    seen = cupy().asarray(there)
    seen += 1
    cupy().cuda.Device().synchronize()
    np.testing.assert_array_equal(there.copy_to_host(), array + 1)
    np.testing.assert_array_equal(cuda.as_cuda_array(cupy().arange(4)).copy_to_host(), np.arange(4))


def test_streams_and_events(cuda: Any) -> None:
    stream, begin, end = cuda.stream(), cuda.event(), cuda.event()
    begin.record(stream)
    there = cuda.to_device(np.ones(8), stream=stream)
    end.record(stream)
    end.synchronize()
    assert begin.elapsed_time(end) >= 0
    np.testing.assert_array_equal(there.copy_to_host(stream=stream), np.ones(8))
    stream.synchronize()


def test_kernels_of_numba(cuda: Any) -> None:
    nvvm: Any = importlib.import_module("numba.cuda.cudadrv.nvvm")
    if not nvvm.is_available():
        pytest.skip("Numba finds no NVVM")

    def add_one(x: Any, y: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i] + 1

    y = cuda.to_device(np.zeros(40, np.float32))
    cuda.jit(add_one)[2, 32](cuda.to_device(np.arange(40, dtype=np.float32)), y)
    np.testing.assert_array_equal(y.copy_to_host(), np.arange(1, 41))
