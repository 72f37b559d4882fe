"""Attention and embedding operators of com.microsoft, as ONNX Runtime fuses them in BERT and similar models.

Symbols follow its documentation: batch B, query length S, heads N, head size D, and T keys in total, including the P
keys of the past. All products are computed in float32 and rounded once for 16-bit types.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.onnx.contrib.fusions import layer_normalized
from gpuconv.onnx.operators.form import Form, Operator, Schema, namespace, wide
from gpuconv.onnx.operators.integers import broadcasts_to, integers_to_float
from gpuconv.onnx.operators.products import product

_LOWEST = np.float32(np.finfo(np.float32).min)  # added to the scores of keys after the query (causal mask)


def _attention(
    form: Form,
    x: Any,
    weights: Any,
    bias: Any = None,
    mask: Any = None,
    past: Any = None,
    attention_bias: Any = None,
    past_length: Any = None,
) -> Any:
    """Attention: self-attention within x (B, S, I); queries, keys and values are ``x @ weights + bias``."""
    _refuse(form, past_sequence_length=past_length)
    qkv = product(wide(x), wide(weights))
    return _of_packed(form, qkv if bias is None else qkv + wide(bias), x.dtype, mask, past, attention_bias)


def _quantized_attention(
    form: Form, x: Any, weights: Any, bias: Any, x_scale: Any, weights_scale: Any, *others: Any
) -> Any:
    """QAttention: as Attention, for x and weights quantized to 8 bits."""
    mask, x_zero, weights_zero, past = (*others, None, None, None, None)[:4]
    _refuse(form)
    qkv = integers_to_float(form, x, weights, x_scale, weights_scale, x_zero, weights_zero, bias)
    return _of_packed(form, qkv, bias.dtype, mask, past, None)


def _of_packed(form: Form, qkv: Any, dtype: Any, mask: Any, past: Any, attention_bias: Any) -> Any:
    """Split packed queries, keys and values (B, S, HQ + HK + HV), prepend past keys and values, and attend.

    If the node has a second output, ``present`` is returned too: keys and values stacked, (2, B, N, T, D).
    """
    heads, width = form.get("num_heads"), qkv.shape[2]
    sizes = form.get("qkv_hidden_sizes") or [width // 3] * 3
    if len(sizes) != 3 or sum(sizes) != width or any(size < heads or size % heads for size in sizes):
        raise ArgumentError(f"{width} columns of queries, keys and values are not {heads} heads of three equal parts")
    ends = np.cumsum(sizes).tolist()
    parts = zip((0, *ends), ends, strict=False)
    q, k, v = (_in_heads(qkv[:, :, low:high], heads) for low, high in parts)
    k, v = _with_past(past, k, v)
    y = _attended(form, q, k, v, mask, attention_bias)
    present = (namespace(k).concatenate([k[None], v[None]], axis=0),) if len(form.outputs) > 1 else ()
    return tuple(value.astype(dtype, copy=False) for value in (y, *present))


def _with_past(past: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """Return keys and values with those of the past in front; ``past`` is None or two arrays (B, N, P, D)."""
    if past is None:
        return k, v
    join = namespace(k).concatenate
    return join([wide(past[0]), k], axis=2), join([wide(past[1]), v], axis=2)


def _in_heads(x: Any, heads: int) -> Any:
    """Split heads: return (B, S, N * D) as (B, N, S, D)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _attended(form: Form, q: Any, k: Any, v: Any, mask: Any, attention_bias: Any) -> Any:
    """Return ``softmax(scale * Q @ K^T + mask + attention_bias) @ V`` with shape (B, S, N * D).

    ``scale`` defaults to 1 / sqrt(D). With ``unidirectional``, a query attends to no later keys.
    """
    xp = namespace(q)
    scores = product(q, k.transpose(0, 1, 3, 2)) * np.float32(form.get("scale") or 1 / sqrt(q.shape[3]))
    if mask is not None:
        scores = scores + _additive_mask(form, mask, scores.shape)
    if attention_bias is not None:
        if not broadcasts_to(attention_bias.shape, scores.shape):
            raise ArgumentError(f"attention_bias {attention_bias.shape} does not broadcast to scores {scores.shape}")
        scores = scores + wide(attention_bias)
    if form.get("unidirectional"):
        queries, keys = scores.shape[2:]
        last = xp.arange(keys - queries, keys).reshape(-1, 1)
        scores = scores + xp.where(xp.arange(keys).reshape(1, -1) > last, _LOWEST, np.float32(0))
    powers = xp.exp(scores - xp.max(scores, axis=3, keepdims=True))
    y = product(powers / xp.sum(powers, axis=3, keepdims=True), v)
    return y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)


