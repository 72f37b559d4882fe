"""The cost of first plans: few calls of Python functions for any problem, and a benchmark that counts them."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import planning, static_plan
from gpuconv.cuda.plan.limits import representative

CASES = {str(case): case for case in static_plan.cases()}
# Those that try the most tiles: of every family that tries many, in the layouts and types that it takes.
COSTLY = (
    "resnext50.l1.g32 bfloat16",
    "resnext50.l1.g32 3xtf32",
    "resnext101.l3.g32 float32",
    "resnext50.l1.g32/input_grad bfloat16",
    "mobilenetv2.dw3 tf32",
    "mobilenetv2.dw3 bfloat16 NHWC",
    "fsrcnn.deconv bfloat16 NHWC",
    "sd15.vae.conv_out bfloat16",
    "unet.dec4 tf32",
    "sense.coils complex64",
    "sincnet.pool1d bfloat16",
    "unet3d.pool bfloat16 NHWC",
)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", COSTLY)
def test_a_first_plan_calls_few_functions(name: str, architecture: str) -> None:
    case, device = CASES[name], representative(architecture)
    static_plan.planner_of(case, device)()
    assert planning.count(case, device) <= planning.MOST_CALLS


def test_a_plan_is_counted_as_if_there_had_been_none_like_it() -> None:
    case, device = CASES["mobilenetv2.dw3 float32 NHWC"], representative("sm_90a")
    static_plan.planner_of(case, device)()
    first = planning.count(case, device)
    assert planning.calls_of(static_plan.planner_of(case, device)) < first
    assert planning.count(case, device) == first


def test_functions_and_steps_of_generators_are_calls() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        yield 2

    def some() -> None:
        list(numbers())
        list(numbers())

    assert planning.calls_of(some) == 1 + 2 * 3


def test_nothing_is_counted_after_an_error() -> None:
    def wrong() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        planning.calls_of(wrong)
    assert planning.sys.getprofile() is None


def row(calls: int = 100, ms: float = 1.0, **other: Any) -> dict[str, Any]:
    return {"operator": "conv", "layout": "NCHW", "dtype": "float32", "calls": calls, "ms": ms} | other


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([row(calls=25_000, ms=15.0), row(), row()], False),
        ([row(calls=25_001), row()], True),
        ([row(ms=15.1), row(), row()], True),
        ([row(ms=5.1), row(ms=5.1), row()], True),
        ([row(), row(), row(ms=5.1, operator="max_pool")], True),  # a class of its own
    ],
)
def test_limits_are_those_of_a_case_and_of_a_class_in_the_median(rows: list[dict[str, Any]], found: bool) -> None:
    assert planning.too_much(rows) is found


def test_the_table_has_a_line_for_each_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planning.time, "thread_time", lambda: 0.0)
    file = tmp_path / "planning.json"
    assert planning.run(Namespace(layers="vgg.pool1", arch="sm_80", json=file)) == 0
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert [one["case"] for one in rows] == [name for name in CASES if name.startswith("vgg.pool1 ")]
    assert all(one["calls"] > 100 and one["ms"] == 0 for one in rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("first plans for A100; ")
    classes = {f"{one['operator']} {one['layout']} {one['dtype']}" for one in rows}
    assert {" ".join(line.split()[:3]) for line in lines[2:-1]} == classes
