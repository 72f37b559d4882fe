"""The problem of Conv's weight gradient, and the struct that its kernels share (``weight_grad/problem.cuh``)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.plan.strided import array_fields, filled
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import ConvGeometry, Ints

OPERATOR = "weight_grad"


def pixels_of_part(pixels: int, unit: int, parts: int) -> int:
    """Return the pixels per part when they are split into ``parts`` parts of whole slices of ``unit`` pixels."""
    slices = -(-pixels // unit)
    return -(-slices // parts) * unit


@dataclass(frozen=True, slots=True)
class WeightGradProblem:
    """One weight gradient, for arrays with these strides in elements.

    ``precision`` is that of float32 products: "ieee", "tf32" or "3xtf32".

    For a complex gradient, ``geometry`` has one more axis over real and imaginary parts, whose 4 taps are the 4
    products of parts. ``dtype`` and the strides of x and dy are those of the real parts; ``result`` and ``w_strides``
    are those of the complex result.

    With ``exchanged`` (weight_grad/exchanged.py), x here is the call's dy, and dy here is the call's x.
    """

    geometry: ConvGeometry
    dtype: str
    x_strides: Ints
    dy_strides: Ints
    w_strides: Ints
    result: str
    precision: str = "ieee"
    exchanged: bool = False

    @property
    def roles(self) -> tuple[str, str]:
        """The call's arrays that act as x and dy here."""
        return ("dy", "x") if self.exchanged else ("x", "dy")

    @property
    def itemsize(self) -> int:
        """Bytes per element of x and dy."""
        return dtypes.entry(self.dtype).itemsize

    @property
    def filters(self) -> int:
        """Output channels per group."""
        return self.geometry.w_shape[0] // self.geometry.group

    @property
    def columns(self) -> int:
        """N of the GEMM: channels per group × taps."""
        return prod(self.geometry.w_shape[1:])

    @property
    def pixels(self) -> int:
        """K of the GEMM: output pixels over all images."""
        return self.geometry.y_shape[0] * prod(self.geometry.y_shape[2:])

    @property
    def bytes(self) -> int:
        """Bytes of all arrays, each counted once."""
        g = self.geometry
        return self.itemsize * (prod(g.x_shape) + prod(g.y_shape) + prod(g.w_shape))

    def reach(self) -> list[int]:
        """Return an upper bound on input coordinates per axis, out-of-bounds ones included."""
        g = self.geometry
        axes = zip(g.y_shape[2:], g.strides, g.pads_begin, g.kernel_shape, g.dilations, strict=True)
        return [max(max(0, q - 1) * s, pad) + (k - 1) * d for q, s, pad, k, d in axes]

    def wide(self) -> bool:
        """Return whether offsets or coordinates need 64-bit indices."""
        g, reach = self.geometry, self.reach()
        extents = (*g.x_shape[:2], *(max(at + 1, n) for at, n in zip(reach, g.x_shape[2:], strict=True)))
        magnitudes = [params.span(extents, self.x_strides), params.span(g.y_shape, self.dy_strides), *reach]
        return params.needs_wide(OPERATOR, [*magnitudes, *g.strides, *g.dilations, self.pixels, prod(g.w_shape)])

    def fields(self, rank: int, tiles: tuple[int, int], pixels: int) -> dict[str, Any]:
        """Return the fields of ``WeightGradParams``; ``tiles`` are those of a group, ``pixels`` those of a part.

        Problems with fewer than ``rank`` spatial axes get leading axes of one element.
        """
        g = self.geometry
        strides = [1 if q == 1 else s for q, s in zip(g.y_shape[2:], g.strides, strict=True)]
        dilations = [1 if k == 1 else d for k, d in zip(g.kernel_shape, g.dilations, strict=True)]
        return {
            "channels": g.w_shape[1],
            **params.members(self, "filters", "columns", "pixels"),
            "each": pixels,
            "all": prod(g.w_shape),
            **array_fields({"x": self.x_strides, "dy": self.dy_strides}, rank),
            "groups": g.group,
            "m_tiles": tiles[0],
            "n_tiles": tiles[1],
            "x_extent": filled(g.x_shape[2:], rank, 1),
            "stride": filled(strides, rank, 1),
            "pad": filled(g.pads_begin, rank, 0),
            "dilation": filled(dilations, rank, 1),
            "extent": filled(g.y_shape[2:], rank, 1),
            "count": filled(g.kernel_shape, rank, 1),
        }