def _additive_mask(form: Form, mask: Any, shape: tuple[int, ...]) -> Any:
    """Return the additive mask for scores (B, N, S, T): 0 for valid keys, ``mask_filter_value`` for the rest.

    A mask (B, T) or (B, S, T) is positive at valid keys. A mask (B,) holds the number of valid keys. A mask (2 * B,)
    holds the end, then the begin of the valid keys of each sequence.
    """
    xp, (batch, _, queries, keys) = namespace(mask), shape
    places = xp.arange(keys).reshape(1, -1)
    if mask.shape in ((batch,), (2 * batch,)):
        counts = places < mask[:batch].reshape(-1, 1)
        if mask.size == 2 * batch:
            counts = counts & (places >= mask[batch:].reshape(-1, 1))
        counts = counts[:, None, None]
    elif mask.shape == (batch, keys):
        counts = (mask > 0)[:, None, None]
    elif mask.shape == (batch, queries, keys):
        counts = (mask > 0)[:, None]
    else:
        raise ArgumentError(
            f"a mask of shape {mask.shape} is not computed: it must be {(batch,)}, {(2 * batch,)}, {(batch, keys)} or "
            f"{(batch, queries, keys)}"
        )
    return xp.where(counts, np.float32(0), np.float32(form.get("mask_filter_value")))


def _refuse(form: Form, **inputs: Any) -> None:
    """Raise ArgumentError for inputs and attributes that only incremental decoding uses."""
    given = [name for name, value in inputs.items() if value is not None]
    given += [name for name in ("do_rotary", "past_present_share_buffer", "rotary_embedding_dim") if form.get(name)]
    if given:
        raise ArgumentError(f"{given[0]} is not computed; save the model without it")


def _multi_head(form: Form, query: Any, *inputs: Any) -> Any:
    """MultiHeadAttention: queries (B, S, N * D) attend to keys and values (B, L, N * D) or (B, N, L, D).

    A packed query (B, S, N, 3, D) contains keys and values; a packed key (B, L, N, 2, D) contains values.
    """
    key, value, bias, mask, attention_bias, past_key, past_value, length, cache = (*inputs, *(None,) * 9)[:9]
    _refuse(form, past_sequence_length=length, cache_indirection=cache)
    if len(form.outputs) > 3 and form.outputs[3]:
        raise ArgumentError("its output qk is not computed")
    heads = form.get("num_heads")
    q, k, v = _unpacked_qkv(query, key, value)
    if bias is not None:
        q, k, v = _with_biases(bias, q, k, v)
    q, k, v = (x if x.ndim == 4 else _in_heads(x, heads) for x in (q, k, v))
    k, v = _with_past(None if past_key is None else (past_key, past_value), k, v)
    outputs = _attended(form, q, k, v, mask, attention_bias), k, v
    return tuple(output.astype(query.dtype, copy=False) for output in outputs)[: len(form.outputs)]


