"""Operators of classical machine learning, domain ai.onnx.ml."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.onnx.sweep.drawing import Draw, Trial, dtype, is_float, node_of, wide

ML = "ai.onnx.ml"
_NUMBERS = ("float32", "float64", "int64", "int32")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
WORDS = ["a", "b", "cat", "", "é"]


def _f32(values: Any) -> Any:
    """Round a value to float32, the type of attributes."""
    return np.asarray(values, np.float32).astype(np.float64)


@node_of("ArrayFeatureExtractor", domain=ML)
def _extract(d: Draw) -> Trial:
    kind = d.type("T", _NUMBERS)
    x = d.array(kind, d.shape(1, 3, least=1))
    places = d.rng.integers(0, x.shape[-1], d.int(1, 4))
    y = x[..., places]
    return Trial([x, places[None] if d.maybe(0.3) else places], {}, [y[None] if y.ndim == 1 else y])


@node_of("Binarizer", domain=ML)
def _binarize(d: Draw) -> Trial:
    x = d.array(d.type("T", _NUMBERS), d.shape(1, 3, least=1))
    attributes = d.given(threshold=d.one(0.5, -1.0, 2.0))
    return Trial([x], attributes, [(x > attributes.get("threshold", 0.0)).astype(x.dtype)])


@node_of("FeatureVectorizer", domain=ML)
def _features(d: Draw) -> Trial:
    kind, rows = d.type("T1", _NUMBERS), d.int(1, 3)
    arrays = [d.array(kind, (rows, d.int(1, 4))) for _ in range(d.int(1, 3))]
    y = np.concatenate(arrays, axis=1).astype(np.float32)
    return Trial(arrays, {"inputdimensions": [a.shape[1] for a in arrays]}, [y])


@node_of("Imputer", domain=ML)
def _impute(d: Draw) -> Trial:
    kind = d.type("T", ("float32", "int64", "float64", "int32"))
    x = d.array(kind, (d.int(1, 4), d.int(1, 4)), 1.0)
    x = np.round(x) if is_float(kind) else x
    count = d.one(1, x.shape[1])
    if is_float(kind):
        replaced = d.one(math.nan, 0.0, 1.0, None)
        if replaced is not None and math.isnan(replaced):
            x[d.rng.random(x.shape) < 0.3] = math.nan
        values = [0.5 + at for at in range(count)]
        attributes: dict[str, Any] = {"imputed_value_floats": values}
        if replaced is not None:
            attributes["replaced_value_float"] = replaced
    else:
        replaced, values = d.one(0, 1, None), [50 + at for at in range(count)]
        attributes = {"imputed_value_int64s": values}
        if replaced is not None:
            attributes["replaced_value_int64"] = replaced
    wanted = 0 if replaced is None else replaced
    y = x.copy()
    for i, j in np.ndindex(*x.shape):
        if x[i, j] == wanted or (wanted != wanted and x[i, j] != x[i, j]):
            y[i, j] = values[j if count > 1 else 0]
    return Trial([x], attributes, [y])


_LABELS = {
    "strings": (WORDS, "_Unused"),
    "int64s": ([1, 2, 3, 7, -4], -1),
    "floats": ([0.5, 1.0, -2.0, math.nan, 3.0], -0.0),
}


@node_of("LabelEncoder", domain=ML)
def _labels(d: Draw) -> Trial:
    if d.opset == 1:
        back = d.maybe()
        attributes: dict[str, Any] = {"classes_strings": WORDS} | d.given(default_int64=9, default_string="none")
        if back:
            x = d.rng.integers(-2, 7, d.shape(1, 2, least=1))
            other = attributes.get("default_string", "_Unused")
            y = [WORDS[v] if 0 <= v < len(WORDS) else other for v in x.reshape(-1)]
            return Trial([x], attributes, [np.array(y, object).reshape(x.shape)])
        x = np.asarray(d.text(d.shape(1, 2, least=1), [*WORDS, "zzz"]), object)
        y = [WORDS.index(v) if v in WORDS else attributes.get("default_int64", -1) for v in x.reshape(-1)]
        return Trial([x], attributes, [np.array(y, np.int64).reshape(x.shape)])
    source, target = d.one(*_LABELS), d.one(*_LABELS)
    keys, (values, default) = _LABELS[source][0][:4], _LABELS[target]
    values = values[:4]
    if d.maybe(0.3):
        keys = [*keys[:3], keys[0]]
    default = {"strings": d.one("none", None), "int64s": d.one(11, None), "floats": d.one(2.5, None)}[target]
    kinds = {"strings": object, "int64s": np.int64, "floats": np.float32}
    attributes = {f"keys_{source}": keys, f"values_{target}": values}
    if d.opset >= 4 and d.maybe() and {source, target} <= {"int64s", "floats"}:
        pair = [
            d.one("int64", "int32", "int16") if k == "int64s" else d.one("float32", "float64") for k in (source, target)
        ]
        kinds |= {source: dtype(pair[0])}
        out = dtype(pair[1])
        attributes = {
            "keys_tensor": numpy_helper.from_array(np.array(keys, kinds[source])),
            "values_tensor": numpy_helper.from_array(np.array(values, out)),
        }
        if default is not None:
            attributes["default_tensor"] = numpy_helper.from_array(np.array([default], out))
    else:
        out = np.dtype(kinds[target])
        if default is not None:
            attributes["default_" + target.removesuffix("s")] = default
    default = _LABELS[target][1] if default is None else default
    pool = [*keys, {"strings": "zzz", "int64s": 99, "floats": 9.0}[source]]
    x = np.array([pool[d.int(0, len(pool) - 1)] for _ in range(d.int(1, 6))], kinds[source])
    y = []
    for v in x.tolist():
        found = [at for at, key in enumerate(keys) if key == v or (key != key and v != v)]
        y.append(values[found[-1]] if found else default)
    return Trial([x], attributes, [np.array(y, out)])


@node_of("Normalizer", domain=ML)
def _normalizer(d: Draw) -> Trial:
    x = d.array(d.type("T", _NUMBERS), (d.int(1, 3), d.int(1, 4)) if d.maybe(0.8) else (d.int(1, 4),), 2.0)
    if d.maybe(0.3):
        x[0] = 0
    attributes = d.given(norm=d.one("MAX", "L1", "L2"))
    norm, v = attributes.get("norm", "MAX"), wide(x).astype(np.float64)
    # The text has max(X) and sum(X): implementations and models have magnitudes in L1, and ONNX Runtime plain maxima.
    by = {"MAX": lambda: v.max(-1), "L1": lambda: np.abs(v).sum(-1), "L2": lambda: np.sqrt((v * v).sum(-1))}[norm]()
    by = np.where(by == 0, 1, by)[..., None]
    return Trial([x], attributes, [(v / by).astype(np.float32)], loose=3)


@node_of("OneHotEncoder", domain=ML)
def _one_hot(d: Draw) -> Trial:
    shape = d.shape(1, 3, least=1, most=3)
    texts = d.maybe(0.3)
    if texts:
        cats: list[Any] = ["a", "b", "é"]
        x = np.asarray(d.text(shape, [*cats, "zzz"]), object)
    else:
        cats = [3, 1, -2]
        x = d.rng.choice([3, 1, -2, 5], shape).astype(d.type("T", ("int64", "int32", "float32", "float64")))
    y = np.zeros((*shape, 3), np.float32)
    for at in np.ndindex(*shape):
        if x[at] in cats:
            y[(*at, cats.index(x[at]))] = 1
    every = bool(y.sum(axis=-1).all())
    attributes: dict[str, Any] = {"cats_strings" if texts else "cats_int64s": cats}
    return Trial([x], attributes | ({"zeros": d.int(0, 1) if every else 1} if d.maybe() else {}), [y])


@node_of("Scaler", domain=ML)
def _scaler(d: Draw) -> Trial:
    x = d.array(d.type("T", _NUMBERS), (d.int(1, 3), d.int(1, 4)))
    count = d.one(1, x.shape[1])
    attributes = {"offset": [0.5 * at - 1 for at in range(count)], "scale": [1.5 + at for at in range(count)]}
    y = (wide(x) - attributes["offset"]) * attributes["scale"]
    return Trial([x], attributes, [y.astype(np.float32)], loose=3)


def _transformed(scores: Any, transform: str) -> Any:
    """Return rows of scores after post_transform."""
    if transform == "SOFTMAX":
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
    if transform == "SOFTMAX_ZERO":
        powers = np.where(np.abs(scores) <= 1e-7, 0, np.exp(scores - scores.max(axis=1, keepdims=True)))
        return powers / np.maximum(powers.sum(axis=1, keepdims=True), 1e-30)
    if transform == "LOGISTIC":
        return 1 / (1 + np.exp(-scores))
    return scores


def _labels_of(d: Draw, best: Any, classes: int, integers: str = "classlabels_ints") -> tuple[Any, dict[str, Any]]:
    """Return the labels of the best of some classes, texts or integers, and the attribute that has all of them."""
    texts = d.maybe()
    names = [f"c{at}" for at in range(classes)] if texts else [10 + at for at in range(classes)]
    labels = np.array([names[at] for at in best], object if texts else np.int64)
    return labels, {"classlabels_strings" if texts else integers: names}


@node_of("LinearRegressor", domain=ML)
def _regress(d: Draw) -> Trial:
    x = d.array(d.type("T", _NUMBERS), (d.int(1, 4), d.int(1, 4)), 1.0)
    targets = d.int(1, 3)
    weights = _f32(d.rng.standard_normal((targets, x.shape[1])))
    attributes: dict[str, Any] = {"coefficients": weights.reshape(-1).tolist()}
    attributes |= {"targets": targets} if targets > 1 or d.maybe() else {}
    y = wide(x).astype(np.float64) @ weights.T
    if d.maybe():
        offsets = _f32(d.rng.standard_normal(targets))
        attributes["intercepts"], y = offsets.tolist(), y + offsets
    transform = d.one("NONE", "NONE", "SOFTMAX", "LOGISTIC")
    attributes |= {"post_transform": transform} if transform != "NONE" or d.maybe() else {}
    if targets == 1 and transform == "SOFTMAX":
        y = np.ones_like(y)
    return Trial([x], attributes, [_transformed(y, transform).astype(np.float32)], loose=16)


@node_of("LinearClassifier", domain=ML)
def _classify(d: Draw) -> Trial:
    x = d.array(d.type("T1", _NUMBERS), (d.int(1, 4), d.int(1, 4)), 1.0)
    classes = d.int(3, 5) if d.maybe(0.7) else 2
    weights = _f32(d.rng.standard_normal((classes, x.shape[1])))
    attributes: dict[str, Any] = {"coefficients": weights.reshape(-1).tolist()}
    scores = wide(x).astype(np.float64) @ weights.T
    if d.maybe():
        offsets = _f32(d.rng.standard_normal(classes))
        attributes["intercepts"], scores = offsets.tolist(), scores + offsets
    transform = d.one("NONE", "NONE", "SOFTMAX", "LOGISTIC")
    attributes |= {"post_transform": transform} if transform != "NONE" or d.maybe() else {}
    labels, named = _labels_of(d, scores.argmax(axis=1), classes)
    return Trial([x], attributes | named, [labels, _transformed(scores, transform).astype(np.float32)], loose=16)


def _kernel(u: Any, v: Any, kind: str, parameters: list[float]) -> float:
    gamma, coef, degree = parameters
    if kind == "RBF":
        return math.exp(-gamma * float(((u - v) ** 2).sum()))
    product = float(u @ v)
    if kind == "LINEAR":
        return product
    return (gamma * product + coef) ** degree if kind == "POLY" else math.tanh(gamma * product + coef)


@node_of("SVMRegressor", domain=ML)
def _svm_regress(d: Draw) -> Trial:
    x = d.array(d.type("T", ("float32",)), (d.int(1, 4), d.int(1, 4)), 0.7)
    kind, parameters = d.one("LINEAR", "POLY", "RBF", "SIGMOID"), [0.5, 0.25, 2.0]
    supports = d.int(1, 4)
    vectors = _f32(d.rng.standard_normal((supports, x.shape[1])) * 0.7)
    weights, rho = _f32(d.rng.standard_normal(supports)), 0.125
    y = np.array([
        [sum(w * _kernel(row, v, kind, parameters) for w, v in zip(weights, vectors, strict=True)) + rho]
        for row in x.astype(np.float64)
    ])  # fmt: skip
    attributes: dict[str, Any] = {"coefficients": weights.tolist(), "support_vectors": vectors.reshape(-1).tolist()}
    attributes |= {"n_supports": supports, "rho": [rho], "kernel_params": parameters}
    attributes |= {"kernel_type": kind} if kind != "LINEAR" or d.maybe() else {}
    if d.maybe(0.3):
        attributes["one_class"], y = 1, np.where(y > 0, 1.0, -1.0)
    return Trial([x], attributes, [y.astype(np.float32)], loose=30)


@node_of("SVMClassifier", domain=ML)
def _svm_classify(d: Draw) -> Trial:
    """Classify one against one, like libsvm: a decision and a vote for every pair of classes."""
    x = d.array(np.float32, (d.int(1, 4), d.int(1, 4)), 0.7)
    classes, kind, parameters = d.int(3, 4), d.one("LINEAR", "POLY", "RBF", "SIGMOID"), [0.5, 0.25, 2.0]
    counts = [d.int(1, 3) for _ in range(classes)]
    total, starts = sum(counts), np.cumsum([0, *counts])
    vectors = _f32(d.rng.standard_normal((total, x.shape[1])) * 0.7)
    weights = _f32(d.rng.standard_normal((classes - 1, total)))
    rho = _f32(d.rng.standard_normal(classes * (classes - 1) // 2))
    scores, best = [], []
    for row in x.astype(np.float64):
        k = [_kernel(row, v, kind, parameters) for v in vectors]
        votes, line, pair = [0] * classes, [], 0
        for i in range(classes):
            for j in range(i + 1, classes):
                s = rho[pair]
                s += sum(weights[j - 1, at] * k[at] for at in range(starts[i], starts[i + 1]))
                s += sum(weights[i, at] * k[at] for at in range(starts[j], starts[j + 1]))
                votes[i if s > 0 else j] += 1
                line.append(s)
                pair += 1
        scores.append(line)
        best.append(int(np.argmax(votes)))
    texts = d.maybe()
    names = [f"c{at}" for at in range(classes)] if texts else [10 + at for at in range(classes)]
    attributes: dict[str, Any] = {
        "coefficients": weights.reshape(-1).tolist(), "support_vectors": vectors.reshape(-1).tolist(),
        "rho": rho.tolist(), "vectors_per_class": counts, "kernel_params": parameters, "kernel_type": kind,
    }  # fmt: skip
    attributes["classlabels_strings" if texts else "classlabels_ints"] = names
    labels = np.array([names[at] for at in best], object if texts else np.int64)
    return Trial([x], attributes, [labels, np.array(scores).astype(np.float32)], loose=60)


@node_of("DictVectorizer", domain=ML)
def _dictionary(d: Draw) -> Trial:
    texts = d.maybe()
    words: list[Any] = ["a", "b", "c", "z"] if texts else [3, 1, 7, 5]
    kind = d.one(np.float32, np.float64, np.int64) if texts else d.one(np.float32, np.float64)
    chosen = [words[at] for at in sorted(d.rng.permutation(4)[: d.int(1, 4)])]
    values = {word: kind(d.int(1, 9)) for word in chosen}
    y = np.array([values.get(word, 0) for word in words], kind)
    return Trial([values], {"string_vocabulary" if texts else "int64_vocabulary": words}, [y])


# --- trees


def _tree(d: Draw, features: int, depth: int) -> Any:
    """Return a random tree: a leaf's number is None until it is listed."""
    if depth == 0 or d.maybe(0.2):
        return None
    mode = d.one("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
    threshold = 0.5 * d.int(-2, 2)
    return mode, d.int(0, features - 1), threshold, d.int(0, 1), [_tree(d, features, depth - 1) for _ in range(2)]


def _holds(mode: str, value: float, threshold: float) -> bool:
    return {
        "BRANCH_LEQ": value <= threshold,
        "BRANCH_LT": value < threshold,
        "BRANCH_GTE": value >= threshold,
        "BRANCH_GT": value > threshold,
        "BRANCH_EQ": value == threshold,
        "BRANCH_NEQ": value != threshold,
    }[mode]


def _listed(trees: list[Any]) -> tuple[dict[str, list[Any]], list[tuple[int, int]]]:
    """Return the attributes of all nodes, and (tree, node) of every leaf; trees are numbered from the front."""
    lists: dict[str, list[Any]] = {
        f"nodes_{name}": []
        for name in ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    }
    lists["nodes_missing_value_tracks_true"] = []
    leaves = []
    for tree_id, tree in enumerate(trees):
        queue, numbers = [tree], 1
        rows = []
        while queue:
            node, at = queue.pop(0), len(rows)
            if node is None:
                leaves.append((tree_id, at))
                rows.append((tree_id, at, 0, "LEAF", 0.0, 0, 0, 0))
                continue
            mode, feature, threshold, missing, children = node
            rows.append((tree_id, at, feature, mode, threshold, numbers, numbers + 1, missing))
            numbers += 2
            queue += children
        for row in rows:
            for values, value in zip(lists.values(), row, strict=True):
                values.append(value)
    return lists, leaves


def _leaf(lists: dict[str, list[Any]], tree: int, row: Any) -> tuple[int, int]:
    """Return (tree, node) of the leaf that a row of features reaches."""
    index = {pair: at for at, pair in enumerate(zip(lists["nodes_treeids"], lists["nodes_nodeids"], strict=True))}
    node = 0
    while lists["nodes_modes"][at := index[tree, node]] != "LEAF":
        value = float(row[lists["nodes_featureids"][at]])
        missing = lists["nodes_missing_value_tracks_true"][at]
        true = missing if value != value else _holds(lists["nodes_modes"][at], value, lists["nodes_values"][at])
        node = lists["nodes_truenodeids" if true else "nodes_falsenodeids"][at]
    return tree, node


def _features_of(d: Draw, features: int) -> Any:
    x = np.round(d.array(d.one(np.float32, np.float64), (d.int(1, 4), features), 1.0) * 2) / 2
    if d.maybe(0.3):
        x[d.rng.random(x.shape) < 0.2] = math.nan
    return x.astype(x.dtype)


@node_of("TreeEnsembleRegressor", domain=ML)
def _tree_regress(d: Draw) -> Trial:
    features, targets = d.int(1, 3), d.int(1, 3)
    x = _features_of(d, features).astype(np.float32)
    lists, leaves = _listed([_tree(d, features, 3) for _ in range(d.int(1, 3))])
    votes = [
        (leaf, d.int(0, targets - 1), float(_f32(d.rng.standard_normal())))
        for leaf in leaves
        for _ in range(d.int(1, 2))
    ]
    votes = [vote for at, vote in enumerate(votes) if vote[:2] not in [v[:2] for v in votes[:at]]]
    how = d.one("SUM", "AVERAGE", "MIN", "MAX")
    base = [float(v) for v in _f32(d.rng.standard_normal(targets))] if d.maybe() else None
    trees = len(set(lists["nodes_treeids"]))
    y = np.zeros((len(x), targets))
    for at, row in enumerate(x):
        reached = [_leaf(lists, tree, row) for tree in range(trees)]
        for target in range(targets):
            found = [w for leaf, t, w in votes if t == target and leaf in reached]
            if found:
                total = sum(found)
                y[at, target] = {"SUM": total, "AVERAGE": total / trees, "MIN": min(found), "MAX": max(found)}[how]
    y = y if base is None else y + base
    attributes = lists | {
        "target_treeids": [v[0][0] for v in votes],
        "target_nodeids": [v[0][1] for v in votes],
        "target_ids": [v[1] for v in votes],
        "target_weights": [v[2] for v in votes],
        "n_targets": targets,
    }
    attributes |= {"aggregate_function": how} if how != "SUM" or d.maybe() else {}
    attributes |= {} if base is None else {"base_values": base}
    return Trial([x], attributes, [y.astype(np.float32)], loose=16)


@node_of("TreeEnsembleClassifier", domain=ML)
def _tree_classify(d: Draw) -> Trial:
    features, classes = d.int(1, 3), d.int(3, 4)
    x = _features_of(d, features).astype(np.float32)
    lists, leaves = _listed([_tree(d, features, 3) for _ in range(d.int(1, 3))])
    votes = [
        (leaf, c, float(_f32(d.rng.uniform(0.1, 2))))
        for leaf in leaves
        for c in d.rng.permutation(classes)[: d.int(1, 2)]
    ]
    base = [float(v) for v in _f32(d.rng.uniform(0, 1, classes))] if d.maybe() else None
    trees = len(set(lists["nodes_treeids"]))
    scores = np.zeros((len(x), classes))
    for at, row in enumerate(x):
        reached = [_leaf(lists, tree, row) for tree in range(trees)]
        for leaf, c, w in votes:
            scores[at, c] += w if leaf in reached else 0
    scores = scores if base is None else scores + base
    labels, named = _labels_of(d, scores.argmax(axis=1), classes, "classlabels_int64s")
    transform = d.one("NONE", "NONE", "SOFTMAX", "LOGISTIC")
    attributes = lists | {
        "class_treeids": [v[0][0] for v in votes],
        "class_nodeids": [v[0][1] for v in votes],
        "class_ids": [int(v[1]) for v in votes],
        "class_weights": [v[2] for v in votes],
    }
    if len(set(attributes["class_ids"])) == 1:  # of two classes, which the specification does not define
        return _tree_classify(d)
    attributes |= {"post_transform": transform} if transform != "NONE" or d.maybe() else {}
    attributes |= {} if base is None else {"base_values": base}
    return Trial([x], attributes | named, [labels, _transformed(scores, transform).astype(np.float32)], loose=16)


@node_of("TreeEnsemble", domain=ML)
def _tree_ensemble(d: Draw) -> Trial:
    kind, features, targets = d.one(np.float32, np.float64), d.int(1, 3), d.int(1, 3)
    x = _features_of(d, features).astype(kind)
    trees = [_tree(d, features, 3) or ("BRANCH_LEQ", 0, 0.0, 0, [None, None]) for _ in range(d.int(1, 3))]
    how = d.int(0, 3)
    rows: list[list[Any]] = []
    leaves: list[tuple[int, float]] = []
    members: list[float] = []

    def add(node: Any) -> tuple[int, int]:
        """List a node and those below it; return where it is, and whether it is a leaf."""
        if node is None:
            leaves.append((d.int(0, targets - 1), float(_f32(d.rng.standard_normal()))))
            return len(leaves) - 1, 1
        mode, feature, threshold, missing, children = node
        row = [mode, feature, threshold, missing, None, None]
        at = len(rows)
        rows.append(row)
        if d.maybe(0.2):
            row[0], row[2] = "BRANCH_MEMBER", [0.5 * d.int(-3, 3) for _ in range(d.int(1, 3))]
            members.extend([*row[2], math.nan])
        row[4:] = [add(child) for child in children]
        return at, 0

    roots = [add(tree)[0] for tree in trees]

    def reached(at: int, leaf: int, line: Any) -> tuple[int, float]:
        while not leaf:
            mode, feature, threshold, missing, true, false = rows[at]
            value = float(line[feature])
            holds = value in threshold if mode == "BRANCH_MEMBER" else _holds(mode, value, threshold)
            at, leaf = true if (missing if value != value else holds) else false
        return leaves[at]

    y = np.zeros((len(x), targets))
    for number, line in enumerate(x):
        ends = [reached(root, 0, line) for root in roots]
        for target in range(targets):
            found = [w for t, w in ends if t == target]
            if found:
                y[number, target] = [sum(found) / len(roots), sum(found), min(found), max(found)][how]
    modes = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"]
    tensor = numpy_helper.from_array
    attributes: dict[str, Any] = {
        "nodes_splits": tensor(np.array([0.0 if isinstance(r[2], list) else r[2] for r in rows], kind)),
        "nodes_featureids": [r[1] for r in rows],
        "nodes_modes": tensor(np.array([modes.index(r[0]) for r in rows], np.uint8)),
        "nodes_truenodeids": [r[4][0] for r in rows],
        "nodes_falsenodeids": [r[5][0] for r in rows],
        "nodes_trueleafs": [r[4][1] for r in rows],
        "nodes_falseleafs": [r[5][1] for r in rows],
        "nodes_missing_value_tracks_true": [r[3] for r in rows],
        "leaf_targetids": [t for t, _ in leaves],
        "leaf_weights": tensor(np.array([w for _, w in leaves], kind)),
        "tree_roots": roots,
        "n_targets": targets,
        "aggregate_function": how,
    }
    if members:
        attributes["membership_values"] = tensor(np.array(members, kind))
    return Trial([x], attributes, [y.astype(kind)], loose=16)
