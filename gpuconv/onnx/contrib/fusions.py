"""Floating-point operators of com.microsoft that ONNX Runtime's extended optimisation level creates by fusion.

These are Gelu and its variants, LayerNormalization of a sum, MatMul with transposed factors, and MatMul with 2-, 4- or
8-bit weights. 16-bit floats are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators import special
from gpuconv.onnx.operators.form import Form, Operator, Schema, broadcast_cost, namespace, wide
from gpuconv.onnx.operators.normalizing import standardized
from gpuconv.onnx.operators.products import matmul
from gpuconv.onnx.operators.shaping import axis_of

# ---------------------------------------------------------------- Gelu


def _gelu(approximate: str) -> Callable[..., Any]:
    """Return the function for Gelu of x or x + bias, exact by erf ("none") or approximated by tanh ("tanh")."""
    compute = special.OPERATORS["Gelu"].function

    def gelu(form: Form, x: Any, bias: Any = None) -> Any:
        values = x if bias is None else wide(x) + wide(bias)
        return compute(replace(form, attributes={"approximate": approximate}), values).astype(x.dtype, copy=False)

    return gelu


def _quick_gelu(form: Form, x: Any) -> Any:
    """QuickGelu: return ``x * sigmoid(alpha * x)``."""
    if isinstance(x, np.ndarray):
        return special.applied(special.swish, form, x)
    y = wide(x)
    return (y / (1 + namespace(x).exp(-form.get("alpha") * y))).astype(x.dtype, copy=False)


# ---------------------------------------------------------------- normalizations


def layer_normalized(form: Form, x: Any, scale: Any, bias: Any = None, *, is_centred: bool = True) -> tuple[Any, ...]:
    """Return LayerNormalization of x, its mean, and the reciprocal of its standard deviation.

    Without ``is_centred`` this is RMSNormalization: the mean is not subtracted, and None is returned for it.
    """
    axes = tuple(range(axis_of(form.attributes.get("axis", -1), x.ndim), x.ndim))
    values, xp = wide(x), namespace(x)
    if is_centred:
        y, mean, factor = standardized(values, axes, form.get("epsilon"))
    else:
        mean = None
        factor = 1 / xp.sqrt(xp.mean(xp.square(values), axis=axes, keepdims=True) + form.get("epsilon"))
        y = values * factor
    y = y * wide(scale)
    if bias is not None:
        y = y + wide(bias)
    return y.astype(scale.dtype, copy=False), mean, factor


def _layer_normalization(form: Form, x: Any, scale: Any, bias: Any = None) -> Any:
    """LayerNormalization of com.microsoft, with the outputs Mean and InvStdDev in the type ``stash_type``."""
    y, *statistics = layer_normalized(form, x, scale, bias)
    return (y, *_stashed(form, statistics))[: len(form.outputs)]


def _simplified(form: Form, x: Any, scale: Any) -> Any:
    """SimplifiedLayerNormalization (RMSNormalization), with the output InvStdDev in the type ``stash_type``."""
    y, _, factor = layer_normalized(form, x, scale, is_centred=False)
    return (y, *_stashed(form, [factor]))[: len(form.outputs)]


def _stashed(form: Form, statistics: list[Any]) -> list[Any]:
    """Convert statistics to the type that the attribute ``stash_type`` names."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(form.get("stash_type"))
    return [value.astype(dtype, copy=False) for value in statistics]


def _skip(form: Form, x: Any, skip: Any, gamma: Any, beta: Any = None, bias: Any = None) -> Any:
    """SkipLayerNormalization: normalise x + skip + bias over the last axis; the sum is the fourth output."""
    return _of_sum(form, x, skip, bias, gamma, beta, is_centred=True)


def _skip_simplified(form: Form, x: Any, skip: Any, gamma: Any, bias: Any = None) -> Any:
    """SkipSimplifiedLayerNormalization: as _skip, with RMSNormalization."""
    return _of_sum(form, x, skip, bias, gamma, None, is_centred=False)


def _of_sum(form: Form, x: Any, skip: Any, bias: Any, gamma: Any, beta: Any, *, is_centred: bool) -> Any:
    """Return y, mean, 1 / deviation and the sum x + skip + bias, as many of them as the node has outputs."""
    total = wide(x) + wide(skip)
    if bias is not None:
        total = total + wide(bias)
    y, mean, factor = layer_normalized(form, total, wide(gamma), beta, is_centred=is_centred)
    outputs = y.astype(x.dtype, copy=False), mean, factor, total.astype(x.dtype, copy=False)
    return outputs[: len(form.outputs)]


# ---------------------------------------------------------------- MatMul


def _fused_matmul(form: Form, a: Any, b: Any) -> Any:
    """FusedMatMul: return ``alpha * op(A) @ op(B)``.

    transBatchA and transBatchB move axis 0 next to the last: ``(M, batch..., K)`` becomes ``(batch..., M, K)``. Then
    transA and transB swap the last two axes.
    """
    a = _transposed(a, form.get("transBatchA"), form.get("transA"))
    b = _transposed(b, form.get("transBatchB"), form.get("transB"))
    alpha = form.get("alpha")
    return matmul(a, b) if alpha == 1 else (matmul(wide(a), wide(b)) * alpha).astype(a.dtype, copy=False)


def _transposed(x: Any, is_batch_inside: int, is_transposed: int) -> Any:
    """Return x with its axes permuted as FusedMatMul's attributes say; vectors are unchanged."""
    if x.ndim < 2:
        return x
    axes = list(range(x.ndim))
    if is_batch_inside and x.ndim > 2:
        axes = [*axes[1:-1], 0, axes[-1]]
    if is_transposed:
        axes[-2:] = axes[:-3:-1]
    return x.transpose(axes)


