"""The command line: exit codes, one-line errors, streams that break; `info` and `check`."""

from __future__ import annotations

import argparse
import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuconv
from gpuconv.cli import check, check_onnx, compare
from gpuconv.cli.main import _positive, _seed, main
from gpuconv.onnx import backend
from gpuconv.rules import cases
from tests.onnx.models import model, value

Run = Callable[..., str]


def test_no_command_is_an_error(error: Run) -> None:
    assert error() == "the following arguments are required: COMMAND (see gpuconv --help)"


def test_an_unknown_option_is_an_error(error: Run) -> None:
    assert error("check", "--fast") == "check: there is no argument --fast (see gpuconv check --help)"


@pytest.mark.parametrize("words", [[], ["info"], ["check"], ["run"], ["compile"]])
def test_help_explains_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--help"])
    assert capsys.readouterr().out.startswith("usage: gpuconv")


def test_seeds_begin_at_0_and_counts_at_1() -> None:
    assert [_seed(text) for text in ("0", "1", "12")] == [0, 1, 12]
    assert [_positive(text) for text in ("1", "2", "12")] == [1, 2, 12]
    for number, text in ((_seed, "-1"), (_seed, "1.5"), (_positive, "0"), (_positive, "one")):
        with pytest.raises(argparse.ArgumentTypeError, match=f"^'{text}' is not an integer of at least [01]$"):
            number(text)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"gpuconv {gpuconv.__version__}\n"


def test_info_names_versions_devices_and_limits(ok: Run) -> None:
    out = ok("info")
    for name in ("gpuconv", "Python", "NumPy", "CuPy", "onnx", "ml_dtypes", "CPU threads", "CPU workspace", "backends"):
        assert re.search(rf"^{name}: +\S", out, re.MULTILINE), name
    assert gpuconv.__version__ in out
    assert np.__version__ in out


def test_info_follows_the_environment(ok: Run, error: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "3")
    monkeypatch.setenv("GPUCONV_WORKSPACE_BYTES", "1234567")
    out = ok("info")
    assert re.search("CPU threads: +3 ", out)
    assert re.search("CPU workspace: +1234567 bytes", out)
    assert re.search("launches: +follow each other ", out)
    monkeypatch.setenv("GPUCONV_CHAINED_LAUNCHES", "1")
    assert re.search("launches: +may overlap ", ok("info"))
    monkeypatch.setenv("GPUCONV_NUM_THREADS", "many")
    assert "GPUCONV_NUM_THREADS" in error("info")


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError("Unable to allocate 9 TiB"), 2, "not enough memory (Unable to allocate 9 TiB)"),
        (gpuconv.DeviceError("the device\nis gone"), 2, "the device is gone"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "[Errno 28] No space left on device"),
    ],
)
def test_what_stops_a_command_is_one_line(
    error: Run, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, text: str
) -> None:
    def stop(*_: object) -> None:
        raise raised

    monkeypatch.setattr("gpuconv.cli.main._facts", stop)
    assert error("info", code=code) == text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_an_error() -> None:
    command = [sys.executable, "-m", "gpuconv", "info"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch("gpuconv: error: .*No space left on device\n", done.stderr)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_what_a_full_disk_has_not_taken_is_let_go_after_an_error() -> None:
    code = "import sys; from gpuconv.cli.main import _fail; print('begun'); sys.exit(_fail('broken'))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # so that output is buffered
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "gpuconv: error: broken\n")


@pytest.mark.skipif(os.name != "posix", reason="pipes break in another way")
def test_a_closed_pipe_ends_in_silence() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "gpuconv", "info"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.slow
def test_commands_do_without_standard_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["info"]) == 0
    assert main(["check", "--filter", "no such case"]) == 2


# ---------------------------------------------------------------- check


def _row(out: str, group: str) -> list[str]:
    return next(re.split("  +", line) for line in out.splitlines() if line.startswith(group))


def test_check_passes_here(ok: Run) -> None:
    out = ok("check")
    for op in ("conv", "conv_transpose", "max_pool"):
        count = str(sum(len(case.dtypes) for case in cases.CASES if case.op == op))
        assert _row(out, op + " ") == [op, "cpu", count, count, "0", "0", "exact"]
    assert _row(out, "ONNX node tests")[:6] == ["ONNX node tests", "cpu", "36", "36", "0", "0"]
    assert _row(out, "PyTorch models")[:6] == ["PyTorch models", "cpu", "39", "39", "0", "0"]
    assert re.fullmatch(rf"gpuconv {gpuconv.__version__}: all \d+ checks passed", out.splitlines()[-1])
    assert "not checked: cuda: no CUDA device was found (" in out


def test_check_can_be_filtered(ok: Run, error: Run) -> None:
    name = cases.CASES[0].name
    out = ok("check", "--filter", f"{name} float32", "--backend", "cpu")
    assert out.splitlines()[-1].endswith("all 1 checks passed")
    assert "not checked" not in out
    assert error("check", "--filter", "no such") == "check: no check's name contains 'no such'"