def _unpacked_qkv(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Return queries, keys and values, unpacked if necessary: (B, S, N * D), or (B, N, L, D) if given in heads."""

    def packed(x: Any, at: int) -> Any:
        part = wide(x)[:, :, :, at]
        return part.reshape(*part.shape[:2], -1)

    if key is None:
        if query.ndim != 5:
            raise ArgumentError(f"a query of shape {query.shape} without keys must be (B, S, N, 3, D)")
        return packed(query, 0), packed(query, 1), packed(query, 2)
    if key.ndim == 5:
        return wide(query), packed(key, 0), packed(key, 1)
    if value is None:
        raise ArgumentError(f"a key of shape {key.shape} without values must be (B, L, N, 2, D)")
    return wide(query), wide(key), wide(value)


def _with_biases(bias: Any, *parts: Any) -> list[Any]:
    """Add the slices of a bias of length HQ + HK + HV to queries, keys and values of rank 3."""
    if any(part.ndim != 3 for part in parts):
        raise ArgumentError("a bias of keys or values that are in heads already is not computed")
    ends = np.cumsum([part.shape[2] for part in parts]).tolist()
    if bias.shape != (ends[2],):
        raise ArgumentError(f"a bias of queries, keys and values must have the shape {(ends[2],)}, not {bias.shape}")
    places = zip(parts, (0, *ends), ends, strict=False)
    return [part + wide(bias)[low:high] for part, low, high in places]


def _embedded(form: Form, words: Any, segments: Any, of_words: Any, of_places: Any, *inputs: Any) -> Any:
    """EmbedLayerNormalization: sum the embeddings of words (B, S), positions and segments, and normalise the sum.

    The second output counts the ones of the mask per sequence (0 without a mask); the third is the sum.
    """
    of_segments, gamma, beta, mask, places = (*inputs, None, None)[:5]
    xp = namespace(of_words)
    total = wide(xp.take(of_words, words, axis=0))
    total = total + wide(of_places[: words.shape[1]] if places is None else xp.take(of_places, places, axis=0))
    if segments is not None:
        total = total + wide(xp.take(of_segments, segments, axis=0))
    y, _, _ = layer_normalized(form, total, wide(gamma), beta)
    counts = xp.zeros(words.shape[0], np.int32) if mask is None else (mask == 1).astype(np.int32)
    counts = counts if mask is None else xp.sum(counts, axis=1, dtype=np.int32)
    outputs = y.astype(of_words.dtype, copy=False), counts, total.astype(of_words.dtype, copy=False)
    return outputs[: len(form.outputs)]


def _cost(_: Form, *inputs: Any) -> int:
    """Return an upper bound on the multiplications of any operator of this module."""
    return sum(int(x.size) for x in inputs if x is not None) ** 2


def _operator(function: Any, inputs: str, attributes: Mapping[str, Any], required: tuple[str, ...] = ()) -> Operator:
    return Operator(function, cost=_cost, schema=Schema(tuple(inputs.split()), attributes, required))


_HEADS = {"mask_filter_value": -10000.0, "num_heads": int, "scale": float, "unidirectional": 0}
_DECODING = {"do_rotary": 0, "past_present_share_buffer": 0}

CONTRIBUTED = {
    "Attention": _operator(
        _attention,
        "input weights bias? mask_index? past? attention_bias? past_sequence_length?",
        {**_HEADS, **_DECODING, "qkv_hidden_sizes": list, "rotary_embedding_dim": 0},
        ("num_heads",),
    ),
    "EmbedLayerNormalization": _operator(
        _embedded,
        "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask? position_ids?",
        {"epsilon": float(np.float32(1e-12)), "mask_index_type": 0},
    ),
    "MultiHeadAttention": _operator(
        _multi_head,
        "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? past_sequence_length? "
        "cache_indirection?",
        _HEADS,
        ("num_heads",),
    ),
    "QAttention": _operator(
        _quantized_attention,
        "input weight bias input_scale weight_scale mask_index? input_zero_point? weight_zero_point? past?",
        {**_HEADS, **_DECODING},
        ("num_heads",),
    ),
}
