"""gpuconv.onnx.OPS compared with onnx.reference: what is measured, and the committed measurement."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from benchmarks import reference
from gpuconv.onnx import OPS

RECORD = json.loads((Path(reference.__file__).with_name("results") / "reference.json").read_text(encoding="utf-8"))


def _products(row: reference.Row, shape: tuple[int, ...]) -> int:
    if row.op == "Conv":
        return prod(shape) * prod(row.w[1:])
    if row.op == "ConvTranspose":
        return prod(row.x) * prod(row.w[1:])
    return prod(shape) * prod(row.w) if row.op != "GlobalAveragePool" else prod(row.x)


@pytest.mark.parametrize("row", reference.ROWS, ids=lambda row: f"{row.op} {row.name}")
def test_rows_have_more_than_a_million_products(row: reference.Row) -> None:
    model, inputs = reference._model(row)
    (y,) = ReferenceEvaluator(model, new_ops=OPS).run(None, inputs)
    assert _products(row, np.shape(y)) > 10**6


def test_the_committed_measurement_has_every_row() -> None:
    assert [(row["op"], row["row"]) for row in RECORD["rows"]] == [(row.op, row.name) for row in reference.ROWS]
    assert {row["op"] for row in RECORD["rows"]} == {operator.__name__ for operator in OPS}


@pytest.mark.parametrize("row", RECORD["rows"], ids=lambda row: f"{row['op']} {row['row']}")
def test_gpuconv_was_never_slower_and_ten_times_as_fast_beside_loops(row: dict[str, Any]) -> None:
    """Except for averages of whole images, which are one call of NumPy in both, plus checks in gpuconv."""
    if row["op"] == "GlobalAveragePool":
        assert row["ours"] - row["reference"] < 1e-4
    else:
        assert row["reference"] / row["ours"] >= (10 if row["loops"] else 1)
