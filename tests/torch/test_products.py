"""Products whose elements do not depend on what stands beside them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuconv.torch import _products

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


def operand(seed: int, dtype: str, *shape: int) -> Any:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_within_their_bound(dtype: str) -> None:
    a, b = operand(0, dtype, 2, 5, 33), operand(1, dtype, 2, 33, 7)
    exact = a.astype(np.complex128) @ b.astype(np.complex128)
    sums = np.abs(a.astype(np.complex128)) @ np.abs(b.astype(np.complex128))
    u = 2.0**-53 if dtype in ("float64", "complex128") else 2.0**-24
    assert (np.abs(_products.matmul(a, b) - exact) <= 2 * 34 * u * sums).all()  # two products for each complex one


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 7, 64, 769])
def test_an_element_has_the_same_bits_in_every_product(dtype: str, k: int) -> None:
    a, b = operand(0, dtype, 17, k), operand(1, dtype, k, 40)
    whole = _products.matmul(a, b)
    for rows, columns in [(1, 1), (1, 40), (2, 3), (3, 40), (8, 17), (17, 1)]:
        part = _products.matmul(a[17 - rows :], b[:, 40 - columns :])
        assert part.tobytes() == np.ascontiguousarray(whole[17 - rows :, 40 - columns :]).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_strides_change_no_bit(dtype: str) -> None:
    a, b = operand(0, dtype, 9, 300), operand(1, dtype, 300, 11)
    whole = _products.matmul(a, b)
    gaps_a, gaps_b = np.zeros((18, 601), dtype), np.zeros((22, 301), dtype)
    gaps_a[::2, 1::2], gaps_b[::2, 1:] = a, b.T
    assert (_products.matmul(np.asfortranarray(a), b) == whole).all()
    assert (_products.matmul(gaps_a[::2, 1::2], gaps_b[::2, 1:].T) == whole).all()


@pytest.mark.parametrize("shape", [(4000, 600, 30), (30, 600, 4000), (1, 12000, 1), (5, 12000, 1)])
def test_threads_change_no_bit(shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    m, k, n = shape
    a, b = operand(0, "float32", m, k), operand(1, "float32", k, n)
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "2")
    whole = _products.matmul(a, b)
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "1")
    assert (_products.matmul(a, b) == whole).all()
    assert (_products.matmul(a[-1:], b[:, -1:]) == whole[-1:, -1:]).all()


def test_sums_over_nothing_are_zero() -> None:
    assert (_products.matmul(np.ones((2, 0), "f"), np.ones((0, 3), "f")) == np.zeros((2, 3))).all()
    assert _products.matmul(np.ones((0, 4), "f"), np.ones((4, 3), "f")).shape == (0, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_on_a_device_are_invariant(dtype: str) -> None:
    import cupy

    a, b = (cupy.asarray(operand(seed, dtype, *shape)) for seed, shape in ((0, (5, 24)), (1, (24, 70))))
    whole = _products.matmul(a, b)
    exact = cupy.asnumpy(a).astype(np.float64) @ cupy.asnumpy(b).astype(np.float64)
    assert np.abs(cupy.asnumpy(whole) - exact).max() < (2e-5 if dtype == "float32" else 2e-2)
    assert (_products.matmul(a[3:4], b[:, :65]) == whole[3:4, :65]).all()
