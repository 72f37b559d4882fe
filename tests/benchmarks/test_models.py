"""The rows of whole networks in the CPU benchmark."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import load, machine, models
from benchmarks.networks import DATA


def row(name: str, ratio: float, wrong: str = "") -> dict[str, Any]:
    return {"network": name, "ratio": ratio, "wrong": wrong}


def test_shufflenet_is_a_class_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    classes = models._summary([row("a", 0.5), row("shufflenet", 0.1), row("b", 2.0)])
    assert classes["networks"] == {"networks": 2, "mean": pytest.approx(1.0), "min": 0.5, "slowest": "a"}
    assert classes["shufflenet"]["mean"] == pytest.approx(0.1)
    assert "mean >= 0.6: met" in capsys.readouterr().out


def test_a_wrong_result_counts_as_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert models._summary([row("a", 5.0), row("b", 5.0, "off by 1")])["networks"]["mean"] == 0
    assert "NOT MET" in capsys.readouterr().out


def test_results_are_compared() -> None:
    y = np.linspace(-3, 4, 9, dtype=np.float32)
    assert models._difference(y, y + np.float32(1e-5)) == ""
    assert models._difference(y + np.float32(0.01), y) == "off by 0.0025 of the largest output"
    assert models._difference(y[1:], y) == "shape (8,), not (9,)"


def test_a_network_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models.json"
    arguments = argparse.Namespace(layers="squeeze", threads=1, spin=1, seconds=0.01, json=path)
    assert models.run(arguments) == 0
    (found,) = json.loads(path.read_text())["rows"]
    assert found["network"] == "squeezenet"
    assert found["wrong"] == ""
    assert found["ratio"] == found["ort_median"] / found["our_median"] > 0
    assert "squeezenet" in capsys.readouterr().out


def test_beside_other_processes_a_network_is_timed_with_every_core_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = subprocess.Popen
    monkeypatch.setattr(load.subprocess, "Popen", lambda *given: started.append(start(*given)) or started[-1])
    row = load._measure("squeezenet", DATA / "light" / "light_squeezenet.onnx", 0.0)
    assert len(started) == machine.describe()["cores"]
    assert all(process.poll() is not None for process in started)
    quiet, loaded = row["quiet_seconds"], row["loaded_seconds"]
    assert len(quiet) == len(loaded) == 5
    assert row["times"] == sorted(loaded)[2] / sorted(quiet)[2]
