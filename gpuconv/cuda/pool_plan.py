"""Plans of MaxPool. The struct mirrors ``MaxPoolParams`` of ``kernels_cu/max_pool.cu``; strides count elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gpuconv import _dtypes
from gpuconv._geometry import Ints, MaxPoolGeometry, tap_range
from gpuconv.cuda import params
from gpuconv.cuda.plan import Launch, Limits, Plan, Variant

_OPERATOR = "max_pool"
_THREADS = 256
_BATCH = 3  # kBatch in max_pool.cu: numbers of places run up to so many taps past a window
_MOST_BLOCKS = 2**31 - 1  # along x; the rest stands along y
_RANKS = (1, 2, 3, 4)


def for_max_pool(
    geometry: MaxPoolGeometry,
    dtype: str,
    x_strides: Ints,
    y_strides: Ints,
    indices_strides: Ints | None,
    limits: Limits,
) -> Plan:
    """Plan MaxPool for arrays with these strides in elements (``indices_strides`` None for the values alone).

    Raises
    ------
    ArgumentError
        The problem needs more than 64-bit indices.
    """
    if 0 in geometry.y_shape:
        return Plan(_OPERATOR, (), 0, "", ("the result has no elements: nothing is launched",))
    problem = _Problem(geometry, dtype, x_strides, y_strides, indices_strides)
    launch, reason = next(found for candidate in _CANDIDATES if (found := candidate(problem, limits)) is not None)
    return Plan(_OPERATOR, (launch,), 0, "", (reason,))


@dataclass(frozen=True, slots=True)
class _Axis:
    """One spatial axis: window ``q`` begins at ``q * stride - pad`` and covers ``reach`` elements.

    Taps that lie outside of the input for every window are cut off, and what then has no effect (the stride of a single
    window, the dilation of a single tap) is made small, so that it asks for no wider indices.
    """

    extent: int
    windows: int
    stride: int
    pad: int
    reach: int
    dilation: int

    @property
    def step(self) -> int:
        """Elements from one tap to the next where two can lie inside the input; else no more than the axis has."""
        return min(self.dilation, self.extent)

    @property
    def coordinates(self) -> Ints:
        """The largest numbers that the kernel computes on the way to the clipped window."""
        last = (self.windows - 1) * self.stride
        return last, abs(self.pad), last - self.pad + self.reach, self.reach, self.dilation


def _axis(extent: int, windows: int, kernel: int, stride: int, dilation: int, begin: int) -> _Axis:
    last = (windows - 1) * stride
    low, high = tap_range(kernel, extent + last, dilation, last - begin)
    if extent == 0 or low == high:
        return _Axis(extent, windows, 0, 0, 0, 1)
    pad = begin - low * dilation
    if high - low == 1:
        dilation = 1
    return _Axis(extent, windows, stride if windows > 1 else 0, pad, (high - low - 1) * dilation + 1, dilation)


@dataclass(frozen=True, slots=True)
class _Problem:
    """What the candidates look at."""

    geometry: MaxPoolGeometry
    dtype: str
    x_strides: Ints
    y_strides: Ints
    indices_strides: Ints | None

    @property
    def axes(self) -> list[_Axis]:
        g = self.geometry
        columns = (g.x_shape[2:], g.y_shape[2:], g.kernel_shape, g.strides, g.dilations, g.pads_begin)
        return [_axis(*numbers) for numbers in zip(*columns, strict=True)]

    @property
    def place_strides(self) -> Ints:
        """Per spatial axis, from one element's number to the next one's; zeros where no numbers are asked for."""
        extents = self.geometry.x_shape[2:]
        if self.indices_strides is None:
            return (0,) * len(extents)
        if self.geometry.storage_order:
            return tuple(prod(extents[:axis]) for axis in range(len(extents)))
        return tuple(prod(extents[axis + 1 :]) for axis in range(len(extents)))


# ---------------------------------------------------------------- one output a thread


def variant(dtype: str, wide: bool, ndim: int, indices: bool) -> Variant:
    """Return the kernel for a dtype, an index width, a number of spatial axes, with indices or without."""
    index = params.index_name(wide)
    return Variant(
        name=f"max_pool_{dtype}_{ndim}d" + "_indices" * indices + "_wide" * wide,
        source="max_pool.cu",
        function="max_pool",
        arguments=(_dtypes.entry(dtype).cuda, index, str(ndim), str(indices).lower()),
        parameter=f"MaxPoolParams<{index}, {ndim}>",
        layout=_layout(wide, ndim),
        threads=_THREADS,
        blocks_per_sm=_blocks_per_sm(wide, ndim),
    )


def _blocks_per_sm(wide: bool, ndim: int) -> int:
    """As many as leave a thread the registers that it uses: every axis has its strides, steps and window."""
    few_axes = ndim <= 3
    if wide:
        return 4 if few_axes else 2  # 64 or 128 registers a thread
    return 6 if few_axes else 4  # 40 or 64


def variants() -> list[Variant]:
    """Return every kernel that a plan can name, for one to four spatial axes."""
    flags = (False, True)
    return [variant(*row) for row in product(_dtypes.MAX_POOL_DTYPES, flags, _RANKS, flags)]


def _one_output_a_thread(problem: _Problem, limits: Limits) -> tuple[Launch, str]:
    outputs = prod(problem.geometry.y_shape)
    fields = _fields(problem)
    largest = max(_magnitudes(problem, fields))
    wide = params.needs_wide(_OPERATOR, [largest])
    kernel = variant(problem.dtype, wide, len(problem.axes), problem.indices_strides is not None)
    blocks = -(-outputs // _THREADS)
    across = min(blocks, _MOST_BLOCKS)
    launch = Launch(
        variant=kernel,
        grid=(across, -(-blocks // across), 1),
        shared_bytes=0,
        parameters=params.pack(kernel.layout, fields | _dividers(problem, wide)),
        pointers=tuple(_pointers(problem, kernel.layout)),
    )
    reason = (
        f"{kernel.name}: one output a thread, {outputs} outputs in {blocks} blocks of {_THREADS} threads; "
        f"{64 if wide else 32}-bit indices, the largest number being {largest}"
    )
    return launch, reason


_Candidate = Callable[[_Problem, Limits], tuple[Launch, str] | None]
_CANDIDATES: list[_Candidate] = [_one_output_a_thread]  # the first one that takes the problem makes it


@cache
def _layout(wide: bool, ndim: int) -> np.dtype[Any]:
    index, divider, axes = params.index(wide), params.divider(wide), (ndim,)
    arrays = [
        field
        for array in ("x", "y", "indices")
        for field in ((f"{array}_batch", index), (f"{array}_channel", index), (f"{array}_stride", index, axes))
    ]
    return params.layout(
        [
            *((name, params.POINTER) for name in ("x", "y", "indices")),
            ("plane", "<i8"),
            ("outputs", index),
            *((name, index, axes) for name in ("x_extent", "stride", "pad", "reach")),
            *arrays,
            *((name, index, axes) for name in ("place_stride", "x_step", "place_step")),
            ("dilation", divider, axes),
            ("y_extent", divider, axes),
            ("channels", divider),
        ]
    )


def _fields(problem: _Problem) -> dict[str, Any]:
    """Return the struct's numbers but for its dividers, which depend on the index width."""
    geometry, axes = problem.geometry, problem.axes
    x_strides = _used(geometry.x_shape, problem.x_strides)
    places = problem.place_strides
    fields: dict[str, Any] = {
        "plane": prod(geometry.x_shape[2:]),
        "outputs": prod(geometry.y_shape),
        "x_extent": [axis.extent for axis in axes],
        "stride": [axis.stride for axis in axes],
        "pad": [axis.pad for axis in axes],
        "reach": [axis.reach for axis in axes],
        "place_stride": list(places),
        "x_step": [axis.step * stride for axis, stride in zip(axes, x_strides[2:], strict=True)],
        "place_step": [axis.step * stride for axis, stride in zip(axes, places, strict=True)],
    }
    arrays = {"x": x_strides, "y": _used(geometry.y_shape, problem.y_strides)}
    arrays["indices"] = _used(geometry.y_shape, problem.indices_strides or (0,) * len(geometry.y_shape))
    for name, (batch, channel, *spatial) in arrays.items():
        fields |= {f"{name}_batch": batch, f"{name}_channel": channel, f"{name}_stride": spatial}
    return fields


