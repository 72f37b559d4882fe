"""The normalised problem of the gradients of pooling, and the plan of their single launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan import Launch, Limits, Plan, floor, model
from gpuconv.cuda.pool.problem import Geometry, PoolProblem, blocks_of
from gpuconv.rules.geometry import Ints


@dataclass(frozen=True)
class PoolGradProblem:
    """One gradient, for arrays with these strides in elements; strides of axes of length 1 are 0."""

    geometry: Geometry
    dtype: str
    dy_strides: Ints
    indices_strides: Ints | None  # None for averages
    dx_strides: Ints

    @cached_property
    def forward(self) -> PoolProblem:
        """The forward problem, with dx in place of x and dy in place of y."""
        return PoolProblem(self.geometry, self.dtype, self.dx_strides, self.dy_strides, self.indices_strides)

    @property
    def operator(self) -> str:
        """Name of the public function."""
        return f"{self.forward.operator}_grad"

    @property
    def arrays(self) -> dict[str, Ints]:
        """Array name → strides, for the arrays of this gradient."""
        arrays = {"dx": self.dx_strides, "dy": self.dy_strides}
        return arrays if self.indices_strides is None else {**arrays, "indices": self.indices_strides}

    @cached_property
    def bytes(self) -> int:
        """Minimum memory traffic in bytes."""
        return floor.work(self.geometry, self.dtype, backwards=True).bytes

    @property
    def spans(self) -> list[int]:
        """Extent in elements that each array's strides span."""
        g = self.geometry
        arrays = [(g.x_shape if name == "dx" else g.y_shape, strides) for name, strides in self.arrays.items()]
        return [params.span(shape, strides) for shape, strides in arrays]


def seconds(
    problem: PoolGradProblem, kernel: Variant, threads: int, instructions: float, trips: float, limits: Limits
) -> float:
    """Model the seconds of a kernel with ``instructions`` over all threads; ``trips`` as in `model.Blocks`."""
    return model.streaming(blocks_of(kernel, threads, instructions, trips, limits), problem.bytes, limits)


def one_launch(
    problem: PoolGradProblem,
    kernel: Variant,
    threads: int,
    fields: Mapping[str, Any],
    reason: str,
    shared_bytes: int = 0,
) -> Plan:
    """Return the plan of a single launch with ``threads`` threads, in whole blocks."""
    roles = {name: "y" if name == "dx" else name for name in problem.arrays}
    launch = Launch.of_threads(problem.operator, kernel, threads, fields, roles, shared_bytes)
    return Plan(problem.operator, (launch,), (f"{kernel.name}: {reason}",))
