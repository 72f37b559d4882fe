"""Every kernel once: all small problems, in the emulator, with kernels that hang or are wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks import small_shapes, smoke
from benchmarks.progress import Rows, read
from benchmarks.small_shapes import Problem
from benchmarks.smoke import Smoke
from gpuconv import cuda
from gpuconv.cuda.call import device
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from tests.emulator import emulated_cuda

pytestmark = pytest.mark.emulator
POOL = Problem("max_pool", (1, 2, 9, 8), (), {"kernel_shape": [3, 3], "strides": [2, 2]})
ANOTHER = Problem("max_pool", (1, 1, 9, 12), (), {"kernel_shape": [3, 3], "strides": [2, 2]})  # by the same kernels
CALLS: list[smoke.Call] = [(POOL, "float32", False), (ANOTHER, "float32", False), (POOL, "float16", False)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def walk(path: Path, calls: Sequence[smoke.Call] = CALLS, **options: Any) -> Smoke:
    found = Smoke(Rows(path, "smoke"), **options)
    with emulated_cuda():
        found.run(calls)
    return found


@contextmanager
def instead_of(kernel: str, launch: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Make a function of the test launch a kernel of the emulator."""
    with emulated_cuda():
        load, bind, names = device.load, device.bind, {}

        def named(variant: Any, *rest: Any) -> Any:
            handle = load(variant, *rest)
            names[id(handle)] = variant.name
            return handle

        def bound(handle: Any, *rest: Any) -> Callable[[], None]:
            run = bind(handle, *rest)
            return (lambda: launch(run)) if names[id(handle)] == kernel else run

        with mock.patch.multiple(device, load=named, bind=bound):
            yield


def test_each_kernel_runs_once_and_is_named(path: Path) -> None:
    seen = walk(path, each_kernel=True, repeats=2).seen
    ended = Rows(path, "smoke").ended
    assert {line["status"] for line in ended.values()} == {"passed"}
    assert seen == {name for line in ended.values() for name in line["kernels"]}
    with emulated_cuda():
        planned = Turns()
        with offers.picking(planned):
            for call in CALLS:
                small_shapes.compute(call[0], small_shapes.operands(*call[:2]))
    assert planned.kernels <= seen
    everything = path.with_name("everything.jsonl")
    walk(everything)
    assert len(Rows(everything, "smoke").ended) > len(ended)  # candidates whose kernels have run already, too


class Turns:
    """Records the kernels of all candidates, and picks the first one."""

    def __init__(self) -> None:
        self.kernels: set[str] = set()

    def __call__(self, candidates: Sequence[Candidate]) -> Candidate:
        for candidate in candidates:
            self.kernels |= {launch.variant.name for launch in candidate.make().launches}
        return candidates[0]


def test_a_second_process_goes_on_behind_the_first(path: Path) -> None:
    whole = walk(path.with_name("whole.jsonl"), each_kernel=True).seen
    walk(path, CALLS[:1], each_kernel=True)
    lines = path.read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if '"passed"' in line)
    path.write_text("".join(lines[: first + 1]))  # only the first round has ended
    assert walk(path, each_kernel=True).seen == whole
    rows = [line["row"] for line in read(path) if line["status"] == "begun"]
    assert len(rows) == len(set(rows))


def test_a_kernel_that_hung_is_not_launched_again(path: Path) -> None:
    walk(path.with_name("whole.jsonl"), each_kernel=True)
    whole = Rows(path.with_name("whole.jsonl"), "smoke").ended
    row, line = next(iter(whole.items()))

    class Hung(BaseException):
        pass

    def hangs(run: Callable[[], None]) -> None:
        raise Hung

    kernel = next(name for name in line["kernels"] if "float32" in name)
    with pytest.raises(Hung), instead_of(kernel, hangs):
        Smoke(Rows(path, "smoke"), each_kernel=True).run(CALLS)
    assert Rows(path, "smoke").open() == [row]
    assert Rows(path, "smoke").noted[row]["kernel"] == kernel
    Rows(path, "smoke").end(row, "hung")
    with instead_of(kernel, lambda run: pytest.fail("launched again")):
        found = Smoke(Rows(path, "smoke"), each_kernel=True)
        found.run(CALLS)
    assert kernel not in found.seen
    ended = Rows(path, "smoke").ended
    assert {line["status"] for name, line in ended.items() if name != row} <= {"passed", "skipped"}
    calls = [set(line["kernels"]) for line in whole.values()]
    assert set().union(*calls) - found.seen <= set().union(*(each for each in calls if kernel in each))


