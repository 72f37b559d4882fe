"""Assertions for other implementations' tests: which results pass, and the messages of failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuconv
from gpuconv.testing import assert_conv_close, assert_conv_transpose_close

X = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)
W = np.array([[[1, 2]]], np.float32)
B = np.array([7], np.float32)


def test_right_results_pass() -> None:
    assert_conv_close(np.array([[[12, 15, 18, 21]]], np.float32), X, W, B)
    assert_conv_transpose_close(np.array([[[8, 11, 14, 17, 20, 17]]], np.float32), X, W, B)
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 4, 6, 5)).astype(np.float16), rng.standard_normal((6, 2, 3, 2)).astype(np.float16)
    attributes = {"group": 2, "strides": [2, 1], "dilations": [1, 2], "auto_pad": "SAME_LOWER"}
    assert_conv_close(gpuconv.conv(x, w, **attributes), x, w, **attributes)


def test_a_wrong_element_is_named_with_its_distance() -> None:
    with pytest.raises(
        AssertionError,
        match=r"^Conv: output 0\[0, 0, 2\] is 18.5, expected 18.0 within 4.29e-06 \(1 of 4 elements differ",
    ):
        assert_conv_close(np.array([[[12, 15, 18.5, 21]]], np.float32), X, W, B)
    with pytest.raises(AssertionError, match=r"^Conv: output 0 is float64, expected float32$"):
        assert_conv_close(np.array([[[12, 15, 18, 21.0]]]), X, W, B)
    with pytest.raises(AssertionError, match=r"^Conv: output 0 has the shape \(1, 1, 3\), expected \(1, 1, 4\)$"):
        assert_conv_close(np.zeros((1, 1, 3), np.float32), X, W, B)


def test_the_rule_that_explains_a_wrong_result_is_named() -> None:
    with pytest.raises(AssertionError, match=r"the result equals no bias$"):
        assert_conv_close(np.array([[[5, 8, 11, 14]]], np.float32), X, W, B)
    with pytest.raises(AssertionError, match=r"the result equals the kernel turned round$"):
        assert_conv_close(np.array([[[4, 7, 10, 13]]], np.float32), X, W)
    with pytest.raises(AssertionError, match=r"the result equals SAME_UPPER and SAME_LOWER exchanged$"):
        assert_conv_close(np.array([[[5, 8, 11, 14, 5]]], np.float32), X, W, auto_pad="SAME_LOWER")
    with pytest.raises(AssertionError, match=r"^ConvTranspose: .* the result equals strides ignored$"):
        assert_conv_transpose_close(np.array([[[1, 4, 7, 10, 13, 10]]], np.float32), X, W, strides=[2])


def test_what_is_no_valid_call_is_an_error() -> None:
    """A single number applies to all axes, as in gpuconv.conv."""
    assert_conv_close(gpuconv.conv(X, W, strides=2, pads=1), X, W, strides=2, pads=1)
    y = gpuconv.conv(X, W)
    with pytest.raises(gpuconv.ArgumentError, match=r"^assert_conv_close: kernel_shape"):
        assert_conv_close(y, X, W, kernel_shape=[3])
    with pytest.raises(gpuconv.ArgumentError, match=r"^assert_conv_close: .*group"):
        assert_conv_close(y, X, W, group=2)
    with pytest.raises(gpuconv.ArgumentError, match=r"^assert_conv_transpose_close: layout is no attribute of ONNX"):
        assert_conv_transpose_close(y, X, W, layout="NHWC")
    with pytest.raises(gpuconv.ArgumentTypeError, match=r"all the same \(x is float32, w is int64\)$"):
        assert_conv_close(y, X, W.astype(np.int64))


ROOT = Path(__file__).resolve().parents[2]


def _pytest(folder: Path, text: str) -> str:
    """Run pytest on a file of tests, with the plugin that gpuconv installs."""
    (folder / "test_made_up.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-p", "gpuconv_pytest", "-p", "no:cacheprovider", "test_made_up.py"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(words, cwd=folder, env=settings, capture_output=True, text=True, check=False).stdout


def test_fixtures_of_pytest(tmp_path: Path) -> None:
    text = (
        "import numpy as np\n"
        "ONES = np.ones((1, 1, 3), np.float32)\n"
        "def test_right(assert_conv_close, assert_conv_transpose_close):\n"
        "    assert_conv_close(np.array([[[3]]], np.float32), ONES, ONES)\n"
        "    assert_conv_transpose_close(np.array([[[1, 2, 3, 2, 1]]], np.float32), ONES, ONES)\n"
        "def test_wrong(assert_conv_close):\n"
        "    assert_conv_close(np.array([[[4]]], np.float32), ONES, ONES)\n"
    )
    told = _pytest(tmp_path, text)
    assert "1 failed, 1 passed" in told
    assert "AssertionError: Conv: output 0[0, 0, 0] is 4.0, expected 3.0 within" in told
    assert "test_made_up.py:7: AssertionError" in told
    assert "assertions.py" not in told


def test_tests_that_ask_for_no_fixture_import_nothing(tmp_path: Path) -> None:
    told = _pytest(tmp_path, "import sys\ndef test_it(): assert not {'gpuconv', 'numpy'} & set(sys.modules)\n")
    assert "1 passed" in told


def test_an_installed_gpuconv_brings_the_plugin_along() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\ngpuconv = "gpuconv_pytest"\n' in text
    assert '"gpuconv_pytest.py" = "gpuconv_pytest.py"' in text
