"""`gpuconv run`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gpuconv.cli.main import main

Run = Callable[..., str]


def test_run_describes_inputs_and_outputs(ok: Run, pool: str) -> None:
    out = ok("run", pool)
    assert "input x: float32 (1, 1, 4), random (seed 0); of unknown extent, so 1: N" in out
    assert re.search(r"^y +float32 +\(1, 1, 2\) +\S+ +\S+ +\S+$", out, re.MULTILINE)
    assert re.search(r"^ran 2 nodes in [\d.]+ ms$", out, re.MULTILINE)


def test_run_is_seeded(ok: Run, pool: str, tmp_path: Path) -> None:
    def statistics(*options: object) -> str:
        return "\n".join(line for line in ok("run", pool, *options).splitlines() if line[:2] in ("y ", "z "))

    assert statistics("--seed", 5) == statistics("--seed", 5)
    assert statistics("--seed", 5) != statistics("--seed", 6)
    assert statistics("--seed", 0) == statistics()


def test_run_takes_given_inputs(ok: Run, pool: str, tmp_path: Path) -> None:
    x = np.array([[[1, 2, -4, -3]], [[0, 0, 5, 7]]], np.float32)
    np.save(tmp_path / "x.npy", x)
    out = ok("run", pool, "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out")
    assert re.search(r"^y +float32 +\(2, 1, 2\) +-3 +1.5 +7$", out, re.MULTILINE)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), [[[2, -3]], [[0, 7]]])
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "z.npy"), [[[2, 0]], [[0, 7]]])
    assert sorted(os.listdir(tmp_path / "out")) == ["y.npy", "z.npy"]


def test_run_takes_the_other_byte_order(ok: Run, pool: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(4, dtype=">f4").reshape(1, 1, 4))
    assert re.search(r"^y +float32 +\(1, 1, 2\) +1 +2 +3$", ok("run", pool, "--input", f"x={tmp_path}/x.npy"), re.M)


def test_an_input_with_an_initial_value_can_be_given_and_need_not_be(ok: Run, save_model: Run, tmp_path: Path) -> None:
    model = save_model("net (float[2] x, float[2] b = {1, 2}) => (float[2] y) { y = Sub (b, x) }")
    for name in "xb":
        np.save(tmp_path / f"{name}.npy", np.array([10, 20], np.float32))
    given = ["--input", f"x={tmp_path}/x.npy"]
    assert re.search(r"^y +float32 +\(2,\) +-18 +-13.5 +-9$", ok("run", model, *given), re.MULTILINE)
    given += ["--input", f"b={tmp_path}/b.npy"]
    assert re.search(r"^y +float32 +\(2,\) +0 +0 +0$", ok("run", model, *given), re.MULTILINE)


def test_names_of_extents_hold_for_random_inputs_too(ok: Run, tmp_path: Path, save_model: Run) -> None:
    model = save_model("net (float[N, 2] a, float[N, M] b) => (float[N, K] y) { y = Concat <axis = 1> (a, b) }")
    np.save(tmp_path / "a.npy", np.zeros((3, 2), np.float32))
    out = ok("run", model, "--input", f"a={tmp_path}/a.npy")
    assert "input b: float32 (3, 1), random (seed 0); of unknown extent, so 1: M" in out


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "double", "uint8", "int64", "bool", "int4"])
def test_random_inputs_of_every_type(ok: Run, save_model: Run, kind: str) -> None:
    model = save_model(f"net ({kind}[2, 3] x) => ({kind}[2, 3] y) {{ y = Identity (x) }}")
    name = {"double": "float64"}.get(kind, kind)
    warned = ["Identity node with output 'y': Identity is left to onnx's"] if kind == "int4" else []
    assert re.search(rf"^y +{name} +\(2, 3\) +\S+ +\S+ +\S+$", ok("run", model, warned=warned), re.MULTILINE)


def test_bfloat16_goes_through_files(ok: Run, tmp_path: Path, save_model: Run) -> None:
    model = save_model("net (bfloat16[3] x) => (bfloat16[3] y) { y = Identity (x) }")
    ok("run", model, "--output-dir", tmp_path)
    first = (tmp_path / "y.npy").read_bytes()
    ok("run", model, "--input", f"x={tmp_path / 'y.npy'}", "--output-dir", tmp_path / "again")
    assert (tmp_path / "again" / "y.npy").read_bytes() == first


def test_outputs_without_numbers_have_no_statistics(ok: Run, save_model: Run) -> None:
    text = "net (float[0, 2] x) => (float[0, 2] y, seq(float[0, 2]) z) { y = Relu (x)\n z = SequenceConstruct (x) }"
    out = ok("run", save_model(text), warned=["SequenceConstruct node "])
    assert re.search(r"^y +float32 +\(0, 2\) +- +- +-$", out, re.MULTILINE)
    assert re.search(r"^z +list +- +- +- +-$", out, re.MULTILINE)


def test_profile_has_a_row_per_node_and_sums_per_operator(ok: Run, pool: str) -> None:
    out = ok("run", pool, "--profile")
    nodes, types = out.split("\n\n")[1:]
    assert re.search(r"^MaxPool +y +\(1, 1, 2\) +[\d.]+ +[\d.]+%$", nodes, re.MULTILINE)
    assert re.search(r"^Relu +z +\(1, 1, 2\) +[\d.]+ +[\d.]+%$", nodes, re.MULTILINE)
    assert re.search(r"^MaxPool +1 +[\d.]+ +[\d.]+%$", types, re.MULTILINE)
    assert re.search(r"^all +2 +[\d.]+ +100.0%$", types, re.MULTILINE)


def test_profile_marks_what_onnx_s_evaluator_computes(ok: Run, save_model: Run) -> None:
    model = save_model("net (float[2, 2] x) => (float[2, 2] z) { y = Sinh (x)\n z = Relu (y) }")
    warned = ["Sinh node with output 'y': Sinh is left to onnx's reference evaluator, which is made to be right,"]
    parts = ok("run", model, "--profile", warned=warned).split("\n\n")[1:]
    for table in parts[:2]:
        assert re.findall(r"^(\w+ \*) ", table, re.MULTILINE) == ["Sinh *"]
    assert parts[2] == "* computed by onnx's reference evaluator\n"
    profile = json.loads(ok("run", model, "--profile", "--json", warned=warned))["profile"]
    assert [(row["operator"], row["evaluator"]) for row in profile] == [("Sinh", True), ("Relu", False)]


def test_profile_has_the_shapes_of_the_run(ok: Run, pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("onnx.shape_inference.infer_shapes", broken)
    assert re.search(r"^MaxPool +y +\(1, 1, 2\) ", ok("run", pool, "--profile"), re.MULTILINE)


def test_networks_of_the_onnx_package_have_a_short_name(ok: Run, error: Run) -> None:
    out = ok("run", "onnx:light_squeezenet", "--profile")
    assert re.search(r"^softmaxout_1 +float32 +\(1, 1000, 1, 1\)", out, re.MULTILINE)
    assert "(1, 96, 54, 54)" in out or "(1, 64, 111, 111)" in out
    assert "light_resnet50" in error("run", "onnx:no_such")


class _Terminal:
    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_a_terminal_gets_a_progress_line_that_goes_away(pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["run", pool]) == 0
    assert re.fullmatch(r"(\r\x1b\[K1/2 MaxPool)(.|\r)*\r\x1b\[K", terminal.text)
    terminal.text = ""
    assert main(["check", "--filter", "conv/1d"]) == 0
    assert terminal.text.startswith("\r\x1b[Kreading the cases")
    assert terminal.text.endswith("\r\x1b[K")


def test_control_characters_of_a_model_do_not_reach_the_terminal(tmp_path: Path, ok: Run) -> None:
    name = "evil\x1b[2J\nname"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", name))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], [name])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10), tmp_path / "m.onnx")
    out = ok("run", tmp_path / "m.onnx", "--profile", "--output-dir", tmp_path / "out")
    assert r"evil\x1b[2J name" in out
    assert "\x1b" not in out
    assert os.listdir(tmp_path / "out") == ["evil_2J_name.npy"]


def test_names_that_the_terminal_s_encoding_has_not_are_escaped(save_model: Run) -> None:
    path = save_model("net (float[2] x) => (float[2] y) { y = Neg (x) }")
    proto = onnx.load(path)
    proto.graph.node[0].output[0] = proto.graph.output[0].name = "\u00e9\u4e2d"
    onnx.save(proto, path)
    command = [sys.executable, "-m", "gpuconv", "run", path]
    ran = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert re.search(rb"^\\xe9\\u4e2d +float32", ran.stdout, re.MULTILINE)


# ---------------------------------------------------------------- what it refuses


def test_run_without_onnx_says_what_to_install(error: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert error("run", "m.onnx") == "run: onnx is not installed; pip install 'gpuconv[onnx]'"


def test_run_refuses_files_that_are_no_model(error: Run, pool: str, tmp_path: Path) -> None:
    assert "nowhere.onnx" in error("run", tmp_path / "nowhere.onnx")
    assert str(tmp_path) in error("run", tmp_path)
    whole = Path(pool).read_bytes()
    for name, data in {"empty": b"", "text": b"hello world\n", "half": whole[: len(whole) // 2]}.items():
        (tmp_path / f"{name}.onnx").write_bytes(data)
        assert f"{name}.onnx" in error("run", tmp_path / f"{name}.onnx")


def test_run_refuses_a_missing_device(error: Run, pool: str) -> None:
    assert "no CUDA device was found" in error("run", pool, "--device", "cuda")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("x", "--input x: must be NAME=FILE.npy"),
        ("=x.npy", "--input =x.npy: must be NAME=FILE.npy"),
        ("X=x.npy", "--input X: the model has no such input; it has 'x' (float32 ('N', 1, 4))"),
        ("x=nowhere.npy", "--input x=nowhere.npy: No such file or directory"),
        ("x=.", "--input x=.: Is a directory"),
        ("x=text.npy", "--input x=text.npy: not a .npy file"),
        ("x=empty.npy", "--input x=empty.npy: not a .npy file"),
        ("x=archive.npz", "--input x=archive.npz: not a .npy file"),
        ("x=pickled.npy", "Object arrays cannot be loaded"),
        ("x=short.npy", "--input x=short.npy: "),
        ("x=double.npy", "float64"),
        ("x=wide.npy", "(1, 1, 5)"),
        ("x=flat.npy", "(4,)"),
    ],
)
def test_run_refuses_inputs(
    error: Run, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.zeros((1, 1, 4), np.float32)
    np.save("x.npy", x)
    np.save("double.npy", x.astype(np.float64))
    np.save("wide.npy", np.zeros((1, 1, 5), np.float32))
    np.save("flat.npy", x.reshape(-1))
    np.save("pickled.npy", np.array([{}, 1], object), allow_pickle=True)
    np.savez("archive.npz", x=x)
    Path("short.npy").write_bytes(Path("x.npy").read_bytes()[:-3])
    Path("text.npy").write_text("1 2 3 4")
    Path("empty.npy").touch()
    assert text.replace("('N', 1, 4)", "(N, 1, 4)") in error("run", pool, "--input", given, "--output-dir", "out")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': ((,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (None), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
        "{'descr': (), 'fortran_order': False, 'shape': (2,), }",
        "{" * 1000,
        "[" * 9000,
    ],
)
def test_run_refuses_files_with_damaged_headers(error: Run, pool: str, tmp_path: Path, header: str) -> None:
    length = (len(header) + 1).to_bytes(2, "little")
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + length + header.encode() + b"\n" + bytes(8))
    assert error("run", pool, "--input", f"x={tmp_path}/x.npy").startswith(f"--input x={tmp_path}/x.npy: ")


def test_run_refuses_extents_that_no_array_has(error: Run, save_model: Run, tmp_path: Path) -> None:
    extent = 2**62
    model = save_model(f"net (float[{extent}, {extent}] x) => (float[N, M] y) {{ y = Neg (x) }}")
    assert error("run", model).startswith("no random values can be made for the input 'x' (float32 (")


def test_a_model_with_many_inputs_lists_the_first(error: Run, save_model: Run) -> None:
    inputs = ", ".join(f"float[1] x{n}" for n in range(500))
    text = error("run", save_model(f"net ({inputs}) => (float[1] y) {{ y = Neg (x0) }}"), "--input", "z=z.npy")
    assert text.startswith("--input z: the model has no such input; it has 'x0' (float32 (1,)), 'x1' (float32 (1,)), ")
    assert text.endswith("'x7' (float32 (1,)) and 492 more")


def test_run_refuses_an_input_given_twice(error: Run, pool: str) -> None:
    assert error("run", pool, "--input", "x=a.npy", "--input", "x=b.npy") == "--input x: given twice"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("string[2]", "no random values can be made for the input 'x' (object (2,)); pass --input x=FILE.npy"),
        ("seq(float[2])", "the input 'x' is not a tensor; run the model from Python (gpuconv.onnx.prepare)"),
    ],
)
def test_run_cannot_make_up_every_input(error: Run, save_model: Run, kind: str, text: str) -> None:
    model = save_model(f"net ({kind} x) => ({kind} y) {{ y = Identity (x) }}")
    assert error("run", model) == text


def test_strings_can_be_given(ok: Run, save_model: Run, tmp_path: Path) -> None:
    model = save_model("net (string[2] x) => (string[2] y) { y = Identity (x) }")
    np.save(tmp_path / "x.npy", np.array(["a", "bc"]))
    out = ok("run", model, "--input", f"x={tmp_path}/x.npy", warned=["Identity node "])
    assert re.search(r"^y +\S+ +\(2,\) +- +- +-$", out, re.MULTILINE)


def test_a_failing_node_is_one_line(error: Run, tmp_path: Path, save_model: Run) -> None:
    text = "net (float[2, 3] x, int64[1] s) => (float[N] y) { y = Reshape (x, s) }"
    model = save_model(text)
    np.save(tmp_path / "s.npy", np.array([7]))
    assert "Reshape" in error("run", model, "--input", f"s={tmp_path}/s.npy", "--output-dir", tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["int8", "uint8", "int64", "bool"])
def test_random_whole_numbers_are_0_and_1(ok: Run, save_model: Run, tmp_path: Path, kind: str) -> None:
    path = save_model(f"net ({kind}[100] x) => ({kind}[100] y) {{ y = Identity (x) }}")
    ok("run", path, "--output-dir", tmp_path / "out")
    assert set(np.load(tmp_path / "out" / "y.npy").astype(int).tolist()) == {0, 1}
