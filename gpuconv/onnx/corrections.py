"""Operators of ordinary networks that onnx's reference evaluator computes otherwise than their specification says.

A network is only as right as its worst node. The backend puts these in the evaluator's place where that one

- normalises BatchNormalization of opsets 7 to 13 by the batch's own statistics, as in training;
- sums the squares of LRN for as many channels as there are images;
- takes Softmax, LogSoftmax and Hardmax along one axis at opsets where they span all axes from the given one on;
- pads AveragePool by (begin, end, begin, end), at rank 2 only, and with a Python loop over every window.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto
from onnx.reference.op_run import OpRun

from gpuconv import _geometry
from gpuconv._errors import GpuconvError
from gpuconv.onnx import nodes


def find(node: NodeProto, opset: int) -> type[OpRun] | None:
    """Return the class to use in the evaluator's place, or None where the evaluator is right."""
    if node.op_type not in _RANGES:
        return None
    cls, first, last = _RANGES[node.op_type]
    training = node.op_type == "BatchNormalization" and sum(map(bool, node.output)) > 1
    return None if training or not first <= opset <= last else cls


class BatchNormalization(OpRun):
    """Inference: by the mean and the variance that come as inputs."""

    op_schema = onnx.defs.get_schema("BatchNormalization", 9)

    def _run(
        self, x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float = 1e-5, **_: Any
    ) -> tuple[Any, ...]:
        ones = (1,) * (x.ndim - 2)
        # Before opset 9, spatial=0 has parameters of the shape of an image; those fit as they are.
        scale, bias, mean, var = (p.reshape(-1, *ones) if p.ndim == 1 else p for p in (scale, bias, mean, var))
        factor = scale / np.sqrt(var + x.dtype.type(epsilon))
        return (((x - mean) * factor + bias).astype(x.dtype),)


class LRN(OpRun):
    """Across channels: c - floor((size - 1) / 2) to c + ceil((size - 1) / 2)."""

    def _run(self, x: Any, alpha: float, beta: float, bias: float, size: int) -> tuple[Any, ...]:
        squares = np.square(x, dtype=np.result_type(x.dtype, np.float32))
        total = np.zeros_like(squares)
        channels = x.shape[1]
        for offset in range(-min((size - 1) // 2, channels - 1), min(size // 2, channels - 1) + 1):
            low, high = max(0, -offset), min(channels, channels - offset)
            total[:, low:high] += squares[:, low + offset : high + offset]
        return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


class _Rows(OpRun):
    """All axes from `axis` on count as one, as before opset 13."""

    def _run(self, x: Any, axis: int) -> tuple[Any, ...]:
        if x.size == 0:
            return (x,)
        rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
        return (self._of_rows(rows).reshape(x.shape).astype(x.dtype),)

    def _of_rows(self, rows: Any) -> Any:
        raise NotImplementedError


class Softmax(_Rows):
    """exp(x) / sum(exp(x)), over rows."""

    op_schema = onnx.defs.get_schema("Softmax", 11)

    def _of_rows(self, rows: Any) -> Any:
        powers = np.exp(rows - rows.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)


class LogSoftmax(_Rows):
    """x - log(sum(exp(x))), over rows."""

    op_schema = onnx.defs.get_schema("LogSoftmax", 11)

    def _of_rows(self, rows: Any) -> Any:
        shifted = rows - rows.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


class Hardmax(_Rows):
    """1 at the first maximum, over rows."""

    op_schema = onnx.defs.get_schema("Hardmax", 11)

    def _of_rows(self, rows: Any) -> Any:
        result = np.zeros_like(rows)
        result[np.arange(len(rows)), rows.argmax(axis=1)] = 1
        return result


class AveragePool(OpRun):
    """The mean of each window; what lies in the padding counts only with count_include_pad."""

    def _run(self, x: Any, count_include_pad: int = 0, kernel_shape: Any = None, **window: Any) -> tuple[Any, ...]:
        try:
            g = _geometry.max_pool(x.shape, kernel_shape=kernel_shape, **window)
        except GpuconvError as error:
            raise nodes.renamed(self.onnx_node, error, "max_pool") from error
        total = np.zeros(g.y_shape, np.result_type(x.dtype, np.float32))
        for tap in product(*map(range, g.kernel_shape)):
            places = [_meeting(g, axis, t, 0, 0) for axis, t in enumerate(tap)]
            outputs: Any = (..., *(out for out, _ in places))
            total[outputs] += x[(..., *(source for _, source in places))]
        for axis in range(len(g.kernel_shape)):
            counts = _counts(g, axis, bool(count_include_pad))
            total /= counts.reshape(-1, *(1,) * (len(g.kernel_shape) - 1 - axis))
        return (total.astype(x.dtype),)


def _meeting(g: _geometry.MaxPoolGeometry, axis: int, tap: int, before: int, after: int) -> tuple[slice, slice]:
    """Slices of the outputs whose tap lies in the input, widened by so much before and after, and of where it lies."""
    stride, offset = g.strides[axis], tap * g.dilations[axis] - g.pads_begin[axis] + before
    low, high = _geometry.tap_range(g.y_shape[2 + axis], g.x_shape[2 + axis] + before + after, stride, offset)
    start = low * stride + offset
    return slice(low, high), slice(start, start + max(0, high - low - 1) * stride + (high > low), stride)


def _counts(g: _geometry.MaxPoolGeometry, axis: int, padding: bool) -> Any:
    """How many taps of each window count along an axis."""
    before, after = (g.pads_begin[axis], g.pads_end[axis]) if padding else (0, 0)
    counts = np.zeros(g.y_shape[2 + axis], np.float32)
    for tap in range(g.kernel_shape[axis]):
        counts[_meeting(g, axis, tap, before, after)[0]] += 1
    return counts


_RANGES: dict[str, tuple[type[OpRun], int, int]] = {
    "AveragePool": (AveragePool, 1, 10**6),
    "BatchNormalization": (BatchNormalization, 7, 13),
    "Hardmax": (Hardmax, 1, 12),
    "LRN": (LRN, 1, 10**6),
    "LogSoftmax": (LogSoftmax, 1, 12),
    "Softmax": (Softmax, 1, 12),
}
