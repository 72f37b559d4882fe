"""The suite as data: what stands in its files, that they are the same every time, and which pairs the sweep has."""

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
from tests.judge.samples import problem, sample

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
    asked = [one for number, case in enumerate(cases.CASES) if case.op == op for one in problems.of_case(case, number)]
    versions = {"conv": {1, 11, 22}, "conv_transpose": {1, 11, 22}, "max_pool": {1, 8, 10, 11, 12, 22}}
    versions |= {"average_pool": {1, 7, 10, 11, 19, 22}, "max_unpool": {9, 11, 22}}
    assert {one.opset for one in asked} == versions[op]
    floats = {"float16", "bfloat16", "float32", "float64"}
    assert {one.dtype for one in asked} == (floats | {"int8", "uint8"} if op == "max_pool" else floats)


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
    assert {(one.dtype, _mode(one)) for one in mine} == set(product(types, modes))
    assert {(one.dtype, len(one.case.x_shape)) for one in mine} == set(product(types, ranks))
    assert {(_mode(one), len(one.case.x_shape)) for one in mine} == set(product(modes, ranks))
    if op.endswith("pool"):
        assert {(one.case.attributes.get("ceil_mode", 0), _mode(one)) for one in mine} == set(product((0, 1), modes))
    else:
        assert {(one.case.bias, one.case.values) for one in mine} == set(
            product((False, True), sweep.CHOICES[op]["values"])
        )


def test_a_sweep_follows_from_its_seed_and_count(swept: list[Any]) -> None:
    first, again, other = (list(sweep.problems(seed, 8)) for seed in (5, 5, 6))
    assert first == again != other
    assert len(first) == 8
    assert len({one.name for one in swept}) == len(swept)
