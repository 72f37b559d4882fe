"""ONNX's Attention operator: scaled dot-product attention with masks, windows, grouped heads and a key/value cache.

Both products use :mod:`gpuconv.onnx.operators.products`, so on a device gpuconv's kernels compute them without cuBLAS.
float16 and bfloat16 are computed in float32 and rounded once, unless softmax_precision names another type.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import onnx

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import DTYPES, Form, Operator, namespace, wide
from gpuconv.onnx.operators.products import product


def _with_heads(name: str, x: Any, heads: int | None) -> Any:
    """Split heads: return (N, L, heads * size) as (N, heads, L, size)."""
    if not heads or heads < 1 or x.shape[2] % heads:
        raise ArgumentError(f"{name} of shape {x.shape} cannot be divided among {heads} heads")
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _heads(form: Form, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """Return Q, K and V with 4 axes (N, heads, L, size); raise ArgumentError if their shapes do not fit together."""
    if {q.ndim, k.ndim, v.ndim} == {3}:
        given = form.get("q_num_heads"), form.get("kv_num_heads"), form.get("kv_num_heads")
        q, k, v = (_with_heads(name, x, n) for name, x, n in zip("QKV", (q, k, v), given, strict=True))
    if {q.ndim, k.ndim, v.ndim} != {4}:
        raise ArgumentError(f"Q, K and V must all have 3 axes, or 4, not the shapes {q.shape}, {k.shape}, {v.shape}")
    alike = q.shape[0] == k.shape[0] == v.shape[0] and q.shape[3] == k.shape[3] and k.shape[1:3] == v.shape[1:3]
    if not alike or not k.shape[1] or q.shape[1] % k.shape[1]:
        raise ArgumentError(
            f"Q {q.shape}, K {k.shape} and V {v.shape} must agree in their batches, K and Q in the size of a head, "
            "K and V in heads and length, and Q must have a multiple of their heads"
        )
    return q, k, v


def _allowed(form: Form, batch: int, queries: int, keys: int, past: int, valid: Any) -> Any:
    """Return which keys each query may attend to, bool (1 or N, 1, queries, keys) on the host; None if all.

    The rules are causal masking, the attention window, and ``valid``, the number of keys that are not padding.
    """
    left, right = (form.get(f"{side}_window_size") for side in ("left", "right"))
    left, right = (-1 if bound is None else bound for bound in (left, right))
    if min(left, right) < -1:
        raise ArgumentError(f"window sizes must be at least -1, not {left} and {right}")
    if valid is None and not form.get("is_causal") and left == right == -1:
        return None
    if valid is not None and (past or valid.shape != (batch,)):
        raise ArgumentError(f"nonpad_kv_seqlen must have the shape ({batch},), and no past_key beside it")
    offset = np.full(1, past) if valid is None else valid.astype(np.int64) - queries
    # position of the key minus position of the query
    ahead = np.arange(keys) - np.arange(queries)[:, None] - offset.reshape(-1, 1, 1, 1)
    allowed = np.ones(ahead.shape, np.bool_)
    if form.get("is_causal"):
        allowed &= ahead <= 0
    if left >= 0:
        allowed &= ahead >= -left
    if right >= 0:
        allowed &= ahead <= right
    return allowed if valid is None else allowed & (np.arange(keys) < valid.reshape(-1, 1, 1, 1))


def _bias(xp: Any, mask: Any, allowed: Any, keys: int, dtype: Any) -> Any:
    """Return the bias of the scores: the mask, and -inf for keys that are not allowed; None if there is none."""
    bias = None
    if mask is not None:
        mask = xp.asarray(mask)
        bias = xp.where(mask, 0, -np.inf).astype(dtype) if mask.dtype == np.bool_ else wide(mask).astype(dtype)
        missing = keys - mask.shape[-1]
        if missing > 0:
            bias = xp.concatenate([bias, xp.full((*bias.shape[:-1], missing), -np.inf, dtype)], axis=-1)
    if allowed is None:
        return bias
    more = xp.asarray(np.where(allowed, 0, -np.inf).astype(dtype))
    return more if bias is None else bias + more


def _shares(xp: Any, scores: Any, bias: Any) -> Any:
    """Return softmax along the keys; 0 for queries that may attend to no key."""
    if not scores.shape[-1]:
        return scores
    top = xp.max(scores, axis=-1, keepdims=True)
    powers = xp.exp(scores - xp.where(top == -np.inf, 0, top))
    total = xp.sum(powers, axis=-1, keepdims=True)
    shares = powers / xp.where(total == 0, 1, total)
    if bias is None:
        return shares
    return xp.where(xp.max(bias, axis=-1, keepdims=True) == -np.inf, 0, shares).astype(scores.dtype, copy=False)


def _scores(form: Form, q: Any, k: Any) -> Any:
    """Return scaled scores (N, heads, queries, keys) in the accumulator's type; the scale is split between Q and K."""
    scale = form.get("scale")
    scale = 1 / sqrt(q.shape[3] or 1) if scale is None else scale
    of_q, of_k = (sqrt(scale),) * 2 if scale >= 0 else (scale, 1.0)
    return product(wide(q) * of_q, wide(k).swapaxes(-1, -2) * of_k)


def _attention(
    form: Form,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    valid: Any = None,
) -> Any:
    """Attention: return the output, present keys, present values, and the requested stage of the scores."""
    xp, flat = namespace(q), q.ndim == 3
    q, k, v = _heads(form, q, k, v)
    if (past_key is None) != (past_value is None):
        raise ArgumentError("past_key and past_value must be given together")
    past = 0 if past_key is None else past_key.shape[2]
    if past_key is not None:
        k, v = xp.concatenate([past_key, k], axis=2), xp.concatenate([past_value, v], axis=2)
    group, keys = q.shape[1] // k.shape[1], k.shape[2]
    all_keys, all_values = (xp.repeat(x, group, axis=1) if group > 1 else x for x in (k, v))
    raw = _scores(form, q, all_keys)
    bias = _bias(xp, mask, _allowed(form, q.shape[0], q.shape[2], keys, past, valid), keys, raw.dtype)
    cap = form.get("softcap") or 0
    capped = cap * xp.tanh(raw / cap) if cap > 0 else raw
    biased = capped if bias is None else capped + bias
    shares = _shares(xp, _rounded(form, biased), bias).astype(raw.dtype, copy=False)
    y = product(shares, wide(all_values).astype(raw.dtype, copy=False)).astype(q.dtype, copy=False)
    if flat:
        y = y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)
    mode = form.get("qk_matmul_output_mode") or 0
    if mode not in range(4):
        raise ArgumentError(f"qk_matmul_output_mode must be 0 to 3, not {mode}")
    stage = (raw, capped, biased, shares)[mode]
    return (y, k, v, stage.astype(q.dtype, copy=False))[: len(form.outputs)]


def _rounded(form: Form, scores: Any) -> Any:
    """Round scores to the type that softmax_precision names; 16-bit types are widened to float32 again."""
    precision = form.get("softmax_precision")
    if not precision:
        return scores
    return wide(scores.astype(onnx.helper.tensor_dtype_to_np_dtype(precision)))


def _cost(_: Form, q: Any, k: Any, v: Any, *others: Any) -> int:
    """Return an upper bound of the multiplications, as if all heads attended to each other."""
    past = others[1].shape[-2] if len(others) > 1 and others[1] is not None else 0
    return int(q.size) * int(k.shape[-2] + past) * 2 + int(k.size) + int(v.size)


OPERATORS = {"Attention": Operator(_attention, frozenset({6}), cost=_cost, dtypes=DTYPES)}
