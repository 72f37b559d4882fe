"""Arrays with chunks of irregular sizes, for the tests of gpuconv.dask, which are skipped without dask."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

dask = pytest.importorskip("dask", reason="dask is not installed; the extra [dask] brings it")
da = pytest.importorskip("dask.array", reason="dask is not installed; the extra [dask] brings it")


def chunks(random: Random, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Cut every axis into up to four chunks of any sizes, sometimes into chunks of 1."""
    return tuple(_cut(random, size) for size in shape)


def _cut(random: Random, size: int) -> tuple[int, ...]:
    if size and random.randint(0, 3) == 0:
        return (1,) * size
    cuts = sorted(random.sample(range(1, size), min(size - 1, random.randint(0, 3)))) if size > 1 else []
    return tuple(stop - start for start, stop in pairwise((0, *cuts, size)))


def in_ones(array: Any) -> Any:
    """Return a dask array in chunks of one element along the batch and the spatial axes, and along the channels."""
    return da.from_array(array, chunks=tuple((1,) * size or (0,) for size in array.shape))


def in_chunks(array: Any, sizes: Any) -> Any:
    return da.from_array(np.ascontiguousarray(array), chunks=sizes)
