"""Layouts of the structs of convolution by wgmma, field by field as in ``kernels_cu/include/wgmma_params.cuh``."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gpuconv.cuda import gemm_structs, params
from gpuconv.cuda.correlation import RANK

_ALIGNMENT = 64  # of CUtensorMap


@cache
def loading() -> np.dtype[Any]:
    """Return the layout of ``Loading``."""
    numbers = [(name, "<i4") for name in ("channel_slices", "parts", "x_group", "x_part")]
    return params.layout([("axes", "<i4"), ("lower", "<i4", (RANK,)), *numbers])


@cache
def convolution(operator: str) -> np.dtype[Any]:
    """Return the layout of ``WgmmaParams`` of ``ConvParams<int, 3>`` or ``ConvTransposeParams<int, 3>``."""
    return params.layout(_fields(operator), _ALIGNMENT)


@cache
def strips() -> np.dtype[Any]:
    """Return the layout of ``Strips``."""
    divider = params.divider(False)
    return params.layout(
        [
            ("extent", divider, (RANK,)),
            *((name, "<i4") for name in ("rows", "columns")),
            ("taps", divider, (RANK,)),
            *((name, "<i4") for name in ("inner", "pieces", "piece_h", "piece_w", "column_h", "column_w")),
            *((name, "<i4") for name in ("shift", "stages", "bytes", "resident")),
        ]
    )


@cache
def convolution_of_strips() -> np.dtype[Any]:
    """Return the layout of ``WgmmaStripsParams``."""
    return params.layout([*_fields("conv"), ("strips", strips())], _ALIGNMENT)


@cache
def pixel_strips() -> np.dtype[Any]:
    """Return the layout of ``PixelStrips``."""
    divider = params.divider(False)
    return params.layout(
        [
            ("extent", divider, (RANK,)),
            *((name, "<i4") for name in ("rows", "columns")),
            ("taps", divider, (RANK,)),
            *((name, "<i4") for name in ("inner_h", "inner_w", "pieces", "piece_bytes", "piece_h", "piece_w")),
            ("run", divider),
            *((name, "<i4") for name in ("column_h", "column_w", "place_run", "place_column", "shift_h", "shift_w")),
            *((name, "<i4") for name in ("pitch", "stages", "bytes")),
        ]
    )


@cache
def convolution_of_pixels() -> np.dtype[Any]:
    """Return the layout of ``WgmmaPixelsParams``."""
    return params.layout([*_fields("conv"), ("strips", pixel_strips())], _ALIGNMENT)


def _fields(operator: str) -> list[tuple[Any, ...]]:
    return [
        ("x_map", *params.MAP),
        ("w_map", *params.MAP),
        ("problem", gemm_structs.operands(operator, False, RANK)),
        ("loading", loading()),
        ("splits", gemm_structs.splits()),
        ("items", "<i4"),
    ]


OF_STRIPS, OF_PIXELS = "WgmmaStripsParams", "WgmmaPixelsParams"  # the CUDA types that have these layouts


def parameter(operator: str) -> str:
    """Return the CUDA type that has the layout of ``convolution``."""
    problem = "ConvParams" if operator == "conv" else "ConvTransposeParams"
    return f"WgmmaParams<{problem}<int, {RANK}>>"