def test_check_needs_a_device_for_cuda(error: Run) -> None:
    assert "the cuda backend cannot be checked here" in error("check", "--backend", "cuda")


def test_cuda_is_a_backend_where_a_device_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuconv.cuda.call.device.unavailable_reason", lambda: "no driver")
    assert check.cuda_missing() == "no CUDA device was found (no driver)"
    monkeypatch.setattr("gpuconv.cuda.call.device.unavailable_reason", lambda: None)
    assert check.cuda_missing() is None


def test_check_names_a_wrong_result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    case = next(case for case in cases.CASES if case.op == "conv" and case.values == "integers")
    (right,) = cases.expected(case, "float32")
    wrong = right.copy()
    wrong.flat[-1] += 7
    monkeypatch.setattr(cases, "expected", lambda *_: (wrong,))
    assert main(["check", "--filter", f"{case.name} float32"]) == 1
    out = capsys.readouterr().out
    at = ", ".join(str(size - 1) for size in right.shape)
    element = f"y[{at}] is {right.flat[-1]}, expected {wrong.flat[-1]} (1 of {right.size} elements differ)"
    assert f"FAILED conv: {case.name} float32 (cpu): {element}" in out
    assert out.splitlines()[-1] == f"gpuconv {gpuconv.__version__}: 1 of 1 checks FAILED"


def test_check_exits_1_where_only_some_checks_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = next(case for case in cases.CASES if case.op == "conv" and case.values == "integers")
    rights = {dtype: cases.expected(case, dtype) for dtype in case.dtypes}
    assert len(rights) > 1

    def expected(_: object, dtype: str) -> object:
        return tuple(one + 7 for one in rights[dtype]) if dtype == "float32" else rights[dtype]

    monkeypatch.setattr(cases, "expected", expected)
    assert main(["check", "--backend", "cpu", "--filter", f"{case.name} float"]) == 1
    failed, made = re.search(r"(\d+) of (\d+) checks FAILED", capsys.readouterr().out).groups()  # type: ignore[union-attr]
    assert 0 < int(failed) < int(made)


def test_check_counts_what_raises(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out\nof order")

    monkeypatch.setattr(cases, "expected", broken)
    assert main(["check", "--filter", "max_pool/"]) == 1
    out = capsys.readouterr().out
    assert out.count("raised RuntimeError: out of order") == 20
    assert re.search(r"and \d+ more failures; --filter shows them by name", out)


def test_check_skips_bfloat16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch, ok: Run) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # find_spec then finds none
    out = ok("check", "--filter", "conv_transpose/1d")
    skipped = _row(out, "conv_transpose")[5]
    assert int(skipped) > 0
    assert f"skipped {skipped}: ml_dtypes is not installed, which bfloat16 needs" in out
    assert main(["check", "--filter", " bfloat16 (cpu)"]) == 1  # nothing was checked, which is not a success


def test_check_says_so_without_onnx(monkeypatch: pytest.MonkeyPatch, ok: Run) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "not checked: ONNX's tests: onnx is not installed" in ok("check", "--filter", "conv/1d")


def test_check_says_so_without_the_test_data(monkeypatch: pytest.MonkeyPatch, ok: Run) -> None:
    def none(kind: str) -> None:
        raise ValueError(f"kind must be one of [], not {kind}")

    monkeypatch.setattr("onnx.backend.test.loader.load_model_tests", none)
    assert ok("check", "--filter", "conv/1d").count("the onnx package does not have them") == 3


def test_check_compares_a_second_backend_with_the_cpu(monkeypatch: pytest.MonkeyPatch, ok: Run) -> None:
    prepare = backend.prepare
    monkeypatch.setattr(check, "cuda_missing", lambda: None)
    monkeypatch.setattr(gpuconv, "to_device", lambda a: a)
    monkeypatch.setattr(backend, "prepare", lambda model, device: prepare(model, device="CPU"))
    out = ok("check", "--filter", "2d")
    for side in ("cpu", "cuda"):
        assert re.search(rf"^conv +{side} ", out, re.MULTILINE)
        assert re.search(rf"^PyTorch models +{side} ", out, re.MULTILINE)


@cache
def _onnx_tests() -> dict[str, check_onnx.Model]:
    found, missing = check_onnx.models()
    assert not missing
    return {test.name: test for test in found}


def test_both_outputs_of_max_pool_are_compared() -> None:
    test = _onnx_tests()["maxpool_with_argmax_2d_precomputed_pads"]
    assert check_onnx.compare(test, "cpu") == 0
    for number, output in enumerate(test.outputs):
        wrong = [*test.outputs]
        wrong[number] = output + 1
        with pytest.raises(compare.Mismatch, match=rf"^output {number}\["):
            check_onnx.compare(replace(test, outputs=wrong), "cpu")


