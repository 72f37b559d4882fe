"""What invariant bits are predicted to cost: the recorded table, and how it is made."""

from __future__ import annotations

import pytest

from benchmarks import invariance, layers, records
from benchmarks.invariance import Price
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
    price = invariance._price(layer, representative("sm_90a"), "bfloat16", "ieee")
    recorded = records.read(invariance.PATH)["sm_90a bfloat16"]["layers"][name]
    assert invariance.summary([price])["layers"][name] == recorded


def test_recorded_aims() -> None:
    """All that miss them are named in the documentation."""
    recorded = records.read(invariance.PATH)
    rows = {
        name: row
        for name, row in recorded.items()
        if isinstance(row, dict) and name.split()[1] in ("bfloat16", "float32")
    }
    assert len(rows) == 10
    assert {name for name, row in rows.items() if row["mean"] > invariance.MOST_MEAN} == {
        f"{architecture} bfloat16" for architecture in ("sm_80", "sm_90a", "sm_100a")
    }
    assert {name: row["above"] for name, row in rows.items() if row["above"]} == {
        "sm_90a bfloat16": ["sd15.unet.1280"],
        "sm_100a bfloat16": ["pix2pix.d3", "unet3d.enc2"],
    }
