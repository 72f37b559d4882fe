"""`gpuconv explain` and `gpuconv tune`; JSON for other programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv.cli import calls, terminal
from gpuconv.cli.main import main
from gpuconv.cuda.call import device

pytestmark = pytest.mark.slow

Run = Callable[..., str]
RESIDUAL = ["--bias", "--residual", "--activation", "relu"]


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["conv", "2,8,9,9", "4,8,3,3", "--pads", "1,0,1,2", "--strides", "2,1", "--arch", "sm_80"],
            (["conv", (2, 8, 9, 9), (4, 8, 3, 3)], {"pads": [1, 0, 1, 2], "strides": [2, 1], "arch": "sm_80"})),
        (
            ["conv", "2,9,9,8", "4,8,3,3", "--layout", "NHWC", "--dtype", "float16", *RESIDUAL],
            (
                ["conv", (2, 9, 9, 8), (4, 8, 3, 3)],
                {"layout": "NHWC", "dtype": "float16", "bias": True, "residual": True, "activation": "relu"},
            ),
        ),
        (["max_pool", "1,2,9,9", "--kernel-shape", "3,3", "--return-indices", "--ceil-mode", "1"],
            (["max_pool", (1, 2, 9, 9)], {"kernel_shape": [3, 3], "return_indices": True, "ceil_mode": 1})),
        (["max_pool_grad", "1,2,9,9", "--kernel-shape", "3", "--indices-in", "plane"],
            (["max_pool_grad", (1, 2, 9, 9)], {"kernel_shape": 3, "indices_in": "plane"})),
        (["conv_weight_grad", "2,8,9,9", "4,8,3,3", "--auto-pad", "SAME_UPPER", "--precision", "tf32"],
            (["conv_weight_grad", (2, 8, 9, 9), (4, 8, 3, 3)], {"auto_pad": "SAME_UPPER", "precision": "tf32"})),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)  # fmt: skip
def test_explain_prints_what_the_function_prints(
    words: list[str], call: Any, ok: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ok("explain", *words)
    plan = gpuconv.explain(*call[0], **call[1])
    assert found == capsys.readouterr().out
    facts = json.loads(ok("explain", *words, "--json"))
    assert facts["text"] == found.splitlines()
    assert [launch["kernel"] for launch in facts["launches"]] == [launch.variant.name for launch in plan.launches]
    assert [tuple(launch["grid"]) for launch in facts["launches"]] == [launch.grid for launch in plan.launches]
    assert sum(space["bytes"] for space in facts["workspaces"]) == plan.bytes_of("packed") + plan.bytes_of("workspace")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["conv", "1,a"], "argument X: '1,a' is not a shape such as 8,64,56,56 (see gpuconv explain --help)"),
        (["conv", "1,2,3", "1,2,2", "--pads", "x"], "argument --pads: 'x' is not an integer, or integers such as 1,1"),
        (["conv", "1,2,3"], "conv: w_shape is required, as (16, 3, 3, 3)"),
        (["max_pool", "1,2,3", "--kernel-shape", "2,2"], "kernel_shape"),
        (
            ["max_pool", "1,2,3", "--kernel-shape", "2,", "--group", "2"],
            "argument --kernel-shape: '2,' is not an integer",
        ),
        (["max_pool", "1,2,3", "--group", "2"], "max_pool has no attribute 'group'"),
        (["conv", "1,2,3", "1,2,2", "--dtype", "float8"], "dtype must be one of float16, bfloat16, float32, float64"),
        (["conv", "1,2,3", "1,2,2", "--arch", "sm_10"], "sm_10"),
    ],
)
def test_what_is_wrong_with_a_call_is_one_line(words: list[str], message: str, error: Run) -> None:
    assert message in error("explain", *words)


ZEROS = {
    "strides": (["conv", "1,3,8,8", "4,3,3,3", "--strides", "0"], "every entry of strides must be at least 1"),
    "dilations": (["conv", "1,3,8,8", "4,3,3,3", "--dilations", "0"], "every entry of dilations must be at least 1"),
    "group": (["conv", "1,3,8,8", "4,3,3,3", "--group", "0"], "group must be at least 1, not 0"),
    "kernel": (["max_pool", "1,3,8,8", "--kernel-shape", "0"], "every entry of kernel_shape must be at least 1"),
}


@pytest.mark.parametrize("command", ["explain", "tune"])
@pytest.mark.parametrize(("words", "message"), ZEROS.values(), ids=ZEROS)
def test_a_zero_is_refused_as_from_python(
    command: str, words: list[str], message: str, error: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "unavailable_reason", lambda: None)
    assert message in error(command, *words)


def test_a_zero_that_is_a_number_of_pads_is_taken(ok: Run) -> None:
    assert "y (1, 4, 6, 6)" in ok("explain", "conv", "1,3,8,8", "4,3,3,3", "--pads", "0")


@pytest.mark.parametrize("text", ["٣", "1_0", " 1", "1 ", "1.0", "0x1", "", "３", "²"])
def test_numbers_have_ascii_digits(text: str, error: Run) -> None:
    assert "is not an integer" in error("explain", "conv", "1,3,8,8", "4,3,3,3", f"--group={text}")
    assert "is not a shape" in error("explain", "conv", f"1,{text},8,8", "4,3,3,3")
    assert "is not an integer of at least 1" in error("compile", f"--jobs={text}")


def test_tune_needs_a_device(error: Run) -> None:
    found = error("tune", "conv", "1,2,8,8", "4,2,3,3")
    assert found.startswith("tune: kernels are measured on a CUDA device, and none was found (")


@pytest.mark.parametrize(
    ("words", "shapes", "keywords"),
    [
        (["conv", "1,2,8,8", "4,2,3,3", "--bias", "--pads", "1,1,1,1"],
            {"x": (1, 2, 8, 8), "w": (4, 2, 3, 3), "b": (4,)}, {"pads": [1, 1, 1, 1], "layout": "NCHW"}),
        (["conv_input_grad", "1,2,8,8", "4,2,3,3", "--dtype", "float16"], {"dy": (1, 4, 6, 6), "w": (4, 2, 3, 3)},
            {"x_shape": (1, 2, 8, 8), "layout": "NCHW"}),
        (["max_pool_grad", "1,2,8,8", "--kernel-shape", "2,2"], {"dy": (1, 2, 7, 7), "indices": (1, 2, 7, 7)},
            {"kernel_shape": [2, 2], "x_shape": (1, 2, 8, 8), "layout": "NCHW"}),
    ],
)  # fmt: skip
def test_tune_makes_the_call(
    words: list[str], shapes: Any, keywords: Any, ok: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(operator: str, **given: Any) -> dict[str, float]:
        arrays = {name: given.pop(name) for name in shapes}
        assert {name: array.shape for name, array in arrays.items()} == shapes
        dtypes = {array.dtype for name, array in arrays.items() if name != "indices"}
        assert dtypes == {np.dtype(words[words.index("--dtype") + 1] if "--dtype" in words else "float32")}
        assert (operator, given) == (words[0], keywords)
        return {"quick": 12.34e-6, "too large": float("inf")}

    monkeypatch.setattr(device, "unavailable_reason", lambda: None)
    monkeypatch.setattr(gpuconv, "to_device", lambda array: array)
    monkeypatch.setattr(gpuconv, "tune", tune)
    assert ok("tune", *words).splitlines() == ["kernel       us", "quick      12.3", "too large   inf"]
    assert json.loads(ok("tune", *words, "--json")) == {"quick": 12.34e-6, "too large": None}


def test_shapes_and_numbers_are_read() -> None:
    assert calls.extents("8,64,56,56") == (8, 64, 56, 56)
    assert calls.numbers("1,2") == [1, 2]
    assert calls.numbers("3") == 3


# ---------------------------------------------------------------- JSON


def test_json_has_no_words_that_json_lacks() -> None:
    found = json.loads(terminal.as_json({"a": [float("nan"), float("-inf"), 1.5], "b": (1, "x", None, True)}))
    assert found == {"a": [None, None, 1.5], "b": [1, "x", None, True]}


def test_info_is_the_same_in_json(ok: Run) -> None:
    facts = json.loads(ok("info", "--json"))
    assert facts["gpuconv"] == gpuconv.__version__
    assert [line.partition(":")[0] for line in ok("info").splitlines()] == list(facts)


def test_check_in_json_has_every_failure(ok: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = json.loads(ok("check", "--filter", "ties float32 (cpu)", "--json"))
    assert facts["failures"] == []
    assert facts["groups"][0] | {"worst": 0.0} == facts["groups"][0]
    assert facts["groups"][0]["passed"] > 0
    monkeypatch.setattr(gpuconv, "max_pool", lambda *_, **__: 1 / 0)
    assert main(["check", "--filter", "ties float32 (cpu)", "--json"]) == 1


def test_run_in_json_has_inputs_outputs_and_nodes(ok: Run, pool: str) -> None:
    facts = json.loads(ok("run", pool, "--json", "--profile", "--shape", "x=2,1,4"))
    assert facts["inputs"] == {"x": {"dtype": "float32", "shape": [2, 1, 4]}}
    assert facts["outputs"]["y"]["shape"][:2] == [2, 1]
    assert set(facts["outputs"]["y"]) == {"dtype", "shape", "min", "mean", "max"}
    assert [node["operator"] for node in facts["profile"]] == ["MaxPool", "Relu"]
    assert facts["nodes"] == 2
    assert facts["seconds"] >= sum(node["seconds"] for node in facts["profile"]) > 0


# ---------------------------------------------------------------- shapes of a model's inputs


def test_shapes_of_random_inputs_can_be_given(ok: Run, error: Run, save_model: Run, tmp_path: Any) -> None:
    model = save_model("net (float[N, M] a, float[N, 2] b) => (float[N, K] y) { y = Concat <axis = 1> (a, b) }")
    out = ok("run", model, "--shape", "a=3,4")
    assert "input a: float32 (3, 4), random (seed 0)\n" in out
    assert "input b: float32 (3, 2), random (seed 0)\n" in out  # N is the same everywhere
    assert error("run", model, "--shape", "c=3,4").startswith("--shape c: the model has no such input; it has 'a'")
    assert error("run", model, "--shape", "a=3") == "--shape a=3: the model declares 'a' (float32 (N, M))"
    assert error("run", model, "--shape", "b=3,4") == "--shape b=3,4: the model declares 'b' (float32 (N, 2))"
    assert error("run", model, "--shape", "a=3,x") == "--shape a=3,x: must be NAME=EXTENTS, such as x=1,3,320,320"
    assert error("run", model, "--shape", "a=3,4", "--shape", "a=3,4") == "--shape a: given twice"
    np.save(tmp_path / "a.npy", np.zeros((3, 4), np.float32))
    given = ("run", model, "--shape", "a=3,4", "--input", f"a={tmp_path / 'a.npy'}")
    assert error(*given) == "--shape a=3,4: --input gives its values, and so its shape"


def test_an_extent_that_was_made_up_is_named_where_the_model_fails(ok: Run, error: Run, save_model: Run) -> None:
    model = save_model("net (float[N, 3, H, W] x) => (float[N, 3, P, Q] y) { y = MaxPool <kernel_shape = [5, 5]> (x) }")
    hint = "; extents that the model does not declare were taken as 1: pass --shape x=…"
    assert error("run", model).endswith(hint)
    ok("run", model, "--shape", "x=1,3,8,8")


# ---------------------------------------------------------------- words that people write


def test_devices_are_named_in_either_case(ok: Run, error: Run, pool: str) -> None:
    assert " on cpu\n" in ok("run", pool, "--device", "CPU")
    found = error("run", pool, "--device", "CUDA")
    assert found.startswith("run: no CUDA device was found (")
    assert found.endswith("; leave out --device cuda to run on the CPU")
    from gpuconv.onnx import backend

    assert backend.supports_device("cpu")
    with pytest.raises(gpuconv.DeviceError):
        backend.prepare(pool, device="cuda")
    with pytest.raises(gpuconv.ArgumentError, match="device must be one of CPU, CUDA, CUDA:0, not 'tpu'"):
        backend.prepare(pool, device="tpu")


@pytest.mark.parametrize("text", ["x", "-1", "1.5"])
def test_numbers_are_refused_in_plain_words(text: str, error: Run, pool: str) -> None:
    found = error("run", pool, f"--seed={text}")
    assert found == f"argument --seed: {text!r} is not an integer of at least 0 (see gpuconv run --help)"
