"""Sequences, optional values and text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tests.onnx.sweep.drawing import Draw, Trial, node_of

WORDS = ["", "a", "the", "The cat", "ÀÉ x", "sat on", " mat ", "THE", "x,y,,z", "  two  spaces ", "é", "a1", "straße"]


def _sequence(d: Draw, least: int = 1) -> list[Any]:
    kind, shape = d.one(np.float32, np.int64), d.shape(1, 3, least=1)
    return [d.array(kind, shape) for _ in range(d.int(least, 4))]


@node_of("SequenceConstruct", "SequenceLength", "SequenceAt", "SequenceErase", "SequenceInsert")
def _sequences(d: Draw) -> Trial:
    seq = _sequence(d)
    n = len(seq)
    kind = d.one(np.int32, np.int64)
    if d.op_type == "SequenceConstruct":
        return Trial(seq, {}, [seq])
    if d.op_type == "SequenceLength":
        return Trial([seq], {}, [np.array(n, np.int64)])
    if d.op_type == "SequenceAt":
        at = d.int(-n, n - 1)
        return Trial([seq, np.array(at, kind)], {}, [seq[at]])
    if d.op_type == "SequenceErase":
        at = d.int(-n, n - 1) if d.maybe(0.8) else None
        kept = [a for place, a in enumerate(seq) if place != (n - 1 if at is None else at % n)]
        return Trial([seq] if at is None else [seq, np.array(at, kind)], {}, [kept])
    more = d.array(seq[0].dtype, seq[0].shape)
    at = d.int(-n, n) if d.maybe(0.8) else None
    place = n if at is None else at + n if at < 0 else at
    return Trial([seq, more] + ([] if at is None else [np.array(at, kind)]), {}, [[*seq[:place], more, *seq[place:]]])


@node_of("ConcatFromSequence")
def _join(d: Draw) -> Trial:
    seq, new = _sequence(d), d.int(0, 1)
    ndim = seq[0].ndim + new
    axis = d.axis(ndim)
    y = np.stack(seq, axis) if new else np.concatenate(seq, axis)
    return Trial([seq], {"axis": axis} | ({"new_axis": new} if new or d.maybe() else {}), [y])


@node_of("SplitToSequence")
def _split(d: Draw) -> Trial:
    x = d.array(d.one(np.float32, np.int64), d.shape(1, 3, least=1, most=6))
    axis = d.axis(x.ndim)
    extent, form = x.shape[axis], d.int(0, 2)
    attributes = d.given(keepdims=d.int(0, 1)) | ({"axis": axis} if axis else {})
    if form == 0:
        parts = [x.take(range(at, at + 1), axis) for at in range(extent)]
        parts = [p.squeeze(axis) for p in parts] if attributes.get("keepdims", 1) == 0 else parts
        return Trial([x], attributes, [parts])
    kind = d.one(np.int32, np.int64)
    if form == 1:
        size = d.int(1, extent + 1)
        cuts = list(range(0, extent, size))
        return Trial([x, np.array(size, kind)], attributes, [
            [x.take(range(at, min(extent, at + size)), axis) for at in cuts]
        ])  # fmt: skip
    ends = sorted(d.int(0, extent) for _ in range(d.int(0, 2)))
    bounds = list(zip([0, *ends], [*ends, extent], strict=True))
    parts = [x.take(range(a, b), axis) for a, b in bounds]
    return Trial([x, np.array([b - a for a, b in bounds], kind)], attributes, [parts])


@node_of("StringConcat")
def _concat(d: Draw) -> Trial:
    shape = d.shape(0, 3, least=1)
    a, b = d.text(shape, WORDS), d.text(shape[d.int(0, len(shape)) :], WORDS)
    a, b = (np.asarray(v, object) for v in (a, b))
    pairs = np.broadcast_arrays(a, b)
    y = np.array([str(v) + str(w) for v, w in zip(*(p.reshape(-1) for p in pairs), strict=True)], object)
    return Trial([a, b], {}, [y.reshape(pairs[0].shape)])


@node_of("StringNormalizer")
def _normalize(d: Draw) -> Trial:
    row, count = d.maybe(), d.int(1, 5)
    x = d.text((count,), WORDS)
    attributes: dict[str, Any] = d.given(
        case_change_action=d.one("LOWER", "UPPER", "NONE"), is_case_sensitive=d.int(0, 1), stopwords=["the", "a", "THE"]
    )
    sensitive, action = attributes.get("is_case_sensitive", 0), attributes.get("case_change_action", "NONE")
    stops = attributes.get("stopwords", [])
    folded = {word.lower() for word in stops}
    kept = [w for w in x.tolist() if (w not in stops if sensitive else w.lower() not in folded)]
    kept = [w.lower() if action == "LOWER" else w.upper() if action == "UPPER" else w for w in kept] or [""]
    y = np.array(kept, object)
    if any("ß" in w for w in x.tolist()) and action == "UPPER":  # which C's towupper does not change
        return _normalize(d)
    return Trial([x[None] if row else x], attributes, [y[None] if row else y])


@node_of("StringSplit")
def _string_split(d: Draw) -> Trial:
    x = np.asarray(d.text(d.shape(0, 2, least=1, most=4), WORDS), object)
    attributes = d.given(delimiter=d.one("", ",", " ", "t"), maxsplit=d.int(1, 3))
    limit = attributes.get("maxsplit", -1)
    words = [str(text).split(attributes.get("delimiter") or None, limit) for text in x.reshape(-1)]
    longest = max(map(len, words), default=0)
    y = np.array([[*w, *[""] * (longest - len(w))] for w in words], object).reshape(*x.shape, longest)
    return Trial([x], attributes, [y, np.array([len(w) for w in words], np.int64).reshape(x.shape)])


@node_of("RegexFullMatch")
def _regex(d: Draw) -> Trial:
    """Match in the syntax of RE2, whose character classes are ASCII."""
    x = np.asarray(d.text(d.shape(0, 3, least=1), WORDS), object)
    pattern = d.one("a.*", "[a-z]+", r"\w+ \w+", "", "(the|a)", "[A-Z][a-z ]+")
    y = np.array([re.fullmatch(pattern, str(t), re.ASCII) is not None for t in x.reshape(-1)]).reshape(x.shape)
    return Trial([x], {"pattern": pattern}, [y])


@node_of("TfIdfVectorizer")
def _tf_idf(d: Draw) -> Trial:
    """Count n-grams by looking at every start, length and skip."""
    ones, twos = [int(v) for v in d.rng.permutation(6)[:3]], [(d.int(0, 5), d.int(0, 5)) for _ in range(3)]
    twos = list(dict.fromkeys(twos))
    least, most, skips = d.one((1, 1, 0), (1, 2, 0), (1, 2, 2), (2, 2, 1), (2, 2, 3))
    grams = [(v,) for v in ones] + twos
    weights = [0.5 + at for at in range(len(grams))]
    mode = d.one("TF", "IDF", "TFIDF")
    order = [int(v) for v in d.rng.permutation(len(grams))]
    x = d.rng.integers(0, 6, d.shape(1, 2, least=1, most=9)).astype(d.one(np.int32, np.int64))
    rows = x.reshape(-1, x.shape[-1])
    y = np.zeros((len(rows), len(grams)))
    for at, row in enumerate(rows.tolist()):
        for number, gram in enumerate(grams):
            size = len(gram)
            if not least <= size <= most:
                continue
            for skip in range(skips + 1 if size > 1 else 1):
                for start in range(len(row) - (size - 1) * (skip + 1)):
                    y[at, order[number]] += tuple(row[start + i * (skip + 1)] for i in range(size)) == gram
    scale = np.zeros(len(grams))
    for number, place in enumerate(order):
        scale[place] = weights[number]
    attributes = {
        "mode": mode,
        "min_gram_length": least,
        "max_gram_length": most,
        "max_skip_count": skips,
        "ngram_counts": [0, len(ones)],
        "ngram_indexes": order,
        "pool_int64s": [*ones, *(v for pair in twos for v in pair)],
    }
    if mode != "TF" and d.maybe(0.8):
        attributes["weights"] = weights
        y = (y > 0 if mode == "IDF" else y) * scale
    elif mode == "IDF":
        y = y > 0
    return Trial([x], attributes, [y.astype(np.float32).reshape(*x.shape[:-1], len(grams))])
