"""Pytest settings that need code: the marker `gpu`, one thread for each of several test processes, the command line."""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # before NumPy is imported: its BLAS reads this once
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuconv.__main__ import main
from gpuconv.cuda import device


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `gpu` where no device is, with the reason; fail it there with GPUCONV_REQUIRE_GPU=1."""
    if item.get_closest_marker("gpu") is None:
        return
    reason = device.unavailable_reason()
    if reason is None:
        return
    if os.environ.get("GPUCONV_REQUIRE_GPU") == "1":
        pytest.fail(f"GPUCONV_REQUIRE_GPU=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def save_model(tmp_path: Path) -> Callable[[str], str]:
    """Save an opset 22 model, given in onnx's text form without its header; return the path."""
    import onnx

    def save(text: str) -> str:
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]>\n{text}'), path)
        return str(path)

    return save


@pytest.fixture
def pool(save_model: Callable[[str], str]) -> str:
    """Path of a model of two nodes, with an input of unknown batch and two outputs."""
    return save_model("""net (float[N, 1, 4] x) => (float[N, 1, 2] y, float[N, 1, 2] z) {
        y = MaxPool <kernel_shape = [2], strides = [2]> (x)
        z = Relu (y)
    }""")


@pytest.fixture
def ok(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must succeed in silence on stderr; return what it prints."""

    def run(*argv: object) -> str:
        code = main([str(word) for word in argv])
        out, err = capsys.readouterr()
        assert (code, err) == (0, ""), out
        return out

    return run


@pytest.fixture
def error(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail with one line on stderr; return that line."""

    def run(*argv: object, code: int = 2) -> str:
        assert main([str(word) for word in argv]) == code
        err = capsys.readouterr().err
        assert re.fullmatch("gpuconv: error: .+\n", err)
        return err.removeprefix("gpuconv: error: ").strip()

    return run