def _matmul_cost(_: Form, a: Any, b: Any) -> int:
    return int(a.size) * int(b.size)


# ---------------------------------------------------------------- MatMul by packed integers


def _matmul_nbits(
    form: Form, a: Any, b: Any, scales: Any, zeros: Any = None, groups: Any = None, bias: Any = None
) -> Any:
    """MatMulNBits: multiply by a matrix of 2-, 4- or 8-bit integers, quantized in blocks along K.

    Each block of ``block_size`` rows has its own scale and zero point per column.
    """
    if form.get("weight_prepacked"):
        raise ArgumentError("weight_prepacked must be 0: weights in the order of one processor's kernels are unknown")
    weights = _unpacked_weights(form, b, scales, zeros, groups)
    y = matmul(wide(a), weights.astype(wide(a).dtype, copy=False))
    return (y if bias is None else y + wide(bias)).astype(a.dtype, copy=False)


def _unpacked_weights(form: Form, b: Any, scales: Any, zeros: Any, groups: Any) -> Any:
    """Return the dequantized weights ``(integer - zero) * scale`` with shape (K, N).

    ``groups`` (g_idx) gives the block of each row of K; without it, blocks are consecutive rows.
    """
    rows, columns, bits, block = (form.get(name) for name in ("K", "N", "bits", "block_size"))
    if bits not in (2, 4, 8):
        raise ArgumentError(f"bits must be 2, 4 or 8, not {bits}")
    blocks = -(-rows // block)
    if 8 * b.size != columns * blocks * block * bits or scales.size != columns * blocks:
        size = columns * blocks * block * bits // 8
        raise ArgumentError(
            f"{columns} columns of {blocks} blocks of {block} integers of {bits} bits need {size} bytes and "
            f"{columns * blocks} scales, not {b.size} and {scales.size}"
        )
    values = _unpacked(b.reshape(columns, -1), bits).reshape(columns, blocks * block)[:, :rows]
    scales = wide(scales).reshape(columns, blocks)
    if zeros is not None:
        zeros = _unpacked(zeros.reshape(columns, -1), bits)[:, :blocks] if zeros.dtype == np.uint8 else wide(zeros)
        zeros = _by_row(zeros.reshape(columns, blocks), groups, block, rows)
    else:
        zeros = np.float32(2 ** (bits - 1))
    return ((values - zeros) * _by_row(scales, groups, block, rows)).T


def _by_row(of_blocks: Any, groups: Any, block: int, rows: int) -> Any:
    """Expand values per block, shape (N, blocks), to values per row of K, shape (N, K)."""
    xp = namespace(of_blocks)
    if groups is not None:
        return xp.take(of_blocks, groups[:rows], axis=1)
    return xp.repeat(of_blocks, block, axis=1)[:, :rows]


def _unpacked(packed: Any, bits: int) -> Any:
    """Unpack integers of 2, 4 or 8 bits from bytes (N, B), lowest bits first, to float32 (N, B * 8 // bits)."""
    base, rest, parts = 2**bits, packed.astype(np.float32), []
    for _ in range(8 // bits):
        above = rest // base
        parts.append((rest - above * base)[..., None])
        rest = above
    return namespace(packed).concatenate(parts, axis=-1).reshape(packed.shape[0], -1)


def _matmul_nbits_cost(form: Form, a: Any, *_: Any) -> int:
    return (int(a.size) + int(form.get("K"))) * int(form.get("N"))


# ---------------------------------------------------------------- the table


def _operator(
    function: Callable[..., Any],
    inputs: str,
    attributes: Mapping[str, Any] | None = None,
    cost: Callable[..., int] = broadcast_cost,
) -> Operator:
    return Operator(function, cost=cost, schema=Schema(tuple(inputs.split()), attributes or {}))


_TRANSPOSED = {"alpha": 1.0, "transA": 0, "transB": 0}
_NORMALIZED = {"axis": -1, "epsilon": float(np.float32(1e-5)), "stash_type": 1}
_OF_SUM = {"epsilon": float(np.float32(1e-12))}

CONTRIBUTED = {
    "BiasGelu": _operator(_gelu("none"), "A B"),
    "FastGelu": _operator(_gelu("tanh"), "X bias?"),
    "FusedMatMul": _operator(_fused_matmul, "A B", {**_TRANSPOSED, "transBatchA": 0, "transBatchB": 0}, _matmul_cost),
    "Gelu": _operator(_gelu("none"), "X"),
    "LayerNormalization": _operator(_layer_normalization, "X Scale B?", _NORMALIZED),
    "MatMulNBits": Operator(
        _matmul_nbits,
        cost=_matmul_nbits_cost,
        schema=Schema(
            ("A", "B", "scales", "zero_points?", "g_idx?", "bias?"),
            {"K": int, "N": int, "accuracy_level": 0, "bits": 4, "block_size": int, "weight_prepacked": 0},
            ("K", "N", "block_size"),
        ),
    ),
    "QuickGelu": _operator(_quick_gelu, "X", {"alpha": float(np.float32(1.702))}),
    "SimplifiedLayerNormalization": _operator(_simplified, "X scale", _NORMALIZED),
    "SkipLayerNormalization": _operator(_skip, "input skip gamma beta? bias?", _OF_SUM),
    "SkipSimplifiedLayerNormalization": _operator(_skip_simplified, "input skip gamma bias?", _OF_SUM),
    "TransposeMatMul": _operator(_fused_matmul, "A B", _TRANSPOSED, _matmul_cost),
}
