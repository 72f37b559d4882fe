"""Problems of MaxPool for tests of its planners."""

from __future__ import annotations

from typing import Any

from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.pool.problem import PoolProblem
from gpuconv.rules import geometry as geometries
from tests.harness.plans import channels_last

Ints = tuple[int, ...]


def made(x: Ints, last: bool = False, indices: bool = False, **attributes: Any) -> PoolProblem:
    geometry = geometries.max_pool(x, **attributes)
    of_x, of_y = (lying(shape, last) for shape in (x, geometry.y_shape))
    return PoolProblem(geometry, "float32", of_x, of_y, of_y if indices else None)


def lying(shape: Ints, last: bool) -> Ints:
    return (channels_last if last else contiguous_strides)(shape)
