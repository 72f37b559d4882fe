"""Problems of several blocks: many channels, pixels, images and taps, with much and little memory.

Values are small integers, so that every result is exact; the reference pads, slides a window and contracts.
"""

from __future__ import annotations

import pytest

import gpuconv
from tests.oracle import large
from tests.oracle.oracle import assert_same

pytestmark = pytest.mark.slow

# float32 has the same blocks, and smaller problems also convert float16 in several blocks.
FLOAT16 = pytest.param("float16", marks=pytest.mark.thorough)


@pytest.fixture(params=[None, 2**16], ids=["plenty of memory", "64 KiB"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param is not None:
        monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", str(request.param))


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("dtype", [FLOAT16, "float32"])
@pytest.mark.parametrize(("operator", "name"), large.CALLS)
def test_large_convolutions_are_exact(operator: str, name: str, dtype: str) -> None:
    arrays, attributes, expected = large.convolution(operator, name, dtype)
    assert_same(getattr(gpuconv, operator)(*arrays, **attributes), expected, bits=False)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("dtype", [FLOAT16, "float32", "uint8"])
@pytest.mark.parametrize("name", large.POOLS)
def test_large_maxima_are_exact(name: str, dtype: str) -> None:
    x, attributes, (y, indices) = large.pool(name, dtype)
    actual, actual_indices = gpuconv.max_pool(x, **attributes, return_indices=True)
    assert_same(actual, y, bits=False)
    assert_same(actual_indices, indices)
    assert_same(gpuconv.max_pool(x, **attributes), y, bits=False)