def test_a_second_backend_must_be_near_the_cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    test, run = _onnx_tests()["Conv2d_groups"], check_onnx._run
    away = 0.7 * check_onnx._bound(test)  # from the right result, in both directions

    def off(tested: Any, inputs: Any, side: str) -> Any:
        if tested is not test.model:
            return run(tested, inputs, side)
        return ((test.outputs[0] + (away if side == "cpu" else -away)).astype(np.float32),)

    monkeypatch.setattr(check_onnx, "_run", off)
    assert 0.5 < check_onnx.compare(test, "cpu") <= 0.9
    with pytest.raises(compare.Mismatch, match=r"^y \(against the cpu's\)"):
        check_onnx.compare(test, "cuda")


def test_the_bound_of_an_onnx_model_is_by_its_sums_of_magnitudes() -> None:
    """Twice (K + 2) ulps of S plus half the smallest number, for K products whose magnitudes add up to S."""
    ulp, least = 2.0**-24, 2.0**-150
    x, w = np.float32([[[1, -1, 1, 0], [2, -2, 2, 0]]]), np.float32([[[1, -1, 1], [-1, 1, -1]]])
    conv = helper.make_node("Conv", ["x", "w"], ["y"])
    made = model([conv], [value("x")], [value("y")], 22, {"w": w})
    test = check_onnx.Model("group", "conv", made, [x], [np.zeros((1, 1, 2), np.float32)])
    assert check_onnx._terms(test) == 6
    expected = [2 * ((6 + 2) * ulp * total + least) for total in (9, 6)]
    assert check_onnx._bound(test).tolist() == [[expected]]
    # The same for ConvTranspose, with the weights as an input: two groups of two channels, each with three taps.
    x, w = np.float32([[[1], [-1], [2], [0]]]), -np.ones((4, 1, 3), np.float32)
    conv = helper.make_node("ConvTranspose", ["x", "w"], ["y"], group=2)
    made = model([conv], [value("x"), value("w")], [value("y")], 22)
    test = check_onnx.Model("group", "conv_transpose", made, [x, w], [np.zeros((1, 2, 3), np.float32)])
    assert check_onnx._terms(test) == 6
    assert check_onnx._bound(test).tolist() == [[[2 * ((6 + 2) * ulp * 2 + least)] * 3] * 2]


@pytest.mark.parametrize("change", [0.001, np.nan])
def test_an_onnx_model_must_be_within_its_bound(change: float) -> None:
    test = _onnx_tests()["Conv2d_groups"]
    assert 0 < check_onnx.compare(test, "cpu") <= 1
    wrong = test.outputs[0].copy()
    wrong.flat[3] += change
    with pytest.raises(compare.Mismatch, match=r"y\[0, 0, 0, 3\] is .* \(1 of \d+ elements differ\)"):
        check_onnx.compare(replace(test, outputs=[wrong]), "cpu")


@pytest.mark.parametrize(
    ("got", "expected", "text"),
    [
        (np.zeros(2), np.zeros(3), r"y is float64 \(2,\), expected float64 \(3,\)"),
        (np.zeros(2), np.zeros(2, np.float32), r"y is float64 \(2,\), expected float32 \(2,\)"),
        (np.array([0.0, np.nan]), np.array([9.0, 1.0]), r"y\[1\] is nan, expected 1.0 \(2 of 2"),
        (np.array([-0.0]), np.array([0.0]), r"y\[0\] is -0.0, expected 0.0"),
    ],
)
def test_mismatches_are_told_apart(got: Any, expected: Any, text: str) -> None:
    with pytest.raises(compare.Mismatch, match=text):
        compare.exactly("y", got, expected, bits=True)


@pytest.mark.parametrize("wrong", ["y", "indices", "y without indices"])
def test_every_result_of_a_case_is_compared(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in cases.CASES if case.op == "max_pool" and "float32" in case.dtypes)
    max_pool = gpuconv.max_pool

    def broken(*arrays: Any, **attributes: Any) -> Any:
        found = max_pool(*arrays, **attributes)
        if not attributes.get("return_indices"):
            return found + (wrong == "y without indices")
        return found[0] + np.float32(wrong == "y"), found[1] + (wrong == "indices")

    check._compare_case(case, "float32", "cpu")
    monkeypatch.setattr(gpuconv, "max_pool", broken)
    with pytest.raises(compare.Mismatch, match=f"^{wrong}\\["):
        check._compare_case(case, "float32", "cpu")


@pytest.mark.parametrize("op", ["conv", "conv_transpose"])
def test_the_result_of_a_convolution_is_compared(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in cases.CASES if case.op == op and "float32" in case.dtypes)
    operator = getattr(gpuconv, op)
    check._compare_case(case, "float32", "cpu")
    monkeypatch.setattr(gpuconv, op, lambda *arrays, **attributes: operator(*arrays, **attributes) + np.float32(1))
    with pytest.raises(compare.Mismatch, match=r"^y\["):
        check._compare_case(case, "float32", "cpu")


def test_nan_equals_nan_unless_bits_count() -> None:
    compare.exactly("y", np.array([np.nan, 0.0]), np.array([-np.nan, -0.0]))
    with pytest.raises(compare.Mismatch):
        compare.exactly("y", np.array([np.nan]), np.array([-np.nan]), bits=True)