def _dividers(problem: _Problem, wide: bool) -> dict[str, Any]:
    return {
        "dilation": params.divisions([axis.dilation for axis in problem.axes], wide),
        "y_extent": params.divisions(problem.geometry.y_shape[2:], wide),
        "channels": params.division(problem.geometry.y_shape[1], wide),
    }


def _used(shape: Ints, strides: Ints) -> Ints:
    """Strides without those of axes that are never stepped along, which may be anything."""
    return tuple(0 if extent <= 1 else stride for extent, stride in zip(shape, strides, strict=True))


def _magnitudes(problem: _Problem, fields: dict[str, Any]) -> Iterator[int]:
    """Yield what must fit into an index.

    Offsets count elements, not bytes: the kernel adds them to pointers, which is done in 64 bits. A broadcast array has
    more elements than memory, and what counts there are their numbers within a plane (and ``plane``, always 64 bits).
    """
    geometry = problem.geometry
    yield fields["outputs"]
    for axis in problem.axes:
        yield from axis.coordinates
    yield _span(geometry.x_shape, problem.x_strides)
    yield _span(geometry.y_shape, problem.y_strides)
    yield from (abs(step) for step in fields["x_step"])
    if problem.indices_strides is not None:
        yield _span(geometry.y_shape, problem.indices_strides)
        yield fields["plane"] + _BATCH * max(fields["place_step"])


def _span(shape: Ints, strides: Sequence[int]) -> int:
    """Return how many elements lie between the outermost ones of an array."""
    return sum((extent - 1) * abs(stride) for extent, stride in zip(shape, strides, strict=True) if extent > 1)


def _pointers(problem: _Problem, layout: np.dtype[Any]) -> Iterator[tuple[str, int]]:
    assert layout.fields is not None
    for name in ("x", "y") if problem.indices_strides is None else ("x", "y", "indices"):
        yield name, layout.fields[name][1]
