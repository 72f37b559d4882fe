"""Normalization, reductions, losses and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.onnx.sweep.drawing import CLOSE, FLOATS, Draw, Trial, dtype, is_float, node_of, wide


@node_of("LpNormalization")
def _lp_normalization(d: Draw) -> Trial:
    x = d.array(d.type(), d.shape(1, 4), 2.0)
    if d.maybe(0.3) and x.size:
        x[(0,) * (x.ndim - 1)] = 0
    attributes = d.given(axis=d.axis(x.ndim), p=d.int(1, 2))
    p, axis = attributes.get("p", 2), attributes.get("axis", -1)
    norm = (np.abs(wide(x)) ** p).sum(axis=axis, keepdims=True) ** (1 / p)
    return Trial(
        [x], attributes, [np.divide(wide(x), norm, np.zeros(x.shape), where=norm != 0).astype(x.dtype)], loose=3
    )


@node_of("MeanVarianceNormalization")
def _mean_variance(d: Draw) -> Trial:
    x = d.array(d.type(), d.shape(4, 4, least=1, most=4), 2.0)
    x = x + np.arange(x.size).reshape(x.shape).astype(x.dtype)
    attributes = d.given(axes=sorted(int(a) for a in d.rng.permutation(4)[: d.int(1, 4)]))
    axes = tuple(attributes.get("axes", [0, 2, 3]))
    centred = wide(x) - wide(x).mean(axis=axes, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=axes, keepdims=True))
    y = centred / (deviation + 1e-9)
    alone = np.broadcast_to(deviation < 1e-6, x.shape)
    return Trial([x], attributes, [np.where(alone, 0, y).astype(x.dtype)], loose=200)


@node_of("RMSNormalization")
def _rms(d: Draw) -> Trial:
    x = d.array(d.type("T"), d.shape(1, 4, least=1), 2.0)
    attributes = d.given(axis=d.axis(x.ndim), epsilon=d.one(1e-5, 0.5), stash_type=1)
    axis = attributes.get("axis", -1) % x.ndim
    shape = x.shape[axis:] if d.maybe() else x.shape[-1:]
    scale = d.array(d.type("V"), shape, 2.0)
    mean = (wide(x) ** 2).mean(axis=tuple(range(axis, x.ndim)), keepdims=True)
    normalized = (wide(x) / np.sqrt(mean + np.float32(attributes.get("epsilon", 1e-5)))).astype(x.dtype)
    y = (wide(normalized) * wide(scale)).astype(scale.dtype)
    # A quotient next to a tie of a narrow type may be rounded either way.
    return Trial([x, scale], attributes, [y], loose=4 * max(1.0, CLOSE[x.dtype.name] / CLOSE[scale.dtype.name]))


@node_of("ReduceLogSum", "ReduceLogSumExp")
def _log_sums(d: Draw) -> Trial:
    x = d.array(d.type(among=FLOATS if d.maybe(0.8) or d.opset >= 28 else ("int32", "int64")), d.shape(0, 4), 2.0)
    if d.op_type == "ReduceLogSum":
        x = np.abs(x) + np.ones((), x.dtype)
    axes = [int(a) for a in d.rng.permutation(x.ndim)[: d.int(0, x.ndim)]]
    axes = [a - x.ndim * d.int(0, 1) for a in axes]
    attributes = d.given(keepdims=d.int(0, 1)) | (d.given(noop_with_empty_axes=d.int(0, 1)) if d.opset >= 18 else {})
    inputs = [x]
    if d.opset < 11:
        axes = [a % x.ndim for a in axes]
    if d.opset < 18:
        attributes |= {"axes": axes} if axes else {}
    elif axes or d.maybe():
        inputs.append(np.array(axes, np.int64))
    over = tuple(axes) if axes else () if attributes.get("noop_with_empty_axes") else None
    values = wide(x).astype(np.float64)
    with np.errstate(all="ignore"):
        total = (values if d.op_type == "ReduceLogSum" else np.exp(values)).sum(
            axis=over, keepdims=bool(attributes.get("keepdims", 1))
        )
        y = np.asarray(np.log(total))
        if not is_float(x.dtype):
            y = np.maximum(np.trunc(y), np.iinfo(x.dtype).min)
    return Trial(inputs, attributes, [y.astype(x.dtype)], loose=4)


@node_of("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def _losses(d: Draw) -> Trial:
    kind = d.type("T", FLOATS)
    classes, shape = d.int(1, 5), d.shape(0, 2, least=1, most=3)
    batch = d.int(1, 4)
    x = d.array(kind, (batch, classes, *shape), 1.0)
    attributes = d.given(reduction=d.one("none", "mean", "sum"), ignore_index=d.one(-1, -100, 0, 255, 1))
    ignored = attributes.get("ignore_index")
    target = d.rng.integers(0, classes, (batch, *shape))
    if ignored is not None:
        target = np.where(d.rng.random(target.shape) < 0.3, ignored, target)
        target[(0,) * target.ndim] = min(classes - 1, 2 if ignored != 2 else 1)
        if target[(0,) * target.ndim] == ignored:
            del attributes["ignore_index"]
            ignored, target = None, d.rng.integers(0, classes, target.shape)
    weight = np.abs(d.array(kind, (classes,), 1.0)) + np.ones((), kind) if d.maybe() else None
    logs = wide(x)
    if d.op_type == "SoftmaxCrossEntropyLoss":
        logs = logs - logs.max(axis=1, keepdims=True)
        logs = logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))
    loss, shares = np.zeros(target.shape), np.zeros(target.shape)
    for at in np.ndindex(*target.shape):
        c = int(target[at])
        if c != ignored:
            shares[at] = 1.0 if weight is None else float(weight[c])
            loss[at] = -logs[(at[0], c, *at[1:])] * shares[at]
    reduction = attributes.get("reduction", "mean")
    y = loss if reduction == "none" else loss.sum() / (shares.sum() if reduction == "mean" else 1)
    outputs = [np.asarray(y).astype(kind)]
    if d.op_type == "SoftmaxCrossEntropyLoss" and d.maybe():
        outputs.append(logs.astype(kind))
    labels = target.astype(d.type("Tind", ("int32", "int64")))
    return Trial([x, labels] + ([] if weight is None else [weight]), attributes, outputs, loose=10)


@node_of("RotaryEmbedding")
def _rotary(d: Draw) -> Trial:
    kind = d.type("T")
    batch, heads, length, half = d.int(1, 2), d.int(1, 3), d.int(1, 4), d.int(1, 4)
    size, flat = 2 * half, d.maybe()
    x = d.array(kind, (batch, heads, length, size), 1.0)
    attributes: dict[str, Any] = d.given(interleaved=d.int(0, 1))
    turned = size
    if d.maybe():
        turned = 2 * d.int(1, half)
        attributes["rotary_embedding_dim"] = turned
    positions = d.rng.integers(0, 6, (batch, length)) if d.maybe() else None
    caches = [
        d.array(kind, (6, turned // 2) if positions is not None else (batch, length, turned // 2), 1.0) for _ in "cs"
    ]
    y = wide(x).copy()
    for b, h, t, i in np.ndindex(batch, heads, length, turned // 2):
        cos, sin = (wide(c)[positions[b, t], i] if positions is not None else wide(c)[b, t, i] for c in caches)
        first, second = (2 * i, 2 * i + 1) if attributes.get("interleaved") else (i, i + turned // 2)
        u, v = wide(x)[b, h, t, first], wide(x)[b, h, t, second]
        y[b, h, t, first], y[b, h, t, second] = cos * u - sin * v, sin * u + cos * v
    pair = [x, y.astype(kind)]
    if flat or d.maybe(0.2):
        attributes["num_heads"] = heads
    if flat:
        pair = [a.transpose(0, 2, 1, 3).reshape(batch, length, heads * size) for a in pair]
    return Trial([pair[0], *caches] + ([] if positions is None else [positions]), attributes, [pair[1]], loose=4)


@node_of("Attention")
def _attention(d: Draw) -> Trial:
    kind = d.type("T1", ("float32", "float64", "float16"))
    batch, kv, group, length, total = d.int(1, 2), d.int(1, 2), d.int(1, 3), d.int(1, 4), d.int(1, 5)
    size, v_size, flat = d.int(1, 4), d.int(1, 4), d.maybe()
    heads, past = kv * group, d.int(0, 3) if d.maybe(0.3) else 0
    q = d.array(kind, (batch, heads, length, size), 1.0)
    k, v = (d.array(kind, (batch, kv, total, n), 1.0) for n in (size, v_size))
    pk, pv = (d.array(kind, (batch, kv, past, n), 1.0) if past else None for n in (size, v_size))
    attributes: dict[str, Any] = d.given(is_causal=d.int(0, 1), softcap=d.one(0.0, 2.0), scale=d.one(0.5, 1.0))
    mode = d.int(0, 3)
    if d.opset >= 25:
        attributes |= d.given(left_window_size=d.int(-1, 2), right_window_size=d.int(-1, 2))
    keys, every = past + total, np.full((batch, heads, length, past + total), 0.0)
    mask = None
    if d.maybe():
        shape = d.one((length, keys), (1, length, keys), (batch, 1, length, keys), (batch, heads, length, keys))
        mask = d.rng.random(shape) < 0.7 if d.maybe() else d.array(kind, shape, 1.0)
        bias = np.where(mask, 0.0, -math.inf) if mask.dtype == np.bool_ else wide(mask)
        every = every + bias
    valid = None
    if d.opset >= 24 and not past and d.maybe(0.3):
        valid = np.array([d.int(1, total) for _ in range(batch)], np.int64)
    left, right = attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)
    for b, i, j in np.ndindex(batch, length, keys):
        offset = past if past else int(valid[b]) - length if valid is not None else 0
        hidden = bool(attributes.get("is_causal")) and j > i + offset
        hidden |= valid is not None and j >= valid[b]
        hidden |= (left >= 0 and j < i + offset - left) or (right >= 0 and j > i + offset + right)
        if hidden:
            every[b, :, i, j] = -math.inf
    joined_k, joined_v = (a if b is None else np.concatenate([b, a], 2) for a, b in ((k, pk), (v, pv)))
    scale = attributes.get("scale", 1 / math.sqrt(size))
    scores = np.einsum("bhid,bhjd->bhij", wide(q), wide(joined_k).repeat(group, 1)) * scale
    raw = scores
    cap = attributes.get("softcap", 0.0)
    capped = cap * np.tanh(scores / cap) if cap else scores
    biased = capped + every
    top = biased.max(axis=-1, keepdims=True)
    powers = np.exp(biased - np.where(np.isinf(top), 0, top))
    sums = powers.sum(axis=-1, keepdims=True)
    shares = powers / np.where(sums == 0, 1, sums)
    y = np.einsum("bhij,bhjd->bhid", shares, wide(joined_v).repeat(group, 1))
    given = [q, k, v]
    if flat:
        given = [a.transpose(0, 2, 1, 3).reshape(batch, a.shape[2], -1) for a in given]
        y = y.transpose(0, 2, 1, 3).reshape(batch, length, -1)
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv}
    inputs = [*given, mask, pk, pv, valid]
    outputs = [y.astype(kind)]
    if past:
        outputs += [joined_k, joined_v]
        if d.maybe():
            attributes["qk_matmul_output_mode"] = mode
            outputs.append([raw, capped, biased, shares][mode].astype(kind))
    while inputs[-1] is None:
        inputs.pop()
    return Trial(inputs, attributes, outputs, loose=30)


@node_of("LinearAttention")
def _linear_attention(d: Draw) -> Trial:
    kind = d.type("T")
    batch, kv, group, length, dk, dv = d.int(1, 2), d.int(1, 2), d.int(1, 2), d.int(1, 4), d.int(1, 4), d.int(1, 3)
    rule = d.one("linear", "gated", "delta", "gated_delta")
    q = d.array(kind, (batch, length, kv * group * dk), 0.5)
    k, v = (d.array(kind, (batch, length, kv * n), 0.5) for n in (dk, dv))
    past = d.array(kind, (batch, kv, dk, dv), 0.5) if d.maybe() else None
    per_key = d.maybe()
    decay = -np.abs(d.array(kind, (batch, length, kv * (dk if per_key else 1)), 0.5)) if "gated" in rule else None
    beta = np.abs(d.array(kind, (batch, length, d.one(1, kv)), 0.3)) if "delta" in rule else None
    attributes: dict[str, Any] = {"q_num_heads": kv * group, "kv_num_heads": kv} | d.given(scale=d.one(0.0, 0.5))
    if rule != "gated_delta" or d.maybe():
        attributes["update_rule"] = rule
    scale = attributes.get("scale", 0.0) or 1 / math.sqrt(dk)
    state = np.zeros((batch, kv, dk, dv)) if past is None else wide(past).copy()
    y = np.zeros((batch, length, kv * group, dv))
    for b, t, h in np.ndindex(batch, length, kv):
        s = state[b, h]
        key, value = (wide(a)[b, t].reshape(kv, -1)[h] for a in (k, v))
        if decay is not None:
            s = s * np.exp(wide(decay)[b, t].reshape(kv, -1)[h])[:, None]
        if beta is not None:
            share = wide(beta)[b, t][h if beta.shape[2] > 1 else 0]
            value = share * (value - key @ s)
        state[b, h] = s = s + np.outer(key, value)
        for g in range(group):
            y[b, t, h * group + g] = scale * (wide(q)[b, t].reshape(kv * group, dk)[h * group + g] @ s)
    inputs = [q, k, v, past, decay, beta]
    while inputs[-1] is None:
        inputs.pop()
    last = dtype(kind) if past is None else past.dtype
    return Trial(inputs, attributes, [y.reshape(batch, length, -1).astype(kind), state.astype(last)], loose=30)
