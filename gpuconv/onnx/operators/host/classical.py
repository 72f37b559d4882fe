"""Operators of the domain ai.onnx.ml: linear models, tree ensembles, feature encoders and normalisers.

All run on the host. Linear models are summed in float64, and scores are float32 as the specification says. Rules are
those of the ONNX-ML operator specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import onnx

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import Form, Operator

_ALL_HOST = frozenset(range(64))
_NUMBERS = frozenset({"float32", "float64", "int64", "int32"})
_TEXT = frozenset({"object"})
_NONZERO = 1e-7  # SOFTMAX_ZERO treats scores of smaller magnitude as 0


def _texts(values: Any) -> list[str]:
    """Return strings, decoded where onnx gives bytes."""
    return [value.decode() if isinstance(value, bytes) else value for value in values]


def _one_of(form: Form, *names: str) -> tuple[str, Any]:
    """Return name and value of the one attribute, among alternatives, that the node has; otherwise raise
    ArgumentError.
    """
    found = [(name, form.get(name)) for name in names if form.get(name) is not None]
    found = [(name, value) for name, value in found if np.size(value)] or found
    if len(found) != 1:
        raise ArgumentError(f"one of the attributes {', '.join(names)} must be given, not {len(found)}")
    name, value = found[0]
    return name, _texts(value) if isinstance(value, list) and value and isinstance(value[0], bytes) else value


def _named(names: Any, places: Any) -> Any:
    """Return the class labels with the given indices, as an array of strings or int64."""
    kind = object if isinstance(names[0], str) else np.int64
    return np.array(names, kind)[places]


# --- scores


def _softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _softmax_zero(scores: Any) -> Any:
    """Return softmax over the non-zero scores of each row; zeros stay 0."""
    powers = np.where(np.abs(scores) > _NONZERO, np.exp(scores - scores.max(axis=1, keepdims=True)), 0)
    total = powers.sum(axis=1, keepdims=True)
    return np.where(total == 0, 0.5, powers / np.where(total == 0, 1, total))


def _probit(scores: Any) -> Any:
    """Return the inverse of the standard normal CDF; infinite at 0 and 1, NaN outside."""
    ends = np.where(scores == 0, -np.inf, np.where(scores == 1, np.inf, np.nan))
    inside = (scores > 0) & (scores < 1)
    ends[inside] = [NormalDist().inv_cdf(score) for score in scores[inside].tolist()]
    return ends


_TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "NONE": lambda scores: scores,
    "SOFTMAX": _softmax,
    "LOGISTIC": lambda scores: 1 / (1 + np.exp(-scores)),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


def _transformed(form: Form, scores: Any) -> Any:
    """Apply the attribute post_transform (a name, or TreeEnsemble's number for it) to rows of scores."""
    given = form.get("post_transform") or "NONE"
    name = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"][given] if isinstance(given, int) else given
    if name not in _TRANSFORMS:
        raise ArgumentError(f"post_transform must be one of {', '.join(_TRANSFORMS)}, not {name!r}")
    with np.errstate(all="ignore"):
        return _TRANSFORMS[name](scores) if scores.size else scores


def _linear(form: Form, x: Any, rows: int | None) -> Any:
    """Return ``x @ coefficients.T + intercepts`` with shape (N, rows) in float64.

    ``rows`` of None infers the number of rows from the number of coefficients.
    """
    values = np.atleast_2d(x).astype(np.float64)
    weights = np.asarray(form.get("coefficients"), np.float64)
    features = values.shape[1]
    if x.ndim > 2 or not features or weights.size % features or (rows is not None and weights.size != rows * features):
        raise ArgumentError(
            f"{weights.size} coefficients do not fit X of shape {x.shape}"
            + ("" if rows is None else f" and {rows} targets")
        )
    scores = values @ weights.reshape(-1, features).T
    intercepts = form.get("intercepts")
    if intercepts:
        if len(intercepts) not in (1, scores.shape[1]):
            raise ArgumentError(f"there are {len(intercepts)} intercepts, but {scores.shape[1]} sets of coefficients")
        scores = scores + np.asarray(intercepts, np.float64)
    return scores


def _linear_regressor(form: Form, x: Any) -> Any:
    """LinearRegressor: one output per target, after post_transform."""
    return _transformed(form, _linear(form, x, form.get("targets"))).astype(np.float32)


def _linear_classifier(form: Form, x: Any) -> Any:
    """LinearClassifier: return labels and scores; a single row of coefficients scores the second of two classes."""
    _, names = _one_of(form, "classlabels_strings", "classlabels_ints")
    scores = _linear(form, x, None)
    if scores.shape[1] == 1 and len(names) == 2:
        scores = np.concatenate([-scores, scores], axis=1)
    if scores.shape[1] != len(names):
        raise ArgumentError(f"there are {len(names)} class labels, but {scores.shape[1]} sets of coefficients")
    return _named(names, scores.argmax(axis=1)), _transformed(form, scores).astype(np.float32)


# --- ensembles of trees


class _Trees:
    """Tree nodes in arrays; a leaf is a node without a test. Rows of features descend all levels together.

    Parameters
    ----------
    features, thresholds, missing : array (nodes)
        Feature to test, threshold to compare with, and whether NaN takes the true branch.
    modes : list of str
        Comparison of each node, "MEMBER" for set membership, or "LEAF".
    branches : array (nodes, 2)
        Positions of the nodes on the false and the true branch.
    members : dict of int to array
        Position of each MEMBER node: values that take the true branch.
    """

    def __init__(
        self,
        features: Any,
        thresholds: Any,
        missing: Any,
        modes: Sequence[str],
        branches: Any,
        members: Mapping[int, Any],
    ) -> None:
        self._features, self._thresholds, self._missing = features, thresholds, missing
        self._branches, self._members = branches, members
        self._places = {mode: np.array([mode == other for other in modes]) for mode in sorted(set(modes))}
        self._is_leaf = self._places.get("LEAF", np.zeros(len(modes), np.bool_))

    def leaves(self, x: Any, root: int) -> Any:
        """Return the position of the leaf that each row of x (N, features) reaches from ``root``."""
        tested = self._features[~self._is_leaf]
        if tested.size and not 0 <= tested.min() <= tested.max() < x.shape[1]:
            raise ArgumentError(f"nodes test the features {tested.min()} to {tested.max()}, but X has {x.shape[1]}")
        at = np.full(len(x), root)
        for _ in range(len(self._is_leaf)):
            rows = np.flatnonzero(~self._is_leaf[at])
            if not rows.size:
                return at
            nodes = at[rows]
            values = x[rows, self._features[nodes]]
            at[rows] = self._branches[nodes, self._holds(nodes, values).astype(np.int64)]
        if not self._is_leaf[at].all():
            raise ArgumentError("the branches of a tree lead around in a circle")
        return at

    def _holds(self, nodes: Any, values: Any) -> Any:
        """Return which rows take the true branch; NaN is decided by ``missing``, regardless of the comparison."""
        holds = np.zeros(len(nodes), np.bool_)
        for mode, places in self._places.items():
            mask = places[nodes]
            if mode == "MEMBER":
                holds[mask] = [
                    value in self._members[node] for node, value in zip(nodes[mask], values[mask], strict=True)
                ]
            elif mode != "LEAF":
                holds[mask] = _COMPARISONS[mode](values[mask], self._thresholds[nodes[mask]])
        return np.where(np.isnan(values), self._missing[nodes], holds)


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_LT": np.less,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _numbers(form: Form, name: str) -> Any:
    """Return a numeric attribute, or its ``_as_tensor`` alternative, as float64; None if both are absent."""
    tensor, plain = form.get(f"{name}_as_tensor"), form.get(name)
    if tensor is not None and np.size(_array(tensor)):
        return _array(tensor).astype(np.float64)
    return np.asarray(plain, np.float64) if plain else None


def _array(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else onnx.numpy_helper.to_array(value)


def _parsed(form: Form) -> tuple[_Trees, dict[tuple[int, int], int], list[int]]:
    """Return the trees of TreeEnsembleClassifier and -Regressor, node positions by (tree, node), and root positions."""
    modes, trees, numbers = (form.get(f"nodes_{name}") or [] for name in ("modes", "treeids", "nodeids"))
    modes = _texts(modes)
    features, true, false = (form.get(f"nodes_{name}") for name in ("featureids", "truenodeids", "falsenodeids"))
    thresholds, count = _numbers(form, "nodes_values"), len(modes)
    missing = form.get("nodes_missing_value_tracks_true") or [0] * count
    lists = [trees, numbers, features or [], true or [], false or [], missing, [] if thresholds is None else thresholds]
    if {len(values) for values in lists} != {count} or not count:
        raise ArgumentError(f"the attributes nodes_* must have one length, not {sorted({*map(len, lists), count})}")
    unknown = {*modes}.difference(_COMPARISONS, {"LEAF"})
    if unknown:
        raise ArgumentError(f"nodes_modes has {min(unknown)!r}, but must have {', '.join((*_COMPARISONS, 'LEAF'))}")
    places = {pair: at for at, pair in enumerate(zip(trees, numbers, strict=True))}
    branches = np.zeros((count, 2), np.int64)
    for at, mode in enumerate(modes):
        for side, target in enumerate((false[at], true[at])) if mode != "LEAF" else ():
            if (trees[at], target) not in places:
                raise ArgumentError(f"node {numbers[at]} of tree {trees[at]} branches to {target}, which is none of it")
            branches[at, side] = places[trees[at], target]
    roots = {tree: at for at, tree in reversed(list(enumerate(trees)))}  # the first node of each tree
    found = _Trees(np.asarray(features), thresholds, np.asarray(missing) > 0, modes, branches, {})
    return found, places, [roots[tree] for tree in sorted(roots)]


def _votes(form: Form, kind: str, places: Mapping[tuple[int, int], int], most: int) -> tuple[Any, Any, Any]:
    """Return the votes of leaves as three arrays: node position (-1 if unknown), target or class, and weight."""
    trees, numbers, targets = (form.get(f"{kind}_{name}") or [] for name in ("treeids", "nodeids", "ids"))
    weights = _numbers(form, f"{kind}_weights")
    if weights is None or {len(trees), len(numbers), len(targets)} != {len(weights)}:
        raise ArgumentError(f"the attributes {kind}_* must have one length")
    if not all(0 <= target < most for target in targets):
        raise ArgumentError(f"{kind}_ids has {min(targets)} to {max(targets)}, but must have 0 to {most - 1}")
    nodes = [places.get(pair, -1) for pair in zip(trees, numbers, strict=True)]
    return np.asarray(nodes), np.asarray(targets), weights


def _aggregated(ends: Any, votes: tuple[Any, Any, Any], most: int, how: str) -> Any:
    """Return scores (N, targets) from the leaves (N, trees) that each row reaches; 0 for targets without a vote."""
    nodes, targets, weights = votes
    result = np.zeros((len(ends), most))
    for target in range(most):
        votes_of_target = np.flatnonzero(targets == target)
        # (N, votes): whether a row reaches the voting leaf
        reached = (ends[:, :, None] == nodes[votes_of_target]).any(axis=1)
        any_vote = reached.any(axis=1)
        if how in ("SUM", "AVERAGE"):
            total = (reached * weights[votes_of_target]).sum(axis=1)
            result[:, target] = total / (ends.shape[1] if how == "AVERAGE" else 1)
        else:
            pick, nothing = (np.min, np.inf) if how == "MIN" else (np.max, -np.inf)
            best = pick(np.where(reached, weights[votes_of_target], nothing), axis=1, initial=nothing)
            result[:, target] = np.where(any_vote, best, 0)
    return result


def _ends(trees: _Trees, x: Any, roots: list[int]) -> Any:
    """Return the leaf that each row reaches in each tree: (N, trees)."""
    return np.stack([trees.leaves(x, root) for root in roots], axis=1)


def _with_base(form: Form, scores: Any) -> Any:
    """Add the attribute base_values to the scores."""
    base = _numbers(form, "base_values")
    if base is None:
        return scores
    if len(base) not in (1, scores.shape[1]):
        raise ArgumentError(f"there are {len(base)} base_values, but {scores.shape[1]} outputs")
    return scores + base


def _tree_regressor(form: Form, x: Any) -> Any:
    """TreeEnsembleRegressor: aggregate the weights of the leaves that a row reaches."""
    trees, places, roots = _parsed(form)
    targets, how = form.get("n_targets") or 1, form.get("aggregate_function") or "SUM"
    if how not in _AGGREGATES:
        raise ArgumentError(f"aggregate_function must be one of {', '.join(_AGGREGATES)}, not {how!r}")
    votes = _votes(form, "target", places, targets)
    scores = _aggregated(_ends(trees, np.atleast_2d(x), roots), votes, targets, how)
    return _transformed(form, _with_base(form, scores)).astype(np.float32)


def _tree_classifier(form: Form, x: Any) -> Any:
    """TreeEnsembleClassifier: return labels and scores; see _of_second if all votes are for one of two classes."""
    _, names = _one_of(form, "classlabels_strings", "classlabels_int64s")
    trees, places, roots = _parsed(form)
    votes = _votes(form, "class", places, len(names))
    scores = _with_base(form, _aggregated(_ends(trees, np.atleast_2d(x), roots), votes, len(names), "SUM"))
    if _is_binary(form):
        best, scores = _of_second(form, scores, votes)
    else:
        best, scores = scores.argmax(axis=1), _transformed(form, scores)
    return _named(names, best), scores.astype(np.float32)


def _of_second(form: Form, scores: Any, votes: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    """Return class numbers and both scores of a binary TreeEnsembleClassifier whose leaves all vote for one class.

    As in ONNX Runtime, a row's sum of votes is compared with a threshold, and above it the class is 1. The threshold is
    0.5 if no weight is negative, since the sum is a probability then, and 0 otherwise. If the leaves name class 0, the
    second score is computed from the sum: 1 - sum for probabilities, else -sum.
    """
    _, classes, weights = votes
    score, probable = scores[:, classes[0]], bool((weights >= 0).all())
    best = (score > (0.5 if probable else 0)).astype(np.int64)
    if classes[0] == 0:
        other = 1 - score if probable and form.get("post_transform") != "LOGISTIC" else -score
        scores = np.stack([other, score], axis=1)
    return best, _transformed(form, scores)


def _labels_of(form: Form) -> int:
    return max(len(form.get(name) or ()) for name in ("classlabels_strings", "classlabels_int64s"))


def _is_binary(form: Form) -> bool:
    """Return whether all votes are for the same one of two classes."""
    return len(set(form.get("class_ids") or ())) == 1 and _labels_of(form) == 2


def _says_its_classes(form: Form) -> bool:
    """Return whether the specification defines the classes: not for a single label, nor a binary form with
    base_values.
    """
    base = _numbers(form, "base_values")
    return _labels_of(form) > 1 and not (_is_binary(form) and base is not None and len(base) > 1)


def _tree_ensemble(form: Form, x: Any) -> Any:
    """TreeEnsemble of ai.onnx.ml 5: convert its separate lists of inner nodes and leaves to one list, leaves last."""
    modes = _array(form.get("nodes_modes")).tolist()
    names = [*_COMPARISONS, "MEMBER"]
    count, weights = len(modes), _array(form.get("leaf_weights")).astype(np.float64)
    splits = _array(form.get("nodes_splits")).astype(np.float64)
    lists = [form.get(f"nodes_{name}") or [] for name in ("featureids", "truenodeids", "falsenodeids")]
    lists += [form.get(f"nodes_{name}") or [] for name in ("trueleafs", "falseleafs")]
    missing = form.get("nodes_missing_value_tracks_true") or [0] * count
    targets = np.asarray(form.get("leaf_targetids") or [], np.int64)
    most, leaves, how = form.get("n_targets") or 1, len(weights), form.get("aggregate_function")
    lengths = {count, len(splits), len(missing), *map(len, lists)}
    if len(lengths) > 1 or len(targets) != leaves or not all(0 <= mode < len(names) for mode in modes):
        raise ArgumentError(
            f"the attributes nodes_* must have one length, not {sorted(lengths)}, leaf_* one length, not {leaves} "
            f"and {len(targets)}, and modes must be 0 to {len(names) - 1}"
        )
    if leaves and not 0 <= targets.min() <= targets.max() < most:
        raise ArgumentError(f"leaf_targetids must be 0 to {most - 1}")
    if how not in range(len(_AGGREGATES)):
        raise ArgumentError(f"aggregate_function must be 0 to {len(_AGGREGATES) - 1}, not {how}")
    features, *sides = map(np.asarray, lists)
    branches = np.stack([sides[1] + count * (sides[3] != 0), sides[0] + count * (sides[2] != 0)], axis=1)
    roots = form.get("tree_roots") or []
    for name, found, end in (("branches", branches, count + leaves), ("tree_roots", np.asarray(roots), count)):
        if found.size and not 0 <= found.min() <= found.max() < end:
            raise ArgumentError(f"the {name} lead to {found.min()} to {found.max()}, but there are {count} nodes")
    trees = _Trees(
        np.concatenate([features, np.zeros(leaves, np.int64)]),
        np.concatenate([splits, np.zeros(leaves)]),
        np.concatenate([np.asarray(missing) > 0, np.zeros(leaves, np.bool_)]),
        [*(names[mode] for mode in modes), *["LEAF"] * leaves],
        np.concatenate([branches, np.zeros((leaves, 2), np.int64)]),
        _members(form, [at for at, mode in enumerate(modes) if names[mode] == "MEMBER"]),
    )
    ends = _ends(trees, x, list(roots)) if roots else np.zeros((len(x), 0), np.int64)
    votes = count + np.arange(leaves), targets, weights
    return _transformed(form, _aggregated(ends, votes, most, _AGGREGATES[how])).astype(x.dtype)


def _members(form: Form, nodes: list[int]) -> dict[int, Any]:
    """Return the value set of each MEMBER node; membership_values lists the sets in order, each terminated by NaN."""
    given = form.get("membership_values")
    values = np.zeros(0) if given is None else _array(given).astype(np.float64)
    ends = np.flatnonzero(np.isnan(values)).tolist()
    if len(ends) < len(nodes):
        ends.append(len(values))  # the terminator of the last set may be missing
    if len(ends) != len(nodes):
        raise ArgumentError(f"membership_values has {len(ends)} sets, but there are {len(nodes)} nodes that need one")
    starts = [0, *(end + 1 for end in ends)]
    return {node: values[start:end] for node, start, end in zip(nodes, starts, ends, strict=False)}


# --- features


def _feature_vectorizer(form: Form, *arrays: Any) -> Any:
    """FeatureVectorizer: concatenate inputs, each cut or zero-padded to its declared width; a 1-D array is a row."""
    widths = form.get("inputdimensions") or []
    if len(widths) != len(arrays) or min(widths, default=0) < 0:
        raise ArgumentError(f"inputdimensions is {widths}, but must have a size for each of {len(arrays)} inputs")
    rows = [array.reshape(array.shape[0] if array.ndim > 1 else 1, -1) for array in arrays]
    y = np.zeros((rows[0].shape[0], sum(widths)), np.float32)
    for start, width, part in zip(np.cumsum([0, *widths[:-1]]), widths, rows, strict=True):
        y[:, start : start + min(width, part.shape[1])] = part[:, :width]
    return y


def _dict_vectorizer(form: Form, x: Any) -> Any:
    """DictVectorizer: return a map's values in vocabulary order, shape (V), 0 for missing keys; a list gives (N, V)."""
    _, words = _one_of(form, "string_vocabulary", "int64_vocabulary")
    places = {word: at for at, word in enumerate(words)}
    rows = x if isinstance(x, list) else [x]
    unknown = next((key for row in rows for key in row if key not in places), None)
    if unknown is not None:
        raise ArgumentError(f"the key {unknown!r} is none of the vocabulary")
    given = [value for row in rows for value in row.values()]
    kind = np.asarray(given).dtype if given else np.dtype(np.float32)
    y = np.zeros((len(rows), len(words)), object if kind.kind in "OU" else kind)
    if kind.kind in "OU":
        y[...] = ""
    for line, row in zip(y, rows, strict=True):
        for key, value in row.items():
            line[places[key]] = value
    return y if isinstance(x, list) else y[0]


def _normalizer(form: Form, x: Any) -> Any:
    """Normalizer: divide each row of x (N, C) or (C) by its maximum, L1 or L2 norm; rows with norm 0 are unchanged."""
    norm, values = form.get("norm"), x.astype(np.float64)
    if norm not in ("MAX", "L1", "L2") or x.ndim not in (1, 2):
        raise ArgumentError(f"norm must be MAX, L1 or L2, not {norm!r}, and X (N, C) or (C), not {x.shape}")
    if not x.size:
        return x.astype(np.float32)
    if norm == "MAX":
        total = values.max(axis=-1, keepdims=True)
    elif norm == "L1":
        total = np.abs(values).sum(axis=-1, keepdims=True)
    else:
        total = np.sqrt(np.square(values).sum(axis=-1, keepdims=True))
    return (values / np.where(total == 0, 1, total)).astype(np.float32)


def _scaler(form: Form, x: Any) -> Any:
    """Scaler: return ``(x - offset) * scale``, with scalar or per-feature parameters."""
    offset, scale = (np.asarray(form.get(name) or [start], np.float64) for name, start in (("offset", 0), ("scale", 1)))
    for name, values in (("offset", offset), ("scale", scale)):
        if len(values) not in (1, x.shape[-1] if x.ndim else 1):
            raise ArgumentError(f"{name} has {len(values)} numbers, but must have 1, or one per feature of X {x.shape}")
    return ((x - offset) * scale).astype(np.float32)


def _one_hot_encoder(form: Form, x: Any) -> Any:
    """OneHotEncoder: append an axis over the categories; unknown values give zeros, or an error if ``zeros`` is 0."""
    name, categories = _one_of(form, "cats_strings", "cats_int64s")
    texts = name == "cats_strings"
    if texts != (x.dtype == object):
        raise ArgumentError(f"{name} cannot encode X of type {'string' if x.dtype == object else x.dtype}")
    places = {category: at for at, category in enumerate(categories)}
    values = x if texts else x.astype(np.int64)
    found = np.array([places.get(value, -1) for value in values.reshape(-1).tolist()], np.int64)
    if not form.get("zeros") and (found < 0).any():
        wrong = values.reshape(-1).tolist()[int(np.flatnonzero(found < 0)[0])]
        raise ArgumentError(f"{wrong!r} is none of the categories, and zeros=0 asks for an error")
    y = (found[:, None] == np.arange(len(categories))).astype(np.float32)
    return y.reshape(*x.shape, len(categories))


_KEYS = ("keys_strings", "keys_int64s", "keys_floats", "keys_tensor")
_VALUES = ("values_strings", "values_int64s", "values_floats", "values_tensor")
_UNUSED = {"U": "_Unused", "O": "_Unused", "f": -0.0}


def _label_encoder(form: Form, x: Any) -> Any:
    """LabelEncoder: map keys to values; of equal keys the last one wins, and NaN matches NaN.

    Opset 1 maps strings to indices, and indices to strings.
    """
    if form.get("classes_strings") is not None:
        return _by_class(form, x)
    (_, keys), (name, values) = _one_of(form, *_KEYS), _one_of(form, *_VALUES)
    keys, found = (_array(v) if not isinstance(v, list) else v for v in (keys, values))
    if len(keys) != len(found):
        raise ArgumentError(f"there are {len(keys)} keys, but {len(found)} values")
    kinds = {"values_strings": object, "values_int64s": np.int64, "values_floats": np.float32}
    kind = np.dtype(kinds.get(name, getattr(found, "dtype", object)))
    tensor = form.get("default_tensor")
    default = form.get("default_" + name.removeprefix("values_").removesuffix("s"))
    if name == "values_tensor" or (tensor is not None and np.size(_array(tensor))):
        default = _UNUSED.get(kind.kind, -1) if tensor is None else _array(tensor).reshape(-1)[0]
    mapped = {_key(key): value for key, value in zip(np.asarray(keys).tolist(), found, strict=True)}
    y = [mapped.get(_key(value), default) for value in x.reshape(-1).tolist()]
    return np.array(y, kind).reshape(x.shape)


def _key(value: Any) -> Any:
    """Return a dict key for a value, the same for every NaN."""
    return "NaN" if value != value else value  # NaN must match NaN; no number equals this string


def _by_class(form: Form, x: Any) -> Any:
    """Map strings to indices or indices to strings, as LabelEncoder of opset 1 does."""
    names = _texts(form.get("classes_strings"))
    if x.dtype == object:
        places = {name: at for at, name in enumerate(names)}
        return np.array([places.get(v, form.get("default_int64")) for v in x.reshape(-1)], np.int64).reshape(x.shape)
    inside = (names[v] if 0 <= v < len(names) else form.get("default_string") for v in x.reshape(-1).tolist())
    return np.array(list(inside), object).reshape(x.shape)


def _category_mapper(form: Form, x: Any) -> Any:
    """CategoryMapper: map strings to integers, or integers to strings, by two parallel lists."""
    texts, numbers = _texts(form.get("cats_strings") or []), form.get("cats_int64s") or []
    if len(texts) != len(numbers):
        raise ArgumentError(f"cats_strings has {len(texts)} entries, but cats_int64s {len(numbers)}")
    to_numbers = x.dtype == object
    mapped = dict(zip(texts, numbers, strict=True) if to_numbers else zip(numbers, texts, strict=True))
    default = form.get("default_int64" if to_numbers else "default_string")
    y = [mapped.get(value, default) for value in x.reshape(-1).tolist()]
    return np.array(y, np.int64 if to_numbers else object).reshape(x.shape)


_LABEL_TYPES = _NUMBERS | _TEXT | {"int16"}
CLASSICAL = {  # domain ai.onnx.ml
    "CategoryMapper": Operator(_category_mapper, _ALL_HOST, dtypes=_TEXT | {"int64"}),
    "DictVectorizer": Operator(_dict_vectorizer, _ALL_HOST, cost=lambda *_: 1, collections=True),
    "FeatureVectorizer": Operator(_feature_vectorizer, _ALL_HOST, dtypes=_NUMBERS),
    "LabelEncoder": Operator(_label_encoder, _ALL_HOST, dtypes=_LABEL_TYPES),
    "LinearClassifier": Operator(_linear_classifier, _ALL_HOST, dtypes=_NUMBERS),
    "LinearRegressor": Operator(_linear_regressor, _ALL_HOST, dtypes=_NUMBERS),
    "Normalizer": Operator(_normalizer, _ALL_HOST, dtypes=_NUMBERS),
    "OneHotEncoder": Operator(_one_hot_encoder, _ALL_HOST, dtypes=_NUMBERS | _TEXT),
    "Scaler": Operator(_scaler, _ALL_HOST, dtypes=_NUMBERS),
    "TreeEnsemble": Operator(_tree_ensemble, _ALL_HOST, dtypes=frozenset({"float16", "float32", "float64"})),
    "TreeEnsembleClassifier": Operator(_tree_classifier, _ALL_HOST, _says_its_classes, dtypes=_NUMBERS),
    "TreeEnsembleRegressor": Operator(_tree_regressor, _ALL_HOST, dtypes=_NUMBERS),
}
