"""Plans that name every kernel of gradients, MaxUnpool, complex numbers and copies, for the table of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from gpuconv.cuda import planning
from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.pool import unpool
from gpuconv.cuda.pool.grad import families as pool_grad_families
from gpuconv.cuda.pool.grad import problem as pool_grad_problem
from gpuconv.rules import dtypes, gradients
from gpuconv.rules.operators import OPERATORS, Operator
from gpuconv.rules.precision import PRECISIONS
from tests.harness.offered import candidates

_LIMITS = representative("sm_90a").limits
_FAR = 2**31  # elements from one image to the next that ask for 64-bit indices
_GRADIENTS = tuple(name for name in OPERATORS if name.endswith("_grad"))
_WINDOWS = ((1, 1), (2, 2), (3, 2), (3, 1), (3, 3), (6, 1))  # sizes and strides of pools
_CALLS = (
    *product(("conv", "conv_transpose"), dtypes.COMPLEX_DTYPES),
    *product([name for name in _GRADIENTS if name != "max_pool_grad"], dtypes.CONV_DTYPES + dtypes.COMPLEX_DTYPES),
    *product(["max_pool_grad"], dtypes.CONV_DTYPES),
    *product(["max_unpool"], dtypes.MAX_POOL_DTYPES),
)


def plans() -> Iterator[Plan]:
    """Yield plans of every candidate for all dtypes, widths of indices and layouts, over up to four axes."""
    yield unpool.for_check(3, (2, 3), (3, 1), _LIMITS)
    yield unpool.for_check(3, (2, 3), (1, 2), _LIMITS)
    yield from _copies()
    for (name, dtype), rank, wide, last in product(_CALLS, (2, 4), (False, True), (False, True)):
        if rank == 2 or dtype not in dtypes.COMPLEX_DTYPES:
            yield from _plans(OPERATORS[name], "transpose" in name, dtype, rank, wide, last)
    for dtype, (kernel, stride) in product(dtypes.CONV_DTYPES, _WINDOWS):
        yield from _pool_grad_plans(dtype, kernel, stride)


def _plans(operator: Operator, transposed: bool, dtype: str, rank: int, wide: bool, last: bool) -> Iterator[Plan]:
    """Of one operator, for two images of 16 channels and 3 elements along each axis."""
    kernel = [2] * rank
    x, w, y = (2, 16, *[3] * rank), (16, 16, *kernel), (2, 16, *[4 if transposed else 2] * rank)
    shapes = {"x": x, "dy": y, "w": w, "b": (16,), "indices": y, "y": y}
    known: dict[str, Any] = {"x_shape": x, "w_shape": w, "kernel_shape": kernel}
    inputs = [shapes[name] for name in operator.inputs]
    geometry = operator.geometry(*inputs, **{name: known[name] for name in operator.attributes if name in known})
    arrays = [
        (role, shape, operator.follows_layout(name))
        for (name, role), shape in zip(operator.inputs.items(), inputs, strict=True)
    ]
    arrays.append(("y", operator.result(geometry), operator.follows_layout("out")))
    strides = {role: _strides(shape, wide, last and moves) for role, shape, moves in arrays}
    for precision in PRECISIONS if dtype == "float32" else ("ieee",):
        for turn in offers.every_candidate():
            with turn:
                yield planning.plan(operator.kernel, geometry, dtype, strides, _LIMITS, precision)


def _pool_grad_plans(dtype: str, kernel: int, stride: int) -> Iterator[Plan]:
    x, attributes = (2, 3, 14, 15), {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
    y = OPERATORS["max_pool"].geometry(x, **attributes).y_shape
    geometry = gradients.max_pool_grad(y, y, x_shape=x, **attributes)
    arrays = contiguous_strides(y), contiguous_strides(y), contiguous_strides(x)
    problem = pool_grad_problem.PoolGradProblem(geometry, dtype, *arrays)
    yield from (one.make() for one in candidates(pool_grad_families, problem, _LIMITS))


def _copies() -> Iterator[Plan]:
    """Yield plans that copy a residual whose channels are neighbours to where those of the result are not."""
    x, w, y = (2, 16, 3, 3), (16, 16, 2, 2), (2, 16, 2, 2)
    geometry = OPERATORS["conv"].geometry(x, w)
    for dtype, wide in product(dtypes.CONV_DTYPES, (False, True)):
        strides = {role: _strides(shape, wide, False) for role, shape in {"x": x, "w": w, "y": y}.items()}
        strides["residual"] = _strides(y, wide, True)
        yield planning.plan("conv", geometry, dtype, strides, _LIMITS, "ieee")


def _strides(shape: tuple[int, ...], wide: bool, last: bool) -> tuple[int, ...]:
    order = (shape[0], *shape[2:], shape[1]) if last else shape
    first, *rest = contiguous_strides(order)
    found = (_FAR if wide else first, *rest)
    return (found[0], found[-1], *found[1:-1]) if last else found
