"""What invariant bits are predicted to cost: the recorded table, and how it is made."""

from __future__ import annotations

import pytest

from benchmarks import invariance, layers, records
from benchmarks.invariance import Price
from benchmarks.static_plan import Case
from gpuconv.cuda.plan.limits import representative


def test_the_summary_weighs_layers_alike_and_names_the_dear_ones() -> None:
    cheap = Price("cheap", "a", (1.0, 1.02, 1.0, 1.02))
    dear = Price("dear", "b", (1.0, 2.0, None, 2.0))
    assert cheap.mean == pytest.approx(1.02**0.5)
    assert dear.mean == pytest.approx(4 ** (1 / 3))
    assert invariance.summary([cheap, dear]) == {
        "count": 2,
        "mean": round((1.02**0.5 * 4 ** (1 / 3)) ** 0.5, 4),
        "worst": 2.0,
        "above": ["dear"],
        "layers": {"dear": [1.587, "b", 1.0, 2.0, None, 2.0]},
    }


@pytest.mark.parametrize("name", ["resnet50.l4.3x3", "resnet50.l1.3x3"])
def test_a_recorded_price_is_found_again(name: str) -> None:
    layer = next(layer for layer in layers.load() if layer.id == name)
    price = invariance.price(Case(layer, "bfloat16"), representative("sm_90a"))
    recorded = records.read(invariance.PATH)["sm_90a bfloat16"]["layers"][name]
    assert invariance.summary([price])["layers"][name] == recorded


def test_recorded_aims() -> None:
    """All that miss them are named in the documentation."""
    recorded = records.read(invariance.PATH)
    rows = {name: row for name, row in recorded.items() if isinstance(row, dict)}
    assert len(rows) == 20
    assert {name for name, row in rows.items() if row["mean"] > invariance.MOST_MEAN} == {
        "sm_90a tf32",
        "sm_90a 3xtf32",
    }
    assert {name: row["above"] for name, row in rows.items() if row["above"]} == {
        "sm_90a bfloat16": ["dcgan.g5", "resnet50.b1.l1.3x3", "resnet50.l1.3x3", "sd15.unet.1280"],
        "sm_90a tf32": ["resnet50.b1.l1.3x3", "resnet50.l1.3x3", "resnet50.l2.3x3"],
        "sm_90a 3xtf32": ["maskrcnn.deconv", "resnet50.l2.3x3", "resnet50.l2.3x3s2"],
        "sm_100a bfloat16": ["inception3.1x7"],
        "sm_100a 3xtf32": ["maskrcnn.deconv"],
    }
