"""Classifiers of tables of features, which return maps, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from gpuconv._errors import ArgumentError
from gpuconv.onnx import backend
from tests.harness.device_arrays import device_arrays
from tests.onnx.models import floats
from tests.onnx.networks import onnxruntime_run

DOMAIN = "ai.onnx.ml"
OPSETS = [helper.make_opsetid("", 15), helper.make_opsetid(DOMAIN, 3)]
LABELS: list[tuple[dict[str, Any], int]] = [
    ({"classlabels_int64s": [7, -1, 3]}, TensorProto.INT64),
    ({"classlabels_strings": ["setosa", "ß", ""]}, TensorProto.STRING),
]


def model(nodes: list[Any], outputs: list[Any], features: int, axes: int = 2) -> Any:
    shape = ["N", features] if axes == 2 else [features]
    graph = helper.make_graph(nodes, "classifier", [helper.make_tensor_value_info("x", 1, shape)], outputs)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def maps(key: int) -> Any:
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    return helper.make_value_info("maps", helper.make_sequence_type_proto(kind))


@pytest.mark.parametrize(("labels", "key"), LABELS)
@pytest.mark.parametrize("shape", [(4, 3), (1, 3), (0, 3), (3,)])
def test_rows_become_maps(labels: dict[str, Any], key: int, shape: tuple[int, ...]) -> None:
    node = helper.make_node("ZipMap", ["x"], ["maps"], domain=DOMAIN, **labels)
    made, x = model([node], [maps(key)], 3, len(shape)), floats(*shape)
    (got,) = backend.prepare(made).run([x])
    (wanted,) = onnxruntime_run(made, {"x": x}) if x.size else ([],)
    assert [list(row.items()) for row in got] == [list(row.items()) for row in wanted]
    assert [list(map(type, [*row, *row.values()])) for row in got] == [
        list(map(type, [*row, *row.values()])) for row in wanted
    ]


@pytest.mark.parametrize(("labels", "key"), LABELS)
def test_a_classifier_as_converters_write_it(labels: dict[str, Any], key: int) -> None:
    attributes = {"coefficients": floats(12, seed=1).tolist(), "intercepts": [0.25, -0.5, 0.0], "multi_class": 1}
    attributes |= {name.replace("int64s", "ints"): value for name, value in labels.items()}
    attributes |= {"post_transform": "SOFTMAX"}
    nodes = [
        helper.make_node("LinearClassifier", ["x"], ["label", "scores"], domain=DOMAIN, **attributes),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain=DOMAIN, **labels),
    ]
    made, x = model(nodes, [helper.make_tensor_value_info("label", key, ["N"]), maps(key)], 4), floats(5, 4)
    rep = backend.prepare(made)
    label, got = rep.run(None, {"x": x})
    wanted_label, wanted = onnxruntime_run(made, {"x": x})
    assert label.tolist() == list(wanted_label)
    assert [list(row) for row in got] == [list(row) for row in wanted]
    np.testing.assert_allclose([[*row.values()] for row in got], [[*row.values()] for row in wanted], rtol=1e-5)
    assert list(rep.report().left) == []


def test_scores_from_a_device() -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["scores"]),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain=DOMAIN, **LABELS[0][0]),
    ]
    made, x = model(nodes, [maps(TensorProto.INT64)], 3), floats(2, 3)
    (wanted,) = backend.prepare(made).run([x])
    with device_arrays():
        (got,) = backend.prepare(made, "CUDA").run([x])
    assert [list(row) for row in got] == [list(row) for row in wanted]
    np.testing.assert_allclose([[*row.values()] for row in got], [[*row.values()] for row in wanted], rtol=1e-6)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({}, "one of classlabels_strings and classlabels_int64s must be given"),
        ({**LABELS[0][0], **LABELS[1][0]}, "one of classlabels_strings and classlabels_int64s must be given"),
        ({"classlabels_int64s": [1, 2]}, r"X must be \(N, 2\), as there are 2 labels, not \(4, 3\)"),
    ],
)
def test_labels_that_do_not_fit(labels: dict[str, Any], message: str) -> None:
    node = helper.make_node("ZipMap", ["x"], ["maps"], domain=DOMAIN, **labels)
    with pytest.raises(ArgumentError, match=message):
        backend.prepare(model([node], [maps(TensorProto.INT64)], 3)).run([floats(4, 3)])
