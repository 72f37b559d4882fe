"""A few random nodes of every operator of the sweep, compared with the specification.

``python -m tests.onnx.sweep`` draws any number of nodes, and compares with ONNX Runtime too.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuconv.onnx import backend, operators
from tests.harness.device_arrays import device_arrays
from tests.onnx.sweep import comparing
from tests.onnx.sweep.drawing import MAKERS

pytestmark = pytest.mark.slow

NODES, SEED = 5, 7
NAMES = sorted(MAKERS)
# Operators that compute on a device: the remaining ones read all their inputs on the host.
ON_DEVICE = [
    *("AffineGrid", "Attention", "BitShift", "CenterCropPad", "LpNormalization", "MeanVarianceNormalization"),
    *("NegativeLogLikelihoodLoss", "RMSNormalization", "ReduceLogSum", "ReduceLogSumExp", "ReverseSequence"),
    *("SoftmaxCrossEntropyLoss", "Softsign", "ThresholdedRelu", "Trilu"),
]


@pytest.mark.parametrize(("domain", "op_type"), NAMES)
def test_random_nodes_give_what_the_specification_says(domain: str, op_type: str) -> None:
    tally = comparing.sweep(domain, op_type, NODES, SEED, ask=False)
    assert tally.nodes == NODES
    assert dict(tally.kinds) == {}


@pytest.mark.parametrize("op_type", ON_DEVICE)
@pytest.mark.filterwarnings("ignore:the model does not say of what type:UserWarning")
def test_random_nodes_on_a_device(op_type: str) -> None:
    for number in range(NODES):
        with np.errstate(all="ignore"):
            opset, trial = comparing.made(op_type, "", SEED * 1_000_000 + number)
        model = comparing.model_of(op_type, "", opset, trial)
        feeds = [value for value in trial.inputs if value is not None]
        with device_arrays() as device, np.errstate(all="ignore"):
            rep = backend.prepare(model, "CUDA")
            reads = operators.find(model.graph.node[0], opset)
            assert reads is not None
            there = [at for at, value in enumerate(trial.inputs) if value is not None]
            hosts = [at in reads[0].on_host for at in there]
            moved = [value if host else device.array(value) for value, host in zip(feeds, hosts, strict=True)]
            got: list[Any] = [device.memory(value) for value in rep.run(moved)]
        assert comparing.difference(got, trial) == "", (opset, trial)


def test_every_operator_of_the_evaluator_is_swept_or_said_not_to_be() -> None:
    """As listed on the page of operators."""
    page: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "onnx_operators.py"))
    left = {name.strip("`") for name, _, who, _ in page["rows"]() if who == "evaluator"}
    swept = {f"{domain}.{op_type}" if domain else op_type for domain, op_type in NAMES}
    assert left <= swept | set(page["NOT_SWEPT"])
    assert not swept & set(page["NOT_SWEPT"])
