"""The rows of whole networks in the CPU benchmark."""

from __future__ import annotations

import argparse
import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks import load, machine, models, networks, peers
from benchmarks.architectures import mobile
from benchmarks.networks import DATA, NETWORKS
from gpuconv.onnx import backend

pytestmark = pytest.mark.slow

tiny = partial(mobile.shufflenet_v2, size=32, part=1 / 8)


# The extent of a tiny version's input, if it is not 32.
SIZES = {"conv_tasnet": 256, "wav2vec2_features": 1000, "yolov5n": 128}


def row(name: str, ratio: float, wrong: str = "", kind: str = "built") -> dict[str, Any]:
    return {
        "network": name,
        "kind": kind,
        "ratio": ratio,
        "wrong": wrong,
        "our_peak_bytes": round(5e6 * ratio),
        "ort_peak_bytes": 5_000_000,
    }


def test_the_quantized_network_is_a_class_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row("a", 0.5), row("q", 0.1, kind="quantized"), row("b", 2.0), row("s", 1.0, kind="shipped")]
    classes = models._summary(rows)
    assert classes["built"] == {"networks": 2, "mean": pytest.approx(1.0), "min": 0.5, "slowest": "a"}
    assert classes["all"]["networks"] == 3
    assert classes["shipped"]["mean"] == pytest.approx(1.0)
    assert classes["quantized"]["mean"] == pytest.approx(0.1)
    out = capsys.readouterr().out
    assert out.count("each >= 0.34: met") == 2
    assert "most b 2.00  at most 1.3 times: NOT MET" in out


def test_a_wrong_result_counts_as_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert models._summary([row("a", 5.0), row("b", 5.0, "off by 1")])["built"]["mean"] == 0
    assert "NOT MET" in capsys.readouterr().out


def test_results_are_compared() -> None:
    y, kept = np.linspace(-3, 4, 9, dtype=np.float32), np.arange(6)
    assert models._difference([y, kept], [y + np.float32(1e-5), kept], 1e-4) == ""
    assert models._difference([y, kept], [y + np.float32(0.01), kept], 1e-4).endswith("of the largest output")
    assert models._difference([y, kept], [y, kept + (kept == 2)], 1e-4) == "1 of 6 indices differ"
    assert models._difference([y[1:]], [y], 1e-4) == "shape (8,), not (9,)"
    assert models._difference([y * np.float32("nan")], [y], 1e-4) == "off by nan of the largest output"


def test_every_network_of_the_onnx_package_is_measured_and_no_name_stands_twice() -> None:
    names = [network.name for network in NETWORKS]
    assert len(set(names)) == len(names)
    shipped = {network.name for network in NETWORKS if network.kind == "shipped"}
    assert {f"light_{name}" for name in shipped} == {path.stem for path in (DATA / "light").glob("*.onnx")}


@pytest.mark.parametrize("network", [n for n in NETWORKS if n.kind != "shipped"], ids=lambda network: network.name)
def test_a_tiny_version_of_a_built_network_has_onnx_runtimes_results(network: networks.Network) -> None:
    model = network.build(size=SIZES.get(network.name, 32), part=1 / 8)
    onnx.checker.check_model(model, full_check=True)
    feeds = networks.feeds(model)
    expected = peers.session(model, threads=1, spin=False).run(None, feeds)
    assert all(np.ptp(value) > 0 for value in expected)
    rep = backend.prepare(model)
    assert models._difference(rep.run(feeds), expected, network.close) == ""
    assert not rep.report().left


def test_a_network_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "models.json"
    monkeypatch.setattr(networks, "NETWORKS", [networks.Network("tiny", "built", tiny)])
    arguments = argparse.Namespace(layers="", threads=1, spin=1, seconds=0.01, json=path)
    assert models.run(arguments) == 0
    (found,) = json.loads(path.read_text())["rows"]
    assert found["network"] == "tiny"
    assert found["wrong"] == ""
    assert found["ratio"] == found["ort_median"] / found["our_median"] > 0
    assert found["our_peak_bytes"] > 0
    assert found["ort_peak_bytes"] > 0
    assert "tiny" in capsys.readouterr().out


def test_beside_other_processes_a_network_is_timed_with_every_core_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = subprocess.Popen
    monkeypatch.setattr(load.subprocess, "Popen", lambda *given: started.append(start(*given)) or started[-1])
    row = load._measure(networks.Network("tiny", "built", tiny), 0.0)
    assert len(started) == machine.describe()["cores"]
    assert all(process.poll() is not None for process in started)
    quiet, loaded = row["quiet_seconds"], row["loaded_seconds"]
    assert len(quiet) == len(loaded) == 5
    assert row["times"] == sorted(loaded)[2] / sorted(quiet)[2]
