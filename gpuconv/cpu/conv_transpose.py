"""ConvTranspose on NumPy arrays: which way to compute it."""

from __future__ import annotations

from gpuconv.cpu import _scatter, _taps
from gpuconv.cpu._finish import PLAIN, Finish, fill
from gpuconv.cpu._threads import quietly
from gpuconv.cpu._workspace import Array
from gpuconv.rules import dtypes
from gpuconv.rules.geometry import ConvTransposeGeometry


@quietly
def conv_transpose(
    x: Array, w: Array, b: Array | None, y: Array, geometry: ConvTransposeGeometry, finish: Finish = PLAIN
) -> None:
    """Write ConvTranspose of x and w, plus b, into y, finished."""
    accumulator = dtypes.accumulator(x.dtype)
    if 0 in (x.size, w.size, y.size):
        fill(y, b, finish, accumulator)
        return
    done = False
    if _scatter.serves(len(geometry.kernel_shape)):
        weights = w.reshape(geometry.group, w.shape[0] // geometry.group, *w.shape[1:])  # (G, C/G, M/G, k_1, …)
        strides, offsets = geometry.strides, geometry.offsets
        done = _scatter.run(_scatter.ScatterProblem(x, weights, b, y, finish, strides, offsets, accumulator))
    if not done:
        _taps.conv_transpose(x, w, b, y, geometry, accumulator, finish)
