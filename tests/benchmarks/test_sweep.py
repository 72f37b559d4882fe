"""The sweep of candidates without a GPU: its order, what it skips, how it resumes; and its bench, emulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuconv
from benchmarks import gpu, gpu_arrays, learn, static_plan, sweep, sweep_bench
from benchmarks.layers import Layer
from benchmarks.progress import Rows
from benchmarks.static_plan import Case
from gpuconv.cuda.plan.launch import Plan
from gpuconv.cuda.plan.limits import representative
from tests.harness import cuda_device

pytestmark = pytest.mark.slow

DEVICE = representative("sm_90a")
CASES = static_plan.cases("resnet50.conv1")
CASE = CASES[0]
NAMES = [one.name for one in sweep.candidates(CASE, DEVICE)]


class Hung(BaseException):
    """The supervisor ends the process."""


class MadeUp:
    """A bench with simulated times of kernels and a clock that only they advance."""

    def __init__(self, seconds: Callable[[str], float] = lambda name: 1e-4) -> None:
        self.limits = replace(DEVICE.limits, name="made up")
        self.seconds, self.now = seconds, 0.0
        self.wrong: set[str] = set()
        self.fails: dict[str, BaseException] = {}
        self.is_alive = True
        self.loaded: list[Case] = []
        self.captured: list[str] = []

    def clock(self) -> float:
        return self.now

    def load(self, case: Case, seconds: float) -> None:
        self.loaded.append(case)
        self.now += 0.01

    def prepare(self, plan: Plan) -> Plan:
        if plan.kernel in self.fails:
            raise self.fails[plan.kernel]
        return plan

    def result(self, call: Plan) -> tuple[str, float]:
        return ("other bits" if call.kernel in self.wrong else "bits"), self._once(call)

    def differing(self, result: str, reference: str) -> tuple[int, int]:
        return 7 * (result != reference), 100

    def replay(self, call: Plan, seconds: float) -> Callable[[], float]:
        self.captured.append(call.kernel)
        return lambda: self._once(call)

    def alive(self) -> bool:
        return self.is_alive

    def _once(self, call: Plan) -> float:
        self.now += self.seconds(call.kernel)
        return self.seconds(call.kernel)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def swept(bench: MadeUp, path: Path, cases: list[Case], deadline: float = 1e9) -> tuple[int, dict[str, Any]]:
    rows = Rows(path, sweep.STEP)
    code = sweep.run(bench, cases, rows, deadline, bench.clock)
    return code, {row.split(" | ")[1]: line for row, line in rows.ended.items() if row.startswith(f"{cases[0]} | ")}


def test_every_class_dtype_precision_and_layout_comes_before_any_comes_twice() -> None:
    cases = static_plan.cases()
    order = sweep.stratified(cases)
    assert sorted(map(str, order)) == sorted(map(str, cases))
    strata = [(case.layer.kind, case.dtype, case.precision, case.layout) for case in order]
    first = len(set(strata))
    assert 50 < first == len(set(strata[:first])) < len(cases) / 5


def test_every_family_of_kernels_is_met_in_the_first_quarter() -> None:
    order = sweep.stratified(static_plan.cases())
    soon, late = order[: len(order) // 4], order[len(order) // 4 :: 6]  # not all, to save time
    assert families(late) <= families(soon)


def families(cases: list[Case]) -> set[str]:
    """Return the families of all candidates; parts of tiles are made by the kernels of whole ones."""
    return {learn.family(one.name.replace("_split", "")) for case in cases for one in sweep.candidates(case, DEVICE)}


def test_a_row_says_what_was_modelled_and_measured(path: Path) -> None:
    bench = MadeUp()
    code, found = swept(bench, path, [CASE])
    assert code == 0
    assert set(found) == {sweep.REFERENCE, *NAMES}
    picked = min(sweep.candidates(CASE, DEVICE), key=lambda one: one.seconds)
    about = {"class": CASE.layer.kind, "dtype": CASE.dtype, "layout": "NCHW", "device": "made up"}
    about |= {"architecture": "sm_90a", "multiprocessors": 132, "general": NAMES[0]}
    about |= {"picked": picked.name, "candidates": len(NAMES)}
    assert found[sweep.REFERENCE].items() >= about.items()
    row = found[picked.name]
    assert (row["seconds"], row["replays"]) == (1e-4, sweep.REPLAYS)
    assert row["modelled"] == pytest.approx(picked.seconds, rel=1e-3)
    planned = static_plan.plan(CASE, DEVICE, static_plan.Chooser(picked.name))
    assert row["launches"] == [launch.variant.name for launch in planned.launches]
    assert list(found)[:2] == [sweep.REFERENCE, picked.name]


@pytest.mark.parametrize("dtype", ["complex64", "bfloat16"])
def test_plans_are_those_that_calls_get(dtype: str) -> None:
    case = next(case for case in static_plan.cases() if case.dtype == dtype and case.layer.multiplies)
    for one in sweep.candidates(case, DEVICE):
        expected = static_plan.plan(case, DEVICE, static_plan.Chooser(one.name))
        found = sweep.plan(case, DEVICE, one)
        assert (found.launches, found.spaces) == (expected.launches, expected.spaces)


def test_what_is_slower_is_not_repeated_and_what_is_far_slower_runs_once(path: Path) -> None:
    slow, slower = NAMES[0], NAMES[1]
    times = {slow: 3.5e-4, slower: 5e-2}
    bench = MadeUp(lambda name: times.get(name, 1e-4))
    _, found = swept(bench, path, [CASE])
    assert (found[slow]["seconds"], found[slow]["replays"]) == (3.5e-4, 1)
    assert (found[slower]["seconds"], found[slower]["replays"]) == (5e-2, 0)
    assert slow in bench.captured
    assert slower not in bench.captured
    assert {found[name]["replays"] for name in NAMES if name not in times} == {sweep.REPLAYS}


def test_a_wrong_kernel_fails_with_a_count_and_is_never_the_best(path: Path) -> None:
    wrong = min(sweep.candidates(CASE, DEVICE), key=lambda one: one.seconds).name
    bench = MadeUp(lambda name: 1e-9 if name == wrong else 1e-3)
    bench.wrong = {wrong}
    code, found = swept(bench, path, [CASE])
    assert code == 1
    assert (found[wrong]["status"], found[wrong]["differing"], found[wrong]["elements"]) == ("failed", 7, 100)
    assert "seconds" not in found[wrong]
    others = [found[name] for name in NAMES if name != wrong]
    assert {(line["status"], line["replays"]) for line in others} == {("passed", sweep.REPLAYS)}


def test_a_kernel_that_the_driver_refuses_is_a_failed_row(path: Path) -> None:
    bench = MadeUp()
    bench.fails = {NAMES[2]: RuntimeError("too many resources\nand more")}
    code, found = swept(bench, path, [CASE])
    assert code == 1
    assert (found[NAMES[2]]["status"], found[NAMES[2]]["error"]) == ("failed", "RuntimeError: too many resources")
    assert sum(line["status"] == "passed" for line in found.values()) == len(NAMES)


def test_a_hung_kernel_is_passed_over_and_what_was_done_stays(path: Path) -> None:
    bench = MadeUp()
    bench.fails = {NAMES[2]: Hung()}
    with pytest.raises(Hung):
        swept(bench, path, [CASE])
    watcher = Rows(path, sweep.STEP)
    assert watcher.open() == [sweep.row_name(CASE, NAMES[2])]
    watcher.end(watcher.open()[0], "hung")
    before = set(watcher.ended)
    again = MadeUp()
    _, found = swept(again, path, [CASE])
    assert set(found) == {sweep.REFERENCE, *NAMES}
    assert found[NAMES[2]]["status"] == "hung"
    assert not {sweep.row_name(CASE, name) for name in again.captured} & before
    third = MadeUp()
    swept(third, path, [CASE])
    assert third.loaded == []


def test_where_the_reference_was_lost_kernels_are_timed_unchecked(path: Path) -> None:
    Rows(path, sweep.STEP).end(sweep.row_name(CASE, sweep.REFERENCE), "hung")
    _, found = swept(MadeUp(), path, [CASE])
    assert {found[name]["checked"] for name in NAMES} == {False}
    assert {found[name]["seconds"] for name in NAMES} == {1e-4}


def test_a_lost_device_leaves_the_row_open(path: Path) -> None:
    bench = MadeUp()
    bench.fails, bench.is_alive = {NAMES[1]: RuntimeError("an illegal memory access was encountered")}, False
    with pytest.raises(gpu.DeviceLost, match="illegal memory access"):
        swept(bench, path, [CASE])
    assert Rows(path, sweep.STEP).open() == [sweep.row_name(CASE, NAMES[1])]


def test_a_case_without_room_for_its_operands_is_left_out(path: Path) -> None:
    cases = CASES[:2]
    bench = MadeUp()
    load = bench.load

    def refused(case: Case, seconds: float) -> None:
        if case == CASE:
            raise RuntimeError("out of memory")
        load(case, seconds)

    bench.load = refused  # type: ignore[method-assign]
    code, found = swept(bench, path, cases)
    assert (code, list(found)) == (1, [sweep.REFERENCE])
    assert (found[sweep.REFERENCE]["status"], bench.loaded) == ("failed", [cases[1]])
    Rows(path, sweep.STEP).end(sweep.row_name(CASE, sweep.REFERENCE), "passed")  # as if by another process
    assert set(swept(bench, path, cases)[1]) == {sweep.REFERENCE}
    bench.is_alive = False
    with pytest.raises(gpu.DeviceLost, match="out of memory"):
        swept(bench, path, cases)


def test_nothing_is_begun_when_time_is_up(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = MadeUp(lambda name: 1.0)
    first = sweep.stratified(CASES)[0]
    code, _ = swept(bench, path, CASES, deadline=10.0)
    assert code == 0
    assert bench.now < 10 + 2 + sweep.REPLAYS  # one kernel may end after it
    assert bench.loaded == [first]
    assert 2 <= len(Rows(path, sweep.STEP).ended) < len(sweep.candidates(first, DEVICE))
    assert f"time is up: {len(CASES) - 1} of {len(CASES)} cases are left out" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sweep.device, "unavailable_reason", lambda: "no driver")
    assert sweep.main(["--rows", str(path)]) == 2
    assert capsys.readouterr().err == "python -m benchmarks.sweep: no GPU to measure on: no driver\n"


@pytest.mark.parametrize(
    ("seconds", "nbytes", "count"), [(1e-6, 2**20, 16), (6e-5, 2**20, 4), (1.0, 1, 1), (0, 2**30, 2)]
)
def test_graphs_are_short_and_operands_few(seconds: float, nbytes: int, count: int) -> None:
    assert sweep_bench.sets(seconds, nbytes) == count


# ---------------------------------------------------------------- the bench itself, on a device

CONV = Layer("small", "", "Conv", (1, 16, 6, 8), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), ("fp16",), k_out=16)
POOL = Layer("pool", "", "MaxPool", (1, 3, 6, 8), (2, 2), (2, 2), (0, 0, 0, 0), (1, 1), ("fp32",), indices=True)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        Case(CONV, "float64"),
        pytest.param(Case(CONV, "float16"), marks=cuda_device.thorough_if_emulated()),  # of 100 kernels
        pytest.param(Case(CONV, "bfloat16", "NHWC"), marks=cuda_device.thorough_if_emulated()),
        Case(replace(CONV, call="weight_grad"), "float32", precision="3xtf32"),
        Case(POOL, "float32", "NHWC"),
        Case(replace(POOL, call="grad"), "float32"),
    ],
    ids=lambda case: f"{case.layer.operator} {case}",
)
def test_all_candidates_make_the_same_of_whole_numbers(path: Path, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setattr(sweep_bench, "_MOST_SETS", 2)
    monkeypatch.setattr(sweep, "REPLAYS", 1)
    with sweep_bench.opened() as bench:
        code = sweep.run(bench, [case], Rows(path, sweep.STEP), 1e9)
    ended = Rows(path, sweep.STEP).ended
    assert code == 0, [line for line in ended.values() if line["status"] != "passed"]
    assert len(ended) == 1 + len(sweep.candidates(case, sweep.device_of(bench.limits)))
    timed = [line for row, line in ended.items() if not row.endswith(sweep.REFERENCE)]
    assert all(line["seconds"] > 0 and "checked" not in line for line in timed)


@pytest.mark.gpu
def test_a_kernel_that_leaves_an_element_out_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sweep_bench._Call.__call__

    def short(call: Any, operands: list[Any]) -> list[Any]:
        (y,) = run(call, operands)
        if ran:
            y[0, 0, 0, :1].view(np.uint16).fill(0xFFFF)  # previous contents of the memory
        ran.append(call)
        return [y]

    ran: list[Any] = []
    monkeypatch.setattr(sweep_bench._Call, "__call__", short)
    with sweep_bench.opened() as bench:
        assert sweep.run(bench, [Case(CONV, "float16")], Rows(path, sweep.STEP), 1e9) == 1
    found = [line.get("differing") for line in Rows(path, sweep.STEP).ended.values()]
    assert found == [None, *[1] * (len(found) - 1)]


def test_shrunk_layers_are_not_taken_for_those_of_networks() -> None:
    (case,) = sweep.chosen("resnet50.conv1", 1, 1e5)
    known = sweep.chosen("resnet50.conv1", None, None)
    assert str(case) not in map(str, known)
    assert case.layer.flops <= 1e5 < known[0].layer.flops
    assert sorted(map(str, known)) == sorted(map(str, CASES))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_maxima_and_indices_of_operands_are_those_of_a_pool(layout: str) -> None:
    import cupy

    found = gpu_arrays.operands(cupy, replace(POOL, call="unpool"), "float32", layout)
    y, indices = map(gpuconv.to_host, found.values())
    x = gpuconv.max_unpool(y, indices, kernel_shape=[2, 2], strides=[2, 2], layout=layout)
    again = gpuconv.max_pool(np.where(x == 0, -np.inf, x), kernel_shape=[2, 2], strides=[2, 2], layout=layout)
    assert np.array_equal(again, y)
    assert len(np.unique(y)) == y.size


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "complex64", "int8"])
def test_operands_repeat_the_host_s_numbers(dtype: str) -> None:
    import cupy

    layer = replace(CONV, x=(1, 16, 64, 70), k_out=4)
    found = gpu_arrays.operands(cupy, layer, dtype, "NHWC", seed=1)
    x = gpuconv.to_host(found["x"])
    assert {name: array.shape for name, array in found.items()} == {
        "x": (1, 64, 70, 16), "w": (4, 16, 3, 3), "b": (4,),
    }  # fmt: skip
    flat = x.reshape(-1)
    assert str(flat.dtype) == dtype
    assert (flat[65_537:] == flat[: flat.size - 65_537]).all()
    assert len(np.unique(flat.astype(np.complex128))) > 100
    whole = gpuconv.to_host(gpu_arrays.operands(cupy, layer, dtype, "NHWC", most=3)["w"]).astype(np.complex128)
    assert dtype == "int8" or set(np.unique(whole.real)) == set(range(-3, 4))
