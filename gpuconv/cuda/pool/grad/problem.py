"""What the gradient of MaxPool comes down to, for the kernels that make it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan import Launch, Limits, Plan, floor, model
from gpuconv.cuda.pool.problem import PoolProblem
from gpuconv.rules.geometry import Ints, MaxPoolGeometry

OPERATOR = "max_pool_grad"


@dataclass(frozen=True)
class PoolGradProblem:
    """One gradient, for arrays with these strides in elements; 0 where an axis is never stepped along."""

    geometry: MaxPoolGeometry
    dtype: str
    dy_strides: Ints
    indices_strides: Ints
    dx_strides: Ints

    @cached_property
    def forward(self) -> PoolProblem:
        """The call that it is the gradient of: with dx as x, and dy as y."""
        return PoolProblem(self.geometry, self.dtype, self.dx_strides, self.dy_strides, self.indices_strides)

    @property
    def spans(self) -> list[int]:
        """Elements between the outermost ones of each array."""
        g = self.geometry
        arrays = ((g.x_shape, self.dx_strides), (g.y_shape, self.dy_strides), (g.y_shape, self.indices_strides))
        return [params.span(shape, strides) for shape, strides in arrays]


def seconds(problem: PoolGradProblem, instructions: float, limits: Limits) -> float:
    """Model the time of a kernel whose threads execute so many instructions in all."""
    least = floor.work(problem.geometry, problem.dtype, backwards=True).bytes
    return model.overlapped(model.instructions(instructions, limits), model.memory(least, limits))


def one_launch(kernel: Variant, threads: int, fields: Mapping[str, Any], reason: str) -> Plan:
    """Return the plan of a kernel with so many threads and these fields in its struct."""
    roles = {"dy": "dy", "indices": "indices", "dx": "y"}
    launch = Launch.of_threads(OPERATOR, kernel, threads, fields, roles)
    return Plan(OPERATOR, (launch,), (f"{kernel.name}: {reason}",))
