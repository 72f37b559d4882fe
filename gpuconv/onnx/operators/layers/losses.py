"""Training losses: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

Models that were exported for training end with them. Both share the reduction, with class weights and ignored targets.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError
from gpuconv.onnx.operators.form import Form, Operator, namespace, wide

_REDUCTIONS = ("none", "mean", "sum")


def _loss(form: Form, logs: Any, target: Any, weight: Any) -> Any:
    """Return the weighted negative log-likelihood of each target, reduced; ignored targets contribute 0.

    The mean is divided by the sum of the weights of the targets that are not ignored (weight 1 if none are given).
    """
    xp, reduction, ignored = namespace(logs), form.get("reduction"), form.get("ignore_index")
    classes = logs.shape[1] if logs.ndim > 1 else 0
    if logs.ndim < 2 or target.shape != (logs.shape[0], *logs.shape[2:]):
        raise ArgumentError(f"input {logs.shape} and target {target.shape} must be (N, C, d1, …) and (N, d1, …)")
    if reduction not in _REDUCTIONS:
        raise ArgumentError(f"reduction must be one of {', '.join(_REDUCTIONS)}, not {reduction!r}")
    if weight is not None and weight.shape != (classes,):
        raise ArgumentError(f"weight must have the shape ({classes},), one number per class, not {weight.shape}")
    counts = xp.ones(target.shape, np.bool_) if ignored is None else target != ignored
    known = xp.where(counts, target, 0).astype(np.int64)
    if isinstance(known, np.ndarray) and known.size and not 0 <= known.min() <= known.max() < max(1, classes):
        raise ArgumentError(f"target has classes from {known.min()} to {known.max()}, but there are {classes}")
    places = prod(target.shape[1:])
    rows, picks = logs.reshape(*logs.shape[:2], places), known.reshape(target.shape[0], 1, places)
    picked = xp.take_along_axis(rows, picks, 1).reshape(target.shape) if classes else xp.zeros(target.shape)
    each = counts.astype(logs.dtype) if weight is None else xp.where(counts, xp.take(wide(weight), known), 0)
    loss = xp.where(counts, -picked * each, 0).astype(logs.dtype, copy=False)
    if reduction == "none":
        return loss
    return xp.sum(loss) if reduction == "sum" else xp.sum(loss) / xp.sum(each)


def _negative_log_likelihood(form: Form, x: Any, target: Any, weight: Any = None) -> Any:
    """NegativeLogLikelihoodLoss on log-probabilities (N, C, d1, ...)."""
    with np.errstate(invalid="ignore"):
        return _loss(form, wide(x), target, weight).astype(x.dtype, copy=False)


def _softmax_cross_entropy(form: Form, x: Any, target: Any, weight: Any = None) -> Any:
    """SoftmaxCrossEntropyLoss: return the loss and, if the node has that output, the log-probabilities."""
    xp, y = namespace(x), wide(x)
    if y.ndim > 1 and y.size:
        y = y - xp.max(y, axis=1, keepdims=True)
        y = y - xp.log(xp.sum(xp.exp(y), axis=1, keepdims=True))
    with np.errstate(invalid="ignore"):
        loss = _loss(form, y, target, weight).astype(x.dtype, copy=False)
    return (loss, y.astype(x.dtype, copy=False))[: len(form.outputs)]


def _cost(_: Form, x: Any, *__: Any) -> int:
    return int(x.size)


OPERATORS = {
    "NegativeLogLikelihoodLoss": Operator(_negative_log_likelihood, cost=_cost),
    "SoftmaxCrossEntropyLoss": Operator(_softmax_cross_entropy, cost=_cost),
}