def test_a_wrong_result_and_changing_bits_are_found(path: Path) -> None:
    walk(path.with_name("whole.jsonl"), CALLS[:1], each_kernel=True)
    kernel = next(iter(Rows(path.with_name("whole.jsonl"), "smoke").ended.values()))["kernels"][0]
    empty = device.empty

    def filled(*arguments: Any) -> Any:
        array = empty(*arguments)
        array.data.memset(0xFF, array.nbytes)
        return array

    with instead_of(kernel, lambda run: None), mock.patch.object(device, "empty", filled):
        Smoke(Rows(path, "smoke"), each_kernel=True).run(CALLS[:1])
    wrong = [line for line in Rows(path, "smoke").ended.values() if line["status"] == "failed"]
    assert wrong
    assert kernel in wrong[0]["detail"]
    results = [[np.zeros(2)], [np.zeros(2)], [np.zeros(2)], [-np.zeros(2)]]
    later = path.with_name("later.jsonl")
    with (
        emulated_cuda(),
        mock.patch.object(small_shapes, "compute", side_effect=results),
        mock.patch.object(smoke, "moved", list),
    ):
        Smoke(Rows(later, "smoke"), repeats=3).run(CALLS[:1])
    (line,) = Rows(later, "smoke").ended.values()
    assert (line["status"], line["detail"]) == ("failed", ": result: other bits in run 2")


def test_an_error_of_a_launch_is_a_row_and_the_next_runs(path: Path) -> None:
    walk(path.with_name("whole.jsonl"), each_kernel=True)
    row, line = next(iter(Rows(path.with_name("whole.jsonl"), "smoke").ended.items()))
    with instead_of(line["kernels"][0], mock.Mock(side_effect=RuntimeError("misaligned address"))):
        Smoke(Rows(path, "smoke"), each_kernel=True).run(CALLS)
        ended = Rows(path, "smoke").ended
        assert ended[row]["status"] == "failed"
        assert "misaligned address" in ended[row]["detail"]
        assert len(ended) > 1
        lost = path.with_name("lost.jsonl")
        with mock.patch.object(smoke, "alive", return_value=False), pytest.raises(SystemExit) as left:
            Smoke(Rows(lost, "smoke"), each_kernel=True).run(CALLS)
    assert left.value.code == 3
    assert len(Rows(lost, "smoke").ended) == 1


def test_families_and_dtypes_choose() -> None:
    assert {call[1] for call in smoke.ordered(["float16", "int8"])} == {"float16", "int8"}
    everything = smoke.ordered()
    assert sorted(map(repr, everything)) == sorted(map(repr, small_shapes.calls()))
    assert everything[0][0] in small_shapes.TENSOR
    assert not everything[0][2]


def test_only_kernels_of_a_family(path: Path) -> None:
    whole = walk(path.with_name("whole.jsonl")).seen
    part = walk(path, families=["no such kernel"]).seen
    assert part < whole  # the first candidates, which show which others exist


# ---------------------------------------------------------------- the small problems


def test_the_small_problems_are_right_on_the_cpu_and_small() -> None:
    for problem in (*small_shapes.PROBLEMS, *small_shapes.GRADIENTS):
        results = small_shapes.compute(problem, small_shapes.operands(problem, "float32"))
        assert all(result.size and result.nbytes < 20e6 for result in results)
        if problem.operator != "max_pool":  # whose windows without any element depend on the dtype
            exact = small_shapes.compute(problem, small_shapes.operands(problem, "float64"))
            assert all((result == value).all() for result, value in zip(results, exact, strict=True))


def test_rows_have_names_of_their_own() -> None:
    titles = [f"{smoke.title_of(problem)} {dtype} {wide}" for problem, dtype, wide in smoke.ordered()]
    assert len(set(titles)) == len(titles)
    assert max(map(len, titles)) < 160


def test_nothing_of_a_runtime_stays_replaced(path: Path) -> None:
    before = (cuda.runtime, cuda.runtime.load, cuda.runtime.bind)
    walk(path, CALLS[:1], each_kernel=True)
    assert (cuda.runtime, cuda.runtime.load, cuda.runtime.bind) == before
    assert "benchmarks.smoke" in sys.modules
