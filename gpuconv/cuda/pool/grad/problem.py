"""What the gradient of MaxPool comes down to, for the kernels that make it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan import floor, launching, model
from gpuconv.cuda.plan.launch import Limits, Plan
from gpuconv.cuda.pool import problem as pool_problem
from gpuconv.cuda.pool.problem import Axis
from gpuconv.rules.geometry import Ints, MaxPoolGeometry

OPERATOR = "max_pool_grad"


@dataclass(frozen=True, slots=True)
class Problem:
    """One gradient, for arrays with these strides in elements; 0 where an axis is never stepped along."""

    geometry: MaxPoolGeometry
    dtype: str
    dy_strides: Ints
    indices_strides: Ints
    dx_strides: Ints

    @property
    def axes(self) -> list[Axis]:
        """The spatial axes, as the forward call has them."""
        return self._forward.axes

    @property
    def place_strides(self) -> Ints:
        """Per spatial axis, from one element's number to the next one's."""
        return self._forward.place_strides

    @property
    def channels_last(self) -> bool:
        """Whether channels lie closer together than the elements of any spatial axis, in dx and in dy."""
        return self._forward.channels_last

    @property
    def _forward(self) -> pool_problem.Problem:
        return pool_problem.Problem(self.geometry, self.dtype, self.dx_strides, self.dy_strides, self.indices_strides)

    @property
    def arrays(self) -> dict[str, Ints]:
        """Strides by name, as the kernels' structs have them."""
        return {"dx": self.dx_strides, "dy": self.dy_strides, "indices": self.indices_strides}

    @property
    def shapes(self) -> dict[str, Ints]:
        """Shapes by name."""
        return {"dx": self.geometry.x_shape, "dy": self.geometry.y_shape, "indices": self.geometry.y_shape}


def seconds(problem: Problem, instructions: float, limits: Limits) -> float:
    """Model the time of a kernel whose threads execute so many instructions in all."""
    least = floor.work(problem.geometry, problem.dtype, backwards=True).bytes
    return model.overlapped(model.instructions(instructions, limits), model.memory(least, limits))


def one_launch(kernel: Variant, threads: int, fields: Mapping[str, Any], reason: str) -> Plan:
    """Return the plan of a kernel with so many threads and these fields in its struct."""
    roles = {"dy": "dy", "indices": "indices", "dx": "y"}
    launch = launching.of_threads(OPERATOR, kernel, threads, fields, roles)
    return Plan(OPERATOR, (launch,), (f"{kernel.name}: {reason}",))
