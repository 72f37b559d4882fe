"""Problems that cross the borders of blocks: many channels, pixels, images and taps, in ample and in little memory.

The values are small integers, so that every result is exact; the reference pads, slides a window and contracts.
"""

from __future__ import annotations

import numpy as np
import pytest

import gpuconv
from tests.oracle.large import (
    CONVOLUTIONS,
    POOLS,
    TRANSPOSED,
    conv_reference,
    conv_transpose_reference,
    max_pool_reference,
)
from tests.oracle.operands import filled, values
from tests.oracle.oracle import assert_same, round_to

pytestmark = pytest.mark.slow

# float32 takes the same blocks, and smaller problems convert float16 in several blocks too.
FLOAT16 = pytest.param("float16", marks=pytest.mark.thorough)


@pytest.fixture(params=[None, 2**16], ids=["plenty of memory", "64 KiB"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param is not None:
        monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", str(request.param))


# ---------------------------------------------------------------- the reference


# ---------------------------------------------------------------- right in any memory


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("dtype", [FLOAT16, "float32"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_large_convolutions_are_exact(name: str, dtype: str) -> None:
    arrays, attributes = filled("conv", *CONVOLUTIONS[name], dtype)
    expected = conv_reference(*(array.astype(np.float64) for array in arrays), attributes)
    assert_same(gpuconv.conv(*arrays, **attributes), round_to(expected, dtype), bits=False)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("dtype", [FLOAT16, "float32"])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_large_transposed_convolutions_are_exact(name: str, dtype: str) -> None:
    arrays, attributes = filled("conv_transpose", *TRANSPOSED[name], dtype)
    expected = conv_transpose_reference(*(array.astype(np.float64) for array in arrays), attributes)
    assert_same(gpuconv.conv_transpose(*arrays, **attributes), round_to(expected, dtype), bits=False)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("dtype", [FLOAT16, "float32", "uint8"])
@pytest.mark.parametrize("name", POOLS)
def test_large_maxima_are_exact(name: str, dtype: str) -> None:
    shape, attributes = POOLS[name]
    x = values("any integer" if dtype == "uint8" else "integers", 5, shape, dtype)
    y, indices = max_pool_reference(x.astype(np.float64), attributes)
    actual, actual_indices = gpuconv.max_pool(x, **attributes, return_indices=True)
    assert_same(actual, y.astype(dtype), bits=False)
    assert_same(actual_indices, indices)
    assert_same(gpuconv.max_pool(x, **attributes), y.astype(dtype), bits=False)
