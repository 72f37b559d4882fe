"""String operators, computed on the host: RegexFullMatch, StringNormalizer, StringSplit and TfIdfVectorizer.

Strings are NumPy arrays of dtype object.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import Form, Operator

_TEXT = frozenset({"object"})
_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


def _normalize(form: Form, x: Any) -> Any:
    """StringNormalizer: remove stop words from x (C) or (1, C), then change the case of the remaining elements."""
    action, sensitive = form.get("case_change_action"), form.get("is_case_sensitive")
    if action not in _CASES:
        raise ArgumentError(f"case_change_action must be one of {', '.join(_CASES)}, not {action!r}")
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ArgumentError(f"X must be (C) or (1, C), not {x.shape}")
    compared = _CASES["NONE" if sensitive else "LOWER"]
    stops = {compared(word.decode()) for word in form.get("stopwords") or ()}
    remaining = [_CASES[action](text) for text in x.reshape(-1).tolist() if compared(text) not in stops]
    return np.array(remaining or [""], object).reshape(*x.shape[:-1], -1)


def _split(form: Form, x: Any) -> Any:
    """StringSplit: return the substrings of each string along a new last axis, padded with "", and their counts."""
    limit = form.get("maxsplit")
    parts = [text.split(form.get("delimiter") or None, -1 if limit is None else limit) for text in x.reshape(-1)]
    longest = max(map(len, parts), default=0)
    y = np.full((len(parts), longest), "", object)
    for row, words in zip(y, parts, strict=True):
        row[: len(words)] = words
    counts = np.array([len(words) for words in parts], np.int64)
    return y.reshape(*x.shape, longest), counts.reshape(x.shape)


def _matches(form: Form, x: Any) -> Any:
    """RegexFullMatch: return whether each whole string matches; character classes are ASCII, as in RE2."""
    try:
        pattern = re.compile(form.get("pattern") or "", re.ASCII)
    except re.error as error:
        raise ArgumentError(f"pattern {form.get('pattern')!r} is not valid: {error}") from error
    found = [pattern.fullmatch(text) is not None for text in x.reshape(-1).tolist()]
    return np.array(found, np.bool_).reshape(x.shape)


def _grams(form: Form) -> dict[tuple[Any, ...], int]:
    """Return the index of each n-gram of the pool, by its tuple of items; the first of equal n-grams counts."""
    texts, numbers = form.get("pool_strings"), form.get("pool_int64s")
    if (texts is None) == (numbers is None):
        raise ArgumentError("one of pool_strings and pool_int64s must be given, and not both")
    pool: Sequence[Any] = numbers if texts is None else [text.decode() for text in texts]
    starts = [*(form.get("ngram_counts") or ()), len(pool)]
    if starts != sorted(starts) or starts[0] < 0:
        raise ArgumentError(f"ngram_counts {starts[:-1]} must rise, from 0 to at most the {len(pool)} of the pool")
    found: dict[tuple[Any, ...], int] = {}
    number = 0
    for length, (start, end) in enumerate(itertools.pairwise(starts), 1):
        for at in range(start, end - length + 1, length):
            found.setdefault(tuple(pool[at : at + length]), number)
            number += 1
    return found


def _ngrams(row: list[Any], lengths: range, skips: int) -> Iterator[tuple[Any, ...]]:
    """Yield the n-grams of a row for each length, and for each gap of 0 to ``skips`` items between adjacent items."""
    for length in lengths:
        for step in range(1, skips + 2 if length > 1 else 2):
            span = (length - 1) * step
            if span >= len(row):
                break
            for start in range(len(row) - span):
                yield tuple(row[start : start + span + 1 : step])


def _tf_idf(form: Form, x: Any) -> Any:
    """TfIdfVectorizer: return counts of the pool's n-grams in x (C) or (N, C) (TF), weights (IDF), or their product."""
    grams, mode = _grams(form), form.get("mode")
    places, most = form.get("ngram_indexes") or [], max((len(gram) for gram in grams), default=0)
    if mode not in ("TF", "IDF", "TFIDF") or x.ndim not in (1, 2):
        raise ArgumentError(f"mode must be TF, IDF or TFIDF, not {mode!r}, and X (C) or (N, C), not {x.shape}")
    if len(places) < max(grams.values(), default=-1) + 1 or min(places, default=0) < 0:
        raise ArgumentError(f"ngram_indexes has {len(places)} entries, but each of {len(grams)} n-grams needs one")
    weights = form.get("weights") or [1.0] * len(places)
    if len(weights) != len(places):
        raise ArgumentError(f"there are {len(weights)} weights, but {len(places)} ngram_indexes")
    low, high, skips = (form.get(name) or 0 for name in ("min_gram_length", "max_gram_length", "max_skip_count"))
    lengths = range(max(1, low), min(high, most) + 1)
    rows = x.reshape(-1, x.shape[-1]).tolist()
    y = np.zeros((len(rows), max(places, default=-1) + 1))
    for line, row in zip(y, rows, strict=True):
        counts = np.zeros(len(places))
        for gram in _ngrams(row, lengths, skips):
            if gram in grams:
                counts[grams[gram]] += 1
        if mode == "IDF":
            counts = (counts > 0).astype(np.float64)
        np.add.at(line, places, counts if mode == "TF" else counts * weights)
    return y.astype(np.float32).reshape(*x.shape[:-1], -1)


OPERATORS = {
    "RegexFullMatch": Operator(_matches, frozenset({0}), dtypes=_TEXT),
    "StringNormalizer": Operator(_normalize, frozenset({0}), dtypes=_TEXT),
    "StringSplit": Operator(_split, frozenset({0}), dtypes=_TEXT),
    "TfIdfVectorizer": Operator(_tf_idf, frozenset({0}), dtypes=_TEXT | {"int32", "int64"}),
}
