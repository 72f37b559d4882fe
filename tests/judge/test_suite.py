"""The suite as data: the contents of its files, that they are reproducible, and which pairs the sweep has."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from gpuconv.judge import cases, problems, suite, sweep
from gpuconv.judge.verdicts import read
from gpuconv.rules.cases import CASES, inputs
from tests.judge.samples import problem, sample, written

Run = Callable[..., str]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "problems", lambda seed, count: sample())


def test_the_command_writes_the_same_bytes_every_time(few: None, ok: Run, error: Run, tmp_path: Path) -> None:
    first, second = (ok("suite", "--output", tmp_path / name).splitlines() for name in "ab")
    assert first[1] == second[1]
    assert first[1].startswith("sha256 ")
    contents = [
        {
            path.relative_to(tmp_path / name): path.read_bytes()
            for path in (tmp_path / name).rglob("*")
            if path.is_file()
        }
        for name in "ab"
    ]
    assert contents[0] == contents[1]
    assert "is there already and no empty folder" in error("suite", "--output", tmp_path / "a")


def test_the_hash_is_of_every_byte(few: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def digest(name: str) -> str:
        return suite.write(tmp_path / name, 0, None, lambda name: None).digest

    before = digest("before")
    monkeypatch.setattr(suite, "_README", suite._README + " ")
    assert digest("after") != before


def test_a_test_has_onnx_s_layout(tmp_path: Path) -> None:
    one = problem("conv/2d/a bias")
    for name, content in suite.files(one).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    folder = tmp_path / one.name
    assert folder.name == "test_conv_2d_a_bias_float32_opset22"
    model = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(model)
    x, y, bound = (read(folder / "test_data_set_0" / f"{kind}_0.pb") for kind in ("input", "output", "bound"))
    arrays = inputs(one.case, "float32")
    np.testing.assert_array_equal(x, arrays["x"])
    w, b = (onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
    np.testing.assert_array_equal(w, arrays["w"])
    np.testing.assert_array_equal(b, arrays["b"])
    # The bound of the first element, from its 27 products and the bias.
    terms = [abs(float(p)) for p in (x[0, :, :3, :3] * w[0]).ravel()] + [abs(float(b[0]))]
    assert bound[0, 0, 0, 0] == pytest.approx((28 + 1) * 2.0**-24 * sum(terms) + 2.0**-150)
    assert y[0, 0, 0, 0] == float((x[0, :, :3, :3] * w[0]).sum() + b[0])
    facts = json.loads((folder / "case.json").read_text())
    assert (facts["rule"], facts["status"], facts["opset"]) == ("bias", "specified", 22)


def test_names_are_names_of_folders_and_none_comes_twice() -> None:
    names = [one.name for number, case in enumerate(cases.CASES) for one in problems.of_case(case, number)]
    assert len(set(names)) == len(names)
    assert all(name.isascii() and name.replace("_", "").isalnum() for name in names)


def test_every_case_is_asked_in_float32_or_in_what_it_has() -> None:
    made = {one.case.name: one.dtype for one in reversed([*problems.of_case(CASES[0], 0)])}
    assert made == {CASES[0].name: "float32"}
    asked = {(one.case.name, one.dtype) for n, case in enumerate(cases.CASES) for one in problems.of_case(case, n)}
    assert all((case.name, "float32") in asked for case in cases.CASES if "float32" in case.dtypes)


@pytest.mark.parametrize("op", list(problems.KINDS))
def test_every_schema_and_type_is_there(op: str) -> None:
    """Each schema of onnx, in each of its types and with each of its outputs, and one to five axes."""
    asked = [one for number, case in enumerate(cases.CASES) if case.op == op for one in problems.of_case(case, number)]
    names = {"tensor(double)": "float64", "tensor(float)": "float32"}
    wanted = {
        (schema.since_version, names.get(kind, kind[len("tensor(") : -1]), outputs)
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == "" and schema.name == problems.KINDS[op]
        for kind in schema.type_constraints[0].allowed_type_strs
        for outputs in range(schema.min_output, len(schema.outputs) + 1)
    }
    assert {(one.opset, one.dtype, 1 + one.indices) for one in asked} == wanted
    assert {len(one.case.x_shape) - 2 for one in asked} == {1, 2, 3, 4, 5}


def test_no_attribute_is_used_before_its_opset() -> None:
    ceil = next(case for case in CASES if case.name == "max_pool/1d/ceil_mode with a rest")
    assert problems.opsets(ceil, "float32", False) == [10, 11, 12, 22]
    assert problems.opsets(ceil, "bfloat16", False) == [22]
    assert problems.opsets(replace(ceil, attributes={"kernel_shape": [3]}), "float32", False) == [1, 8, 10, 11, 12, 22]
    assert problems.opsets(replace(ceil, attributes={"kernel_shape": [3]}), "float32", True) == [8, 10, 11, 12, 22]


@pytest.fixture(scope="module")
def swept() -> list[Any]:
    return list(sweep.problems(0))


def _mode(one: Any) -> str:
    return one.case.attributes.get("auto_pad") or "NOTSET"


@pytest.mark.parametrize("op", list(sweep.CHOICES))
def test_the_sweep_has_every_pair(op: str, swept: list[Any]) -> None:
    mine = [one for one in swept if one.case.op == op]
    modes, ranks = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"), (3, 4, 5, 6)
    types = sweep.CHOICES[op]["dtype"]
    assert {(one.dtype, len(one.case.x_shape)) for one in mine} == set(product(types, ranks))
    if op == "max_unpool":  # which has no auto_pad
        shapes = {(one.dtype, "output_shape" in one.case.attributes) for one in mine}
        assert shapes == set(product(types, (False, True)))
        return
    assert {(one.dtype, _mode(one)) for one in mine} == set(product(types, modes))
    assert {(_mode(one), len(one.case.x_shape)) for one in mine} == set(product(modes, ranks))
    if op.endswith("pool"):
        assert {(one.case.attributes.get("ceil_mode", 0), _mode(one)) for one in mine} == set(product((0, 1), modes))
    else:
        assert {(one.case.bias, one.case.values) for one in mine} == set(
            product((False, True), sweep.CHOICES[op]["values"])
        )


def test_a_sweep_follows_from_its_seed_and_count(swept: list[Any]) -> None:
    first, again, other = (list(sweep.problems(seed, 10)) for seed in (5, 5, 6))
    assert first == again != other
    assert len(first) == 10
    assert len({one.name for one in swept}) == len(swept)


def test_the_sweep_has_sums_that_overflow_and_subnormals(swept: list[Any]) -> None:
    """Sums of terms of equal sign whose float64 sum, or Python's, exceeds the largest number are expected to be inf."""
    for op in ("conv", "conv_transpose"):
        certain = 0
        for one in (one for one in swept if one.case.op == op and one.case.values == "overflow"):
            found = problems.answer(one)
            beyond = np.isinf(found.outputs[0].astype(np.float64)) & (found.bounds[0] == 0)
            certain += int(beyond.sum())
        assert certain > 20
    floats = ("float16", "bfloat16", "float32", "float64")
    tiny = {one.dtype for one in swept if one.case.op == "max_pool" and one.case.values == "subnormals"}
    assert tiny == set(floats)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_sums_beyond_the_largest_by_hand(dtype: str) -> None:
    """1, 2, 3 and 4 halves of the largest value, all of one sign; a sum of exactly the largest may overflow."""
    one = problem("conv/1d/sums beyond the largest", dtype)
    largest = {"float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127, "float32": float(np.finfo(np.float32).max)}
    half = largest.get(dtype, float(np.finfo(np.float64).max)) / 2
    operands = problems.operands(one)
    x = np.zeros_like(operands["x"])
    x[:, 0] = np.array([half, half, half, 0, 0, 0, 0, 0]).astype(x.dtype)
    x[1] = -x[1]
    w, b = np.ones_like(operands["w"]), np.zeros_like(operands["b"])
    found = problems.answer(one, arrays={"x": x, "w": w, "b": b})
    expected = [2 * half, np.inf, 2 * half, half, 0, 0, 0]
    np.testing.assert_array_equal(found.outputs[0][0, 0].astype(np.float64), expected)
    np.testing.assert_array_equal(found.outputs[0][1, 0].astype(np.float64), np.negative(expected))
    assert found.bounds[0][0, 0, 1] == 0
    assert found.bounds[0][0, 0, 3] < half * 1e-2
    mixed = problems.answer(one, arrays={"x": np.where(np.arange(8) % 2, x, -x) * 2, "w": w * 2, "b": b})
    assert np.isinf(mixed.bounds[0][0, 0, 1]) == (dtype in ("float32", "float64", "bfloat16"))


def test_what_is_unpooled_has_the_shape_that_the_attributes_give(swept: list[Any]) -> None:
    for one in (one for one in swept if one.case.op == "max_unpool"):
        x, indices, *shape = problems.operands(one).values()
        attributes, rank = one.case.attributes, x.ndim - 2
        pads = attributes.get("pads", [0] * 2 * rank)
        strides, kernel = attributes.get("strides", [1] * rank), attributes["kernel_shape"]
        natural = [
            s * (q - 1) + k - pads[a] - pads[a + rank]
            for a, (s, q, k) in enumerate(zip(strides, x.shape[2:], kernel, strict=True))
        ]
        assert list(one.case.x_shape[2:]) == natural
        assert indices.size == 0 or (indices.min() >= 0 and indices.max() < np.prod(one.case.x_shape))
        assert not shape or (shape[0] >= np.array(one.case.x_shape)).all()


def test_every_array_is_there_without_protobuf(tmp_path: Path) -> None:
    """bfloat16 as its bits, with the type in case.json; also constants and attributes."""
    one = problem("conv/2d/a bias", "bfloat16")
    folder = written(one, tmp_path).folder
    stored = {path.stem: path for path in (folder / "test_data_set_0").glob("*.npy")}
    assert {"input_0", "constant_0", "constant_1", "output_0", "bound_0", "wide_bound_0"} <= stored.keys()
    for name, path in stored.items():
        array, expected = np.load(path), read(path.with_suffix(".pb"))
        assert array.shape == expected.shape
        bits = expected.view(np.uint16) if expected.dtype.name == "bfloat16" else expected
        np.testing.assert_array_equal(array, bits, err_msg=name)
    facts = json.loads((folder / "case.json").read_text())
    assert [each["name"] for each in facts["constants"]] == ["W", "B"]
    assert facts["outputs"] == [{"name": "Y", "type": "bfloat16", "shape": [2, 4, 4, 7], "file": "output_0"}]
    assert facts["attributes"] == {"kernel_shape": [3, 3]}
    assert facts["quotation"]["text"] == "Optional 1D bias to be added to the convolution, has size of M."


def test_the_suite_says_what_it_is(few: None, ok: Run, tmp_path: Path) -> None:
    ok("suite", "--output", tmp_path / "suite")
    about = json.loads((tmp_path / "suite" / "suite.json").read_text())
    assert (about["format"], about["licence"], about["onnx"]) == (2, "Apache-2.0", "1.23.2")
    assert sorted(path.name for path in (tmp_path / "suite").iterdir() if path.is_dir()) == sorted(about["tests"])
    assert "Apache License" in (tmp_path / "suite" / "LICENSE").read_text()
