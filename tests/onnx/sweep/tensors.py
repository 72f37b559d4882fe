"""Operators that move elements, and operators of matrices and signals."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from tests.onnx.sweep.drawing import FLOATS, Draw, Trial, dtype, is_float, node_of, number, wide


@node_of("EyeLike")
def _eye_like(d: Draw) -> Trial:
    x = d.array(d.type("T1"), d.shape(2, 2))
    kind = d.type("T2", ("float32", "float64", "int32", "int64", "uint8", "bool")) if d.maybe() else None
    attributes = d.given(k=d.int(-6, 6)) | ({} if kind is None else {"dtype": number(kind)})
    y = np.zeros(x.shape, x.dtype if kind is None else kind)
    for i in range(x.shape[0]):
        if 0 <= i + attributes.get("k", 0) < x.shape[1]:
            y[i, i + attributes.get("k", 0)] = 1
    return Trial([x], attributes, [y])


@node_of("Trilu")
def _trilu(d: Draw) -> Trial:
    x = d.array(d.type(), d.shape(2, 4), special=True)
    k, attributes = d.int(-7, 7) if d.maybe() else None, d.given(upper=d.int(0, 1))
    y, upper = x.copy(), attributes.get("upper", 1)
    for i in range(x.shape[-2]):
        for j in range(x.shape[-1]):
            if (j - i < (k or 0)) if upper else (j - i > (k or 0)):
                y[..., i, j] = 0
    return Trial([x] if k is None else [x, np.array(k)], attributes, [y])


@node_of("Compress")
def _compress(d: Draw) -> Trial:
    x = d.array(d.type(), d.shape(1, 3))
    attributes = d.given(axis=d.axis(x.ndim))
    length = x.size if "axis" not in attributes else x.shape[attributes["axis"]]
    condition = d.array(np.bool_, (d.int(0, length),))
    places = [at for at, keep in enumerate(condition) if keep]
    y = x.reshape(-1)[places] if "axis" not in attributes else x.take(np.array(places, np.int64), attributes["axis"])
    return Trial([x, condition], attributes, [y])


@node_of("NonZero")
def _non_zero(d: Draw) -> Trial:
    x = d.array(d.type(), d.shape(0 if d.opset >= 13 else 1, 4), 1.0, special=True)
    found = [at for at in np.ndindex(x.shape) if x[at] != 0]
    return Trial([x], {}, [np.array(found, np.int64).reshape(len(found), x.ndim).T])


@node_of("CenterCropPad")
def _center_crop_pad(d: Draw) -> Trial:
    x = d.array(d.type(), d.shape(1, 4))
    axes = [int(axis) for axis in d.rng.permutation(x.ndim)[: d.int(1, x.ndim)]]
    attributes = {"axes": [axis - x.ndim * d.int(0, 1) for axis in axes]} if d.maybe() else {}
    axes = axes if attributes else list(range(x.ndim))
    shape = [d.int(0, 8) for _ in axes]
    y = x
    for axis, wanted in zip(axes, shape, strict=True):
        extent = y.shape[axis]
        if wanted <= extent:
            start = (extent - wanted) // 2
            y = y.take(range(start, start + wanted), axis)
        else:
            before = (wanted - extent) // 2
            y = np.pad(y, [(before, wanted - extent - before) if at == axis else (0, 0) for at in range(y.ndim)])
    return Trial([x, np.array(shape, d.type("Tind"))], attributes, [y])


@node_of("ReverseSequence")
def _reverse_sequence(d: Draw) -> Trial:
    x, time = d.array(d.type(), d.shape(2, 4)), d.int(0, 1)
    attributes = {"time_axis": time, "batch_axis": 1 - time} if time or d.maybe() else {}
    lengths = np.array([d.int(1 if x.shape[time] else 0, x.shape[time]) for _ in range(x.shape[1 - time])], np.int64)
    y = x.copy()
    for batch, t in itertools.product(range(x.shape[1 - time]), range(x.shape[time])):
        source = lengths[batch] - 1 - t if t < lengths[batch] else t
        y[(t, batch) if time == 0 else (batch, t)] = x[(source, batch) if time == 0 else (batch, source)]
    return Trial([x, lengths], attributes, [y])


@node_of("Unique")
def _unique(d: Draw) -> Trial:
    kind = d.type(among=("float32", "float64", "int64", "int8", "int32", "uint8", "bool", "float16"))
    x = d.array(kind, d.shape(1, 3, least=1), 1.0)
    x = np.round(x) + np.zeros((), kind) if is_float(kind) else np.clip(x, 0, 3).astype(kind)
    attributes = d.given(sorted=d.int(0, 1), axis=d.axis(x.ndim))
    axis = attributes.get("axis")
    rows = list(x.reshape(-1)) if axis is None else [x.take(at, axis) for at in range(x.shape[axis])]
    keys = [tuple(np.asarray(row).reshape(-1).tolist()) for row in rows]
    order = list(dict.fromkeys(keys))
    order = sorted(order) if attributes.get("sorted", 1) else order
    first, inverse = [keys.index(key) for key in order], [order.index(key) for key in keys]
    y = np.array([rows[at] for at in first], kind) if axis is None else np.stack([rows[at] for at in first], axis)
    extra = [np.array(values, np.int64) for values in (first, inverse, [keys.count(key) for key in order])]
    return Trial([x], attributes, [y, *extra][: d.int(1, 4)])


@node_of("CumProd")
def _cum_prod(d: Draw) -> Trial:
    x = d.array(d.type(), d.shape(1, 3), 1.5)
    axis, attributes = d.axis(x.ndim), d.given(exclusive=d.int(0, 1), reverse=d.int(0, 1))
    rows = np.moveaxis(wide(x), axis, 0)
    rows = rows[::-1] if attributes.get("reverse") else rows
    y, running = np.empty_like(rows), np.ones(rows.shape[1:], rows.dtype)
    with np.errstate(all="ignore"):
        for at, row in enumerate(rows):
            y[at] = running if attributes.get("exclusive") else running * row
            running = running * row
    y = np.moveaxis(y[::-1] if attributes.get("reverse") else y, 0, axis)
    return Trial([x, np.array(axis, d.type("T2"))], attributes, [y.astype(x.dtype)], loose=4)


@node_of("DFT")
def _dft(d: Draw) -> Trial:
    inverse, onesided = d.int(0, 1), d.maybe(0.3)
    parts = (2 if inverse else 1) if onesided else d.int(1, 2)
    x = d.array(d.type("T1"), (*d.shape(2 if d.opset < 20 else 1, 3, least=2), parts), 1.0)
    axis = d.int(-x.ndim, -2) + x.ndim * d.int(0, 1)
    given = d.maybe(0.7)
    extent = x.shape[axis if given else 1 if d.opset < 20 else -2]
    default = 2 * (extent - 1) if inverse and onesided else extent
    length = d.int(1, 9) if d.maybe() else None
    size = default if length is None else length
    along = axis if given else 1 if d.opset < 20 else -2
    numbers = wide(x)[..., 0] + (1j * wide(x)[..., 1] if parts == 2 else 0)
    numbers = np.moveaxis(numbers, along if along >= 0 else along + 1, -1)
    if inverse and onesided:  # the second half follows from the first
        half = np.zeros((*numbers.shape[:-1], size // 2 + 1), complex)
        half[..., : numbers.shape[-1]] = numbers[..., : size // 2 + 1]
        full = np.zeros((*half.shape[:-1], size), complex)
        full[..., : size // 2 + 1] = half
        for k in range(size // 2 + 1, size):
            full[..., k] = half[..., size - k].conj()
        full[..., 0] = full[..., 0].real
        if size % 2 == 0:
            full[..., size // 2] = full[..., size // 2].real
        numbers = full
    signal = np.zeros((*numbers.shape[:-1], size), complex)
    signal[..., : min(size, numbers.shape[-1])] = numbers[..., :size]
    angles = np.outer(np.arange(size), np.arange(size)) * (2 * np.pi / size) * (1 if inverse else -1)
    y = signal @ np.exp(1j * angles) / (size if inverse else 1)
    if onesided and not inverse:
        y = y[..., : size // 2 + 1]
    y = np.moveaxis(y, -1, along if along >= 0 else along + 1)
    y = y.real[..., None] if inverse and onesided else np.stack([y.real, y.imag], -1)
    attributes: dict[str, Any] = {"inverse": inverse, "onesided": int(onesided)}
    inputs = [x, None if length is None else np.array(length, d.one(np.int32, np.int64))]
    if d.opset < 20:
        attributes |= {"axis": axis % x.ndim} if given else {}
    else:
        inputs += [np.array(axis)] if given else []
    while inputs[-1] is None:
        inputs.pop()
    return Trial(inputs, attributes, [y.astype(x.dtype)], loose=8)


@node_of("Det")
def _det(d: Draw) -> Trial:
    n = d.int(1, 4)
    x = d.array(d.type(), (*d.shape(0, 2), n, n), 1.0)
    y = np.zeros(x.shape[:-2])
    for order in itertools.permutations(range(n)):
        swaps = sum(order[i] > order[j] for i in range(n) for j in range(i + 1, n))
        y += (-1) ** swaps * math.prod(
            (wide(x)[..., row, column] for row, column in enumerate(order)), start=np.ones(())
        )
    return Trial([x], {}, [np.asarray(y).astype(x.dtype)], loose=16)


_EQUATIONS = [
    *("ij,jk->ik", "ij,jk", "ii->i", "ii", "ij->ji", "ij->", "i,j->ij", "bij,bjk->bik", "...ij,...jk->...ik"),
    *("...i->...", "i...->...i", "ab, bc -> ac", "ij,ij->", "aB,Bc->aBc", "ba", "Ab", "bij->b", "iij->ij", "i,i,i->i"),
    *("...", "ij,j", "abc,cb->a", "ij,k->kji"),
]


@node_of("Einsum")
def _einsum(d: Draw) -> Trial:
    equation, kind = d.one(*_EQUATIONS), d.type()
    sizes = {letter: d.int(1, 4) for letter in "abcijkABC"}
    dots = d.shape(0, 2, least=1, most=3)
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    arrays = []
    for term in terms:
        before, has, after = term.partition("...")
        arrays.append(
            d.array(kind, [*(sizes[c] for c in before), *(dots if has else ()), *(sizes[c] for c in after)], 1.0)
        )
    letters = "xyz"[: len(dots)]
    flat = [term.replace("...", letters) for term in terms]
    if not arrow:
        joined = "".join(flat)
        names = sorted(c for c in set(joined) - set(letters) if joined.count(c) == 1)
        right = (letters if "..." in left else "") + "".join(names)
    right = right.replace("...", letters)
    extents = sizes | dict(zip(letters, dots, strict=True))
    every = sorted(set("".join(flat)))
    y = np.zeros([extents[c] for c in right], object if not is_float(kind) else np.float64)
    for place in itertools.product(*(range(extents[c]) for c in every)):
        at = dict(zip(every, place, strict=True))
        term = math.prod((wide(a)[tuple(at[c] for c in t)].item() for a, t in zip(arrays, flat, strict=True)), start=1)
        y[tuple(at[c] for c in right)] += term
    if not is_float(kind):
        bits = 8 * np.dtype(kind).itemsize
        wrap = np.vectorize(lambda v: int(v) % 2**bits, otypes=[object])(y) if y.size else y
        y = np.asarray(wrap).astype(np.uint64).astype(kind)
    return Trial(arrays, {"equation": equation}, [np.asarray(y).astype(kind)], loose=8)


@node_of("BlackmanWindow", "HannWindow", "HammingWindow")
def _window(d: Draw) -> Trial:
    size = d.int(0, 12)
    kind = d.type("T2") if d.maybe() else np.dtype(np.float32)
    attributes = d.given(periodic=d.int(0, 1))
    if kind != np.float32:
        attributes["output_datatype"] = number(kind)
    terms = {"BlackmanWindow": (0.42, 0.5, 0.08), "HannWindow": (0.5, 0.5, 0), "HammingWindow": (25 / 46, 21 / 46, 0)}
    a, b, c = terms[d.op_type]
    span = size if attributes.get("periodic", 1) else size - 1
    turns = np.arange(size) / (span if span > 0 else math.inf)
    y = a - b * np.cos(2 * np.pi * turns) + c * np.cos(4 * np.pi * turns) if span > 0 else np.ones(size)
    y = np.where(np.abs(y - np.rint(y)) < 1e-15 if is_float(kind) else np.abs(y - np.rint(y)) < 1e-9, np.rint(y), y)
    return Trial([np.array(size, d.type("T1"))], attributes, [y.astype(kind)], loose=4)


@node_of("MelWeightMatrix")
def _mel(d: Draw) -> Trial:
    bands, length, rate = d.int(1, 12), d.one(8, 16, 64, 100), d.one(8000, 16000, 44100)
    low, high = float(d.one(0, 60, 125)), float(d.one(2000, 3400, 4000))
    mel = lambda f: 2595 * math.log10(1 + f / 700)  # noqa: E731
    step = (mel(high) - mel(low)) / (bands + 2)
    bins = [int((length + 1) * 700 * (10 ** ((mel(low) + step * i) / 2595) - 1) // rate) for i in range(bands + 2)]
    y = np.zeros((length // 2 + 1, bands))
    for i in range(bands):
        left, centre, right = bins[i : i + 3]
        if left == centre:
            y[centre, i] = 1
        for j in range(left, centre + 1):
            if centre > left:
                y[j, i] = (j - left) / (centre - left)
        for j in range(centre, right):
            y[j, i] = (right - j) / (right - centre)
    kind = d.type("T1")
    edges = np.dtype(np.float32)
    inputs = [np.array(v, kind if v < 32000 else np.int64) for v in (bands, length, rate)]
    return Trial([*(v.astype(np.int64) for v in inputs), np.array(low, edges), np.array(high, edges)], {},
                 [y.astype(np.float32)])  # fmt: skip


@node_of("AffineGrid")
def _affine_grid(d: Draw) -> Trial:
    kind, rank = d.type("T1", FLOATS), d.int(2, 3)
    extents = [d.int(1, 5) for _ in range(rank)]
    theta = d.array(kind, (d.int(1, 2), rank, rank + 1), 1.0)
    attributes = d.given(align_corners=d.int(0, 1))
    align = attributes.get("align_corners", 0)
    if align:
        extents = [max(2, n) for n in extents]
    y = np.zeros((len(theta), *extents, rank))
    for at in np.ndindex(*extents):
        place = [2 * i / (n - 1) - 1 if align else (2 * i + 1) / n - 1 for i, n in zip(at, extents, strict=True)]
        y[(slice(None), *at)] = wide(theta) @ np.array([*place[::-1], 1])
    size = np.array([len(theta), d.int(1, 3), *extents], np.int64)
    return Trial([theta, size], attributes, [y.astype(kind)], loose=3)


@node_of("Col2Im")
def _col_to_image(d: Draw) -> Trial:
    kind, rank = d.type("T"), d.one(2, 2, 3)
    image, block = ([d.int(low, high) for _ in range(rank)] for low, high in ((3, 6), (1, 3)))
    attributes = d.given(
        dilations=[d.int(1, 2) for _ in range(rank)],
        strides=[d.int(1, 3) for _ in range(rank)],
        pads=[d.int(0, 2) for _ in range(2 * rank)],
    )
    pads = attributes.get("pads", [0] * 2 * rank)
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    axes = list(zip(image, block, dilations, strides, pads[:rank], pads[rank:], strict=True))
    counts = [(n + b + e - ((k - 1) * di + 1)) // s + 1 for n, k, di, s, b, e in axes]
    if min(counts) < 1:
        return _col_to_image(d)
    batch, channels = d.int(1, 2), d.int(1, 3)
    x = d.array(kind, (batch, channels * math.prod(block), math.prod(counts)))
    y = np.zeros((batch, channels, *image), np.float64 if is_float(kind) else kind)
    parts = wide(x).reshape(batch, channels, *block, *counts)
    for tap in np.ndindex(*block):
        for q in np.ndindex(*counts):
            at = tuple(q[i] * strides[i] + tap[i] * dilations[i] - pads[i] for i in range(rank))
            if all(0 <= place < n for place, n in zip(at, image, strict=True)):
                y[(slice(None), slice(None), *at)] += parts[(slice(None), slice(None), *tap, *q)]
    return Trial([x, np.array(image), np.array(block)], attributes, [y.astype(kind)], loose=4)


@node_of("TensorScatter")
def _tensor_scatter(d: Draw) -> Trial:
    shape = list(d.shape(2, 4, least=1))
    axis = d.int(1, len(shape) - 1)
    mode = d.one("linear", "circular")
    longest, part = shape[axis], list(shape)
    part[axis] = d.int(1, longest)
    kind = dtype(d.one(*d.types()))
    past, update = d.array(kind, shape), d.array(kind, part)
    last = longest - part[axis] if mode == "linear" else longest - 1
    writes = np.array([d.int(0, last) for _ in range(shape[0])], np.int64) if d.maybe(0.8) else None
    y = past.copy()
    for at in np.ndindex(*part):
        place = list(at)
        place[axis] = (at[axis] + (0 if writes is None else writes[at[0]])) % longest
        y[tuple(place)] = update[at]
    attributes = {"axis": axis - len(shape) * d.int(0, 1), "mode": mode}
    if axis == len(shape) - 2 and d.maybe():
        del attributes["axis"]
    return Trial([past, update] + ([] if writes is None else [writes]), attributes, [y])
