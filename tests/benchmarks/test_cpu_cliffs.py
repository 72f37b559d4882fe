"""Random problems on the CPU over what their work should take: the draw, the prediction by hand, the tables."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from benchmarks import cpu_cliffs
from benchmarks.cpu_cliffs import Problem
from benchmarks.layers import Layer

CONV = Layer("", "", "Conv", (2, 3, 10), (4,), (1,), (0, 0), (1,), (), k_out=5)
POOL = replace(CONV, op="MaxPool", k_out=0)


def test_a_seed_draws_the_same_problems_on_every_machine() -> None:
    first, again, other = (list(islice(cpu_cliffs.problems(seed), 60)) for seed in (0, 0, 1))
    assert first == again != other
    assert len(set(first)) == 60
    operators = {problem.layer.operator for problem in islice(cpu_cliffs.problems(0), 200)}
    assert len(operators) == len(cpu_cliffs._CALLS)
    for problem in first:
        seconds = cpu_cliffs.predicted(problem, cpu_cliffs._USUAL)
        assert cpu_cliffs._LEAST_SECONDS <= seconds - 1e-4 <= cpu_cliffs._MOST_SECONDS


def test_predictions_by_hand() -> None:
    """Conv: y is (2, 5, 7), with 3 * 4 products each; 4 taps of 2 * 7 outputs for the 3 channels are gathered.

    The products of 2 * 10 inputs and 5 filters are more. ConvTranspose adds those of 10 inputs and 2 filters.
    """
    counts = {"products": 2 * (2 * 5 * 7) * (3 * 4), "gathered": 2 * 7 * 4 * 3, "runs": 168 * (1 / 7 - 1 / 16)}
    assert cpu_cliffs.conv_counts(CONV) == counts
    assert cpu_cliffs.conv_counts(replace(CONV, kernel=(1,)))["gathered"] == 0
    turned = replace(CONV, op="ConvTranspose", k_out=2, output_padding=(0,))
    counts = {"products": 2 * (2 * 3 * 10) * (2 * 4), "gathered": 2 * 10 * 4 * 2, "runs": 160 * (1 / 10 - 1 / 16)}
    assert cpu_cliffs.conv_counts(turned) == counts
    assert cpu_cliffs.pool_counts(POOL) == {"added": 2 * 3 * 7 * 4}
    assert cpu_cliffs.pool_counts(replace(POOL, indices=True)) == {"added": 4 * 2 * 3 * 7 * 4}
    assert cpu_cliffs.pool_counts(replace(POOL, call="grad")) == {"scattered": 2 * 3 * 7, "added": 2 * 3 * 10}
    rates = dict.fromkeys(cpu_cliffs._USUAL, 1.0) | {"call": 1000.0, "float64": 0.5}
    elements = 60 + 70 + 60
    starts = 168 * (1 / 7 - 1 / 16)
    single = 1000 + 1680 + 168 + starts + 4 * elements
    assert cpu_cliffs.predicted(Problem(CONV, "float32", "", None), rates) == single
    assert cpu_cliffs.predicted(Problem(CONV, "float16", "", None), rates) == single + elements
    assert cpu_cliffs.predicted(Problem(CONV, "float64", "", None), rates) == 1000 + 3360 + 336 + starts + 8 * elements
    assert cpu_cliffs.predicted(Problem(CONV, "float32", "", "batch"), rates) == single + 4 * 60  # both images read w


@pytest.mark.parametrize("call", ["", "input_grad", "weight_grad"])
def test_problems_are_measured(call: str) -> None:
    problem = Problem(replace(CONV, call=call), "float32", "1048576", None)
    row = cpu_cliffs.measured(problem, cpu_cliffs._USUAL)
    assert row["problem"].startswith(f"conv{'_' * bool(call)}{call} 2x3x10 k4 filters 5 float32 workspace 1048576")
    assert row["ratio"] == pytest.approx(row["ms"] / row["predicted_ms"], rel=1e-2)


def _row(operator: str, ratio: float) -> dict[str, Any]:
    return {"operator": operator, "ratio": ratio, "problem": f"{operator} {ratio}", "predicted_ms": 1.0}


def test_tables() -> None:
    rows = [_row("conv", 2.0), _row("conv", 8.0), _row("max_pool", 16.0)]
    found = cpu_cliffs.shares(rows)
    assert found["conv"] == {"problems": 2, "mean": 4.0, "above_3": 0.5, "above_10": 0.0, "worst": 8.0}
    assert found["all"]["above_10"] == 0.3333
    assert [row["ratio"] for row in cpu_cliffs.worst(rows)] == [16.0, 8.0, 2.0]
    assert "max_pool 16.0" in "\n".join(cpu_cliffs.lines(rows))
