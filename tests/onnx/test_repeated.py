"""Convolutions of a model that are repeated with operands of the same kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import gpuconv
from gpuconv import cpu
from gpuconv.onnx import backend, nodes
from gpuconv.onnx.repeated import RepeatedConv
from tests.onnx.models import parsed
from tests.oracle import oracle

MODEL = """residual (T[N, 3, H, W] x, T[M, 3, 3, 3] w, T[M] b, T[N, M, H, W] r) => (T[N, M, H, W] y)
{ c = Conv <pads = [1, 1, 1, 1]> (x, w, b) s = Add (c, r) y = Relu (s) }
"""


def _feeds(seed: int, images: int, filters: int, height: int, dtype: str) -> list[Any]:
    draw = np.random.default_rng(seed)
    shapes = [(images, 3, height, 7), (filters, 3, 3, 3), (filters,), (images, filters, height, 7)]
    return [draw.integers(-4, 5, shape).astype(dtype) for shape in shapes]


def _expected(x: Any, w: Any, b: Any, r: Any) -> Any:
    return np.maximum(oracle.conv(x, w, b, pads=[1, 1, 1, 1]).value + r, 0).astype(x.dtype)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
def test_a_model_is_right_again_and_with_other_shapes_between(dtype: str, fold: bool) -> None:
    rep = backend.prepare(parsed(MODEL.replace("T[", f"{dtype}[")), fold=fold)
    of_numpy = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    for seed, sizes in enumerate([(2, 4, 6), (2, 4, 6), (1, 5, 9), (2, 4, 6), (2, 4, 6)]):
        feeds = _feeds(seed, *sizes, of_numpy)
        assert np.array_equal(rep.run(feeds)[0], _expected(*feeds))


def test_operands_of_accepted_kinds_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rep = backend.prepare(parsed(MODEL.replace("T[", "float[")))
    feeds = _feeds(0, 2, 4, 6, "float32")
    rep.run(feeds)
    monkeypatch.setattr(nodes, "call", None)  # a call of it would fail
    assert np.array_equal(rep.run(feeds)[0], _expected(*feeds))
    with pytest.raises(gpuconv.GpuconvError, match="TypeError"):
        rep.run(_feeds(0, 3, 4, 6, "float32"))


@pytest.mark.parametrize(("operand", "wrong"), [(0, np.zeros((2, 4, 6, 7), "f")), (1, np.zeros((4, 3, 3), "f"))])
def test_operands_that_do_not_fit_are_refused_after_some_that_did(operand: int, wrong: Any) -> None:
    rep = backend.prepare(parsed(MODEL.replace("T[", "float[")))
    feeds = _feeds(0, 2, 4, 6, "float32")
    rep.run(feeds)
    feeds[operand] = wrong
    with pytest.raises(gpuconv.ArgumentError):
        rep.run(feeds)


def test_only_plain_numpy_arrays_are_taken() -> None:
    again = RepeatedConv({"pads": [1, 1, 1, 1]})
    x, w, b, _ = _feeds(0, 2, 4, 6, "float32")
    again.accept(x, w, b)
    assert np.array_equal(again.run(x, w, b), oracle.conv(x, w, b, pads=[1, 1, 1, 1]).value)
    assert again.run(x, w) is None
    assert again.run(x.astype(np.float64), w, b) is None
    assert again.run(x.astype(x.dtype.newbyteorder()), w, b) is None
    assert again.run(x.view(np.recarray), w, b) is None


def test_what_is_known_of_constant_weights_holds_for_no_others() -> None:
    again = RepeatedConv({"pads": [1, 1, 1, 1]})
    x, w, b, _ = _feeds(0, 2, 4, 6, "float32")
    again.keep(w)
    again.accept(x, w, b)
    assert np.array_equal(again.run(x, w, b), oracle.conv(x, w, b, pads=[1, 1, 1, 1]).value)
    other = w.copy()
    other[:, :, 0, 0] = np.inf  # over the padding it adds nothing, where a product with 0 would make NaN
    expected = gpuconv.conv(x, other, b, pads=[1, 1, 1, 1])
    assert np.isfinite(expected).any()
    assert np.array_equal(again.run(x, other, b), expected, equal_nan=True)


@pytest.mark.parametrize("fold", [False, True])
def test_constant_weights_are_looked_at_once(fold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    known = cpu.known_weights

    def counted(w: Any) -> Any:
        looked.append(w)
        return known(w)

    monkeypatch.setattr(cpu, "known_weights", counted)
    x, w, b, r = _feeds(0, 2, 4, 6, "float32")
    proto = parsed(MODEL.replace("T[", "float["))
    rep = backend.prepare(proto, fold=fold)
    for _ in range(3):
        assert np.array_equal(rep.run([x, w, b, r])[0], _expected(x, w, b, r))
    assert not looked, "weights that are fed may change"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    rep = backend.prepare(proto, fold=fold)
    for _ in range(3):
        assert np.array_equal(rep.run({"x": x, "b": b, "r": r})[0], _expected(x, w, b, r))
    assert [array.tolist() for array in looked] == [w.tolist()]
