"""Two revisions are timed in turns, in separate processes, and no failure of one stops the other."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks import against, layers, random_layers
from benchmarks.supervision import ROOT

JOB = {"kind": "layer", "function": "conv", "shapes": [[1, 2, 9], [3, 2, 2], [3]], "keywords": {}}


def a_checkout(folder: Path, package: str) -> Path:
    """Make a folder whose package gpuconv consists only of this text."""
    (folder / "gpuconv").mkdir(parents=True)
    (folder / "gpuconv" / "__init__.py").write_text(package)
    return folder


def arguments(**changed: Any) -> argparse.Namespace:
    values = {"against": "HEAD", "layers": "", "op": None, "seconds": 0.01, "threads": 1, "gflop": 2.0, "models": False}
    return argparse.Namespace(**{**values, "random": None, "seed": 0, "brief": False, "json": None, **changed})


def test_the_median_of_the_ratios_and_its_quartiles() -> None:
    assert against.spread([1.0, 2.0, 3.0, 4.0, 100.0]) == {"ratio": 3.0, "low": 2.0, "high": 4.0}


@pytest.mark.parametrize(("ratio", "warns"), [(1.14, False), (1.15, True), (0.5, False)])
def test_a_line_warns_from_1_15_on(ratio: float, warns: bool, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"name": "a", "this_seconds": [ratio], "other_seconds": [1.0], "same_bits": True}
    row |= {"ratio": ratio, "low": ratio, "high": ratio}
    assert ("WARNING: slower by 15 %" in against._line(row)) == warns
    summary = against._summary([row, {"name": "b", "left_out": "other revision: its process has died"}])
    assert summary == {"mean": pytest.approx(ratio), "slower": ["a"] * warns}
    assert ("WARNING" in capsys.readouterr().out) == warns


def test_pairs_alternate_in_which_side_comes_first() -> None:
    order: list[str] = []

    class Side:
        def __init__(self, name: str) -> None:
            self.name = name

        def turn(self, calls: int) -> float:
            order.append(self.name)
            return 1.0 if self.name == "a" else 2.0

    pairs = against._pairs(Side("a"), Side("b"), 0.0)  # type: ignore[arg-type]
    assert pairs == [(1.0, 2.0)] * 4
    assert "".join(order) == "ab" + "abbaabba"


@pytest.mark.slow
def test_another_revision_is_timed_with_its_own_package(tmp_path: Path) -> None:
    """The bits of its results differ if its package computes others."""
    other = a_checkout(tmp_path / "other", "def conv(x, w, b): return x * 2\n")
    row = against._measure("conv", JOB, other, arguments())
    assert not row["same_bits"]
    assert len(row["this_seconds"]) == len(row["other_seconds"]) >= 4
    assert row["low"] <= row["ratio"] <= row["high"]
    assert against._measure("conv", JOB, ROOT, arguments())["same_bits"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "why"),
    [
        ("", "AttributeError: module 'gpuconv' has no attribute 'conv'"),
        ("import os; os._exit(3)", "its process has died"),
        ("calls = 0\ndef conv(x, w, b):\n    global calls; calls += 1\n    1 / (2 - calls); return x\n", "has died"),
        ("print('noise')\ndef conv(x, w, b): return x\n", ""),
    ],
)
def test_what_a_revision_cannot_do_is_left_out(tmp_path: Path, package: str, why: str) -> None:
    row = against._measure("conv", JOB, a_checkout(tmp_path / "other", package), arguments())
    assert why in row.get("left_out", "")
    assert ("ratio" in row) == (not why)


def test_a_revision_that_git_does_not_have_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert against.run(arguments(against="no/such-revision")) == 0
    assert capsys.readouterr().out.startswith("nothing to compare with: git has no revision no/such-revision (")


def test_the_brief_list_has_twelve_layers_and_three_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "_job_of_network", lambda network, _: {"network": network.name})
    jobs = [*against._jobs(arguments(brief=True), tmp_path)]
    assert [job["network"] for _, job in jobs[12:]] == ["squeezenet", "mobilenet_v3", "unet"]
    assert {job["function"] for _, job in jobs[:12]} == {"conv", "conv_transpose", "max_pool"}


# ---------------------------------------------------------------- random layers


def test_random_layers_come_from_their_seed() -> None:
    ours = random_layers.layers(3, 20)
    assert ours == random_layers.layers(3, 20)
    assert ours != random_layers.layers(4, 20)
    assert ours == random_layers.layers(3, 40)[:20]


def test_random_layers_have_the_mix_and_the_sizes_that_are_stated() -> None:
    drawn = random_layers.layers(0, 200)
    for op, share in random_layers.MIX.items():
        assert sum(layer.op == op for layer in drawn) == 10 * share
    for layer in drawn:
        assert 1 <= layer.x[1] <= 2048
        assert min(layer.x[2:]) >= 7
        assert layer.flops <= random_layers.FLOPS
        assert layers.scaled(layer) == layer
    assert {len(layer.kernel) for layer in drawn} == {1, 2}
    assert {"dense Conv", "depthwise Conv", "grouped Conv"} <= {layer.kind for layer in drawn}
