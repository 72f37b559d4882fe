"""Check the results of gpuconv and PyTorch before they are timed.

Sampled elements are compared with float64 values and a rounding-error bound; then all elements of both are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import calls, floors, gpu_peers, gradient_samples, samples
from benchmarks.layers import Layer

_COUNT = 256  # samples per result
_FEW_SAMPLES = 14  # samples of weight and bias gradients, each a sum over all pixels
_TINY = 1e-30  # avoids division by zero where all terms of a sum are 0
# Largest error of PyTorch's samples in units of sum |x||w| + |b|. PyTorch may use other algorithms (Winograd, for one),
# so this only checks that it computed the same operation.
_PEER = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-3, "float64": 1e-9, "tf32": 5e-3, "3xtf32": 1e-3}
_PEER["complex64"] = _PEER["float32"]
# Largest ||ours - peer|| / ||peer||: both sides round, PyTorch possibly more than once.
_TOLERANCE = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-3, "float64": 1e-9, "tf32": 5e-3, "3xtf32": 1e-3}
_TOLERANCE["complex64"] = _TOLERANCE["float32"]


@dataclass
class Verdict:
    """Result of a comparison.

    Attributes
    ----------
    wrong : str
        Description of an error of gpuconv's result; empty if it is right.
    peer_wrong : str
        Likewise for the peer (PyTorch), which is then not compared.
    our_worst, peer_worst : float or None
        Largest sampled error in units of gpuconv's error bound (`samples.Sums.bound`).
    our_deviation, peer_deviation : float or None
        Largest sampled error in units of sum |x||w| + |b|.
    apart : float or None
        ||ours - peer|| / ||peer|| over all elements.
    """

    wrong: str = ""
    peer_wrong: str = ""
    our_worst: float | None = None
    peer_worst: float | None = None
    our_deviation: float | None = None
    peer_deviation: float | None = None
    apart: float | None = None


def compare(
    torch: Any,
    layer: Layer,
    dtype: str,
    operands: Any,
    ours: list[Any],
    peer: list[Any] | None,
    precision: str = "ieee",
) -> Verdict:
    """Compare gpuconv's results with float64 samples and, if there are any, with PyTorch's results.

    ``operands`` is a tuple of tensors in PyTorch's order; without PyTorch (``torch`` is None) CuPy arrays by name.
    """
    wrong = _form(layer, dtype, ours)
    if wrong:
        return Verdict(wrong)
    if layer.call == "unpool":
        return _compare_moved(torch, layer, operands, ours[0], peer[0] if peer else None)
    if layer.op == "MaxPool" and not layer.call:
        return _compare_maxima(torch, layer, operands["x"] if torch is None else operands[0], ours, peer)
    return _compare_sums(torch, layer, (dtype, precision), operands, ours[0], peer[0] if peer else None)


def _form(layer: Layer, dtype: str, ours: list[Any]) -> str:
    shape = calls.of(layer).result_shape
    for name, array, kind in zip(("the result", "indices"), ours, (dtype, "int64"), strict=False):
        found = str(array.dtype).removeprefix("torch.")
        if (tuple(array.shape), found) != (shape, kind):
            return f"{name} is {found} {tuple(array.shape)}, not {kind} {shape}"
    return ""


def taker(torch: Any) -> samples.Take:
    """Return a function that gathers elements of a tensor as a NumPy array in the widest dtype of their kind.

    Without PyTorch (``torch`` is None) it takes CuPy arrays.
    """
    if torch is None:
        return _elements

    def take(array: Any, index: tuple[Any, ...]) -> Any:
        places = tuple(torch.as_tensor(np.array(i), device=array.device) for i in index)
        kind = torch.float64 if array.dtype.is_floating_point else torch.int64
        kind = torch.complex128 if array.dtype.is_complex else kind
        return array[places].to(kind).cpu().numpy()

    return take


def _elements(array: Any, index: tuple[Any, ...]) -> Any:
    kind = {"c": np.complex128, "i": np.int64, "u": np.int64}.get(array.dtype.kind, np.float64)
    return array[tuple(index)].astype(kind).get()


def _operands_by_name(torch: Any, layer: Layer, operands: Any) -> dict[str, Any]:
    return operands if torch is None else gpu_peers.by_name(torch, layer, operands)


def _compare_sums(torch: Any, layer: Layer, kind: tuple[str, str], operands: Any, ours: Any, peer: Any) -> Verdict:
    take, label = taker(torch), floors.label(*kind)
    at = samples.positions(layer, _FEW_SAMPLES if layer.call in ("weight_grad", "bias_grad") else _COUNT)
    exact = _exact(torch, layer, take, operands, at)
    size, bound, found = exact.magnitudes + _TINY, exact.bound(*kind), take(ours, at)
    verdict = Verdict(our_worst=_worst(found, exact.values, bound), our_deviation=_worst(found, exact.values, size))
    if not verdict.our_worst <= 1:
        verdict.wrong = f"of {len(at[0])} samples the worst is off by {verdict.our_worst:.3g} times its bound"
    if peer is None:
        return verdict
    found = take(peer, at)
    verdict.peer_worst = _worst(found, exact.values, bound)
    verdict.peer_deviation = _worst(found, exact.values, size)
    far = verdict.peer_deviation / _PEER[label]
    if peer.shape != ours.shape or not far <= 1:
        verdict.peer_wrong = (
            f"PyTorch's result of shape {tuple(peer.shape)} is another, off by {far:.3g} times its bound"
        )
        return verdict
    verdict.apart = distance(torch, ours, peer)
    if not verdict.wrong and not verdict.apart <= _TOLERANCE[label]:
        verdict.wrong = f"all results differ from PyTorch's by {verdict.apart:.3g} of their norm"
    return verdict


def _exact(torch: Any, layer: Layer, take: samples.Take, operands: Any, at: tuple[Any, ...]) -> samples.Sums:
    named = _operands_by_name(torch, layer, operands)
    if layer.call not in ("", "fused"):
        return gradient_samples.sums(layer, take, named, at)
    if layer.op == "AveragePool":
        return samples.averages(layer, take, named["x"], at)
    found = samples.sums(layer, take, named["x"], named["w"], named["b"], at)
    return found.with_relu(take(named["residual"], at)) if layer.call else found


def _worst(found: Any, exact: Any, bound: Any) -> float:
    """Return the largest error in units of ``bound``; NaN counts as infinite."""
    error = abs(found - exact) / bound
    return float(np.where(np.isnan(error), np.inf, error).max())


def distance(torch: Any, ours: Any, peer: Any) -> float:
    """Return ||ours - peer|| / ||peer||, accumulated image by image to keep the float64 copies small."""
    if peer.dtype.is_complex:
        ours, peer = torch.view_as_real(ours), torch.view_as_real(peer)
    squares = [torch.zeros((), dtype=torch.float64, device=peer.device) for _ in range(2)]
    for a, b in zip(ours, peer, strict=True):
        wide = b.double()
        squares[0] += (a.double() - wide).square().sum()
        squares[1] += wide.square().sum()
    apart, size = (float(square) ** 0.5 for square in squares)
    return apart / size if size else apart


def differs(torch: Any, label: str, peer: Any, other: Any) -> str:
    """Return a message if another result of PyTorch's is too far from the peer's, else ""."""
    apart = distance(torch, other, peer)
    return "" if apart <= _TOLERANCE[label] else f"another result, which differs by {apart:.3g} of its norm"


def _compare_moved(torch: Any, layer: Layer, operands: Any, ours: Any, peer: Any) -> Verdict:
    take, at = taker(torch), samples.positions(layer, _COUNT)
    values = _exact(torch, layer, take, operands, at).values
    verdict = Verdict()
    if off := int(np.count_nonzero(take(ours, at) != values)):
        verdict.wrong = f"{off} of {len(at[0])} sampled elements are wrong"
    if peer is None:
        return verdict
    if off := int(np.count_nonzero(take(peer, at) != values)):
        verdict.peer_wrong = f"{off} of {len(at[0])} sampled elements of PyTorch's are wrong"
    elif not torch.equal(ours, peer):
        verdict.wrong = verdict.wrong or "the elements differ from PyTorch's"
    return verdict


def _compare_maxima(torch: Any, layer: Layer, x: Any, ours: list[Any], peer: list[Any] | None) -> Verdict:
    take, at = taker(torch), samples.positions(layer, _COUNT)
    values, indices = samples.maxima(layer, take, x, at)
    verdict = Verdict()
    off = int(np.count_nonzero(take(ours[0], at) != values))
    if off:
        verdict.wrong = f"{off} of {len(at[0])} sampled maxima are wrong"
    elif layer.indices and (off := int(np.count_nonzero(take(ours[1], at) != indices))):
        verdict.wrong = f"{off} of {len(at[0])} sampled indices are wrong"
    if peer is None:
        return verdict
    off = int(np.count_nonzero(take(peer[0], at) != values))
    if off:
        verdict.peer_wrong = f"{off} of {len(at[0])} sampled maxima of PyTorch's are wrong"
    elif not torch.equal(ours[0], peer[0]):
        verdict.wrong = verdict.wrong or "the maxima differ from PyTorch's"
    elif layer.indices and not torch.equal(ours[1], gpu_peers.onnx_indices(torch, layer, peer[1])):
        verdict.wrong = verdict.wrong or "the indices differ from PyTorch's"
    return verdict
