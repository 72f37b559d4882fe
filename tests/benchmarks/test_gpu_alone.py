"""Layers checked and timed without PyTorch, on a real or emulated device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_alone, gpu_layer
from benchmarks.gpu_layer import Case
from benchmarks.layers import Layer
from benchmarks.progress import Rows

pytestmark = pytest.mark.gpu
SQUARE: Any = ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), ("fp32",))
CONV = Layer("conv", "", "Conv", (2, 8, 7, 9), *SQUARE, k_out=8)
TRANSPOSED = replace(CONV, op="ConvTranspose", output_padding=(0, 1))
POOL = Layer("pool", "", "MaxPool", (1, 3, 6, 8), (2, 2), (2, 2), (0, 0, 0, 0), (1, 1), ("fp32",), indices=True)
CASES = {
    "conv": Case(CONV, "bfloat16", "channels_last"),
    "complex": Case(replace(CONV, dtypes=("c64",)), "complex64"),
    "fused": Case(replace(CONV, call="fused"), "float16"),
    "transposed": Case(TRANSPOSED, "float32", precision="tf32"),
    "input gradient": Case(replace(CONV, call="input_grad"), "float32", "channels_last"),
    "weight gradient": Case(replace(CONV, call="weight_grad"), "bfloat16", "channels_last"),
    "bias gradient": Case(replace(CONV, call="bias_grad"), "float32"),
    "pool": Case(POOL, "float16", "channels_last"),
    "pool of integers": Case(replace(POOL, indices=False), "int8"),
    "pool's gradient": Case(replace(POOL, call="grad"), "float32", "channels_last"),
    "unpool": Case(replace(POOL, call="unpool"), "float32"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_checked_and_timed(name: str, tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows.jsonl", "layers")
    assert gpu_alone.run({name: CASES[name], **CASES}, rows, None, 0.0) == 0
    assert list(rows.ended) == [name]  # then the budget was used up
    found = rows.ended[name]["found"]
    assert (found["wrong"], found["peer_error"]) == ("", "PyTorch is not here")
    assert found["our_median"] > 0


@pytest.mark.parametrize("name", ["conv", "weight gradient", "pool"])
def test_a_wrong_result_fails(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, kept = gpu_layer.ours, []

    def wrong(case: Case) -> Any:
        call = ours(case)

        def run(*arrays: Any) -> list[Any]:
            kept.append(call(*arrays))  # whose memory the graph writes
            return [result + result.dtype.type(1) for result in kept[-1]]

        return run

    monkeypatch.setattr(gpu_layer, "ours", wrong)
    rows = Rows(tmp_path / "rows.jsonl", "layers")
    assert gpu_alone.run({name: CASES[name]}, rows, None, 1e9) == 1
    assert " off by " in rows.ended[name]["detail"] or " are wrong" in rows.ended[name]["detail"]
