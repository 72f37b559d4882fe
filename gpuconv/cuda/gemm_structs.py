"""Layouts of the structs of Conv, ConvTranspose and the packing of weights, field by field as in ``kernels_cu``."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gpuconv.cuda import params


@cache
def finish() -> np.dtype[Any]:
    """Return the layout of ``Finish``."""
    numbers = [(name, "<u8") for name in ("slope", "low", "high")]
    return params.layout([("residual", params.POINTER), *numbers, ("acts", "<i4")])


@cache
def correlation(wide: bool, rank: int) -> np.dtype[Any]:
    """Return the layout of ``Correlation<Index, NDIM>``."""
    index, axes, divider = params.index(wide), (rank,), params.divider(wide)
    return params.layout(
        [
            *((name, params.POINTER) for name in ("x", "weights", "b", "y")),
            *((name, index) for name in ("channels", "filters", "pixels", "pitch", "all_rows")),
            *params.array_layout(("x",), index, axes, extents=True),
            *params.array_layout(("y",), index, axes),
            ("b_stride", index),
            ("stride", index, axes),
            ("extent", divider, axes),
            ("by_channel", divider),
            ("m_tiles", params.divider(False)),
            ("n_tiles", params.divider(False)),
            ("finish", finish()),
        ]
    )


@cache
def taps(wide: bool, rank: int) -> np.dtype[Any]:
    """Return the layout of ``Taps<Index, NDIM>``."""
    index, axes = params.index(wide), (rank,)
    return params.layout(
        [
            *((name, index, axes) for name in ("start", "advance", "row")),
            ("count", params.divider(wide), axes),
            ("first_row", index),
            ("rows", index),
            ("limit", index, axes),
            ("y_first", index),
        ]
    )


@cache
def transposed_axis(wide: bool) -> np.dtype[Any]:
    """Return the layout of ``TransposedAxis<Index>``."""
    index = params.index(wide)
    names = ("stride", "pad", "dilation", "kernel", "common", "inverse", "extent", "row", "y_stride")
    return params.layout([*((name, index) for name in names), ("phases", params.divider(wide))])


@cache
def operands(operator: str, wide: bool, rank: int) -> np.dtype[Any]:
    """Return the layout of ``ConvParams<Index, NDIM>`` or ``ConvTransposeParams<Index, NDIM>``."""
    common = ("common", correlation(wide, rank))
    if operator == "conv":
        return params.layout([common, ("taps", taps(wide, rank))])
    return params.layout([common, ("axes", transposed_axis(wide), (rank,)), ("phases", params.divider(False))])


@cache
def split_operands(operator: str, rank: int) -> np.dtype[Any]:
    """Return the layout of ``ConvSplitParams<int, NDIM>`` or ``ConvTransposeSplitParams<int, NDIM>``."""
    whole = operands(operator, False, rank)
    return params.layout([*((name, whole[name]) for name in whole.names or ()), ("splits", splits())])


@cache
def depth_to_space() -> np.dtype[Any]:
    """Return the layout of ``DepthToSpaceParams<int, 3>``."""
    index = params.index(False)
    axis = params.layout([*((name, index) for name in ("pad", "extent", "y_stride")), ("taps", params.divider(False))])
    common, one_tap = correlation(False, 3), taps(False, 3)
    return params.layout([("common", common), ("taps", one_tap), ("axes", axis, (3,)), ("out_channels", index)])


@cache
def splits() -> np.dtype[Any]:
    """Return the layout of ``Splits``."""
    numbers = [("count", params.divider(False)), *((name, "<i4") for name in ("whole", "ticket_bytes", "part"))]
    return params.layout([("workspace", params.POINTER), *numbers])


@cache
def few(rank: int) -> np.dtype[Any]:
    """Return the layout of ``ConvFewParams<int, NDIM>``."""
    steps = [*((name, "<i4") for name in ("w_group", "w_filter", "w_channel")), ("w_stride", "<i4", (rank,))]
    counts = [("all_taps", "<i4"), ("channels_at_once", "<i4")]
    return params.layout([("common", correlation(False, rank)), ("taps", taps(False, rank)), *steps, *counts])


@cache
def pointwise() -> np.dtype[Any]:
    """Return the layout of ``ConvPointwiseParams``."""
    steps = [(name, "<i4") for name in ("w_group", "w_filter", "w_channel")]
    return params.layout([("common", correlation(False, 1)), ("taps", taps(False, 1)), *steps])


@cache
def stem() -> np.dtype[Any]:
    """Return the layout of ``StemParams``."""
    divider = params.divider(False)
    return params.layout(
        [
            ("common", correlation(False, 4)),
            ("taps", taps(False, 4)),
            ("tiles", divider, (3,)),
            *((name, "<i4") for name in ("row_bits", "column_bits", "runs", "lead")),
            *((name, divider) for name in ("chunks", "band_rows", "band_depths")),
            *((name, "<i4") for name in ("band_columns", "units")),
            ("pitch", "<i4", (3,)),
            *((name, "<i4") for name in ("shift", "copies", "copy_bytes", "band_bytes")),
            ("steps_of_row", divider),
            *((name, "<i4") for name in ("steps", "step_bytes", "channel_vectors", "pixel_vectors", "passes")),
        ]
    )


@cache
def tickets() -> np.dtype[Any]:
    """Return the layout of ``Tickets``."""
    return params.layout([("first", params.POINTER), ("count", "<i4")])


@cache
def packing(wide: bool, rank: int) -> np.dtype[Any]:
    """Return the layout of ``PackParams<Index, NDIM>``."""
    index, divider = params.index(wide), params.divider(wide)
    return params.layout(
        [
            ("w", params.POINTER),
            ("packed", params.POINTER),
            *((name, index) for name in ("filters", "channels", "pitch", "rows", "w_group", "w_filter", "w_channel")),
            ("w_stride", index, (rank,)),
            ("by_tap", divider),
            ("taps", divider, (rank,)),
            ("m_squares", params.divider(False)),
            ("row_squares", params.divider(False)),
            ("tickets", tickets()),
        ]
    )


@cache
def fragments() -> np.dtype[Any]:
    """Return the layout of ``PackFragmentsParams<3>``."""
    divider = params.divider(False)
    return params.layout(
        [
            ("w", params.POINTER),
            ("packed", params.POINTER),
            *((name, "<i4") for name in ("filters", "channels", "taps", "w_group", "w_filter", "w_channel")),
            ("w_stride", "<i4", (3,)),
            *((name, divider) for name in ("tap_parts", "rows", "columns", "depths", "by_channel")),
            ("extent", divider, (3,)),
            ("outer_taps", "<i4"),
            ("tickets", tickets()),
        ]
    )
