"""What runs everything on a GPU in one go, with commands that need none; the small problems for compute-sanitizer."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
from emulator import emulated_cuda

from benchmarks import on_gpu, small_shapes
from benchmarks.on_gpu import Visit
from gpuconv.cuda import choice, device, params, prepared, variants
from gpuconv.cuda.choice import Candidate
from gpuconv.cuda.plan import Plan

REPORT = """<?xml version="1.0"?><testsuites><testsuite name="pytest" tests="4" failures="1" errors="1" skipped="1">
<testcase classname="a" name="test_good"/><testcase classname="a" name="test_left"><skipped message="no"/></testcase>
<testcase classname="a" name="test_bad"><failure message="assert 1 == 2&#10;more">text</failure></testcase>
<testcase classname="a" name="test_broken"><error message="fixture">text</error></testcase></testsuite></testsuites>"""


@pytest.fixture
def visit(tmp_path: Path) -> Visit:
    return Visit(time.monotonic() + 60, tmp_path / "on_gpu.log")


def test_a_command_s_output_code_and_time_are_kept(visit: Visit) -> None:
    program = "import os, sys; print(os.environ['GPUCONV_REQUIRE_GPU'], os.getcwd()); sys.exit(4)"
    code, text, seconds = visit.call([sys.executable, "-c", program], 20)
    assert (code, text) == (4, f"1 {on_gpu.ROOT}\n")
    assert 0 < seconds < 20
    assert text in visit.log.read_text()
    assert [on_gpu.status(code), on_gpu.status(0), on_gpu.status(None)] == ["failed", "passed", "timed out"]


def test_a_command_is_ended_at_its_limit_with_those_it_started(visit: Visit, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = (
        "import subprocess, sys, time; print('before', flush=True);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        f"open({str(pid)!r}, 'w').write(str(child.pid)); time.sleep(60)"
    )
    code, text, seconds = visit.call([sys.executable, "-c", program], 3)
    assert (code, text) == (None, "before\n")
    assert seconds < 10
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and alive(int(pid.read_text())):
        time.sleep(0.05)
    assert not alive(int(pid.read_text()))


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_pytest_s_report_is_read(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(REPORT)
    detail, failures = on_gpu.junit(tmp_path / "junit.xml")
    assert detail == "1 passed, 2 failed, 1 skipped"
    assert failures == ["test_bad: assert 1 == 2", "test_broken: fixture"]
    assert on_gpu.junit(tmp_path / "absent.xml") == ("", [])


def test_the_sanitizer_is_found_on_the_path_or_in_cuda_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    tool = tmp_path / "cuda" / "bin" / "compute-sanitizer"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert on_gpu.find_sanitizer() == str(tool)
    monkeypatch.setenv("PATH", str(tool.parent))
    monkeypatch.delenv("CUDA_HOME")
    assert on_gpu.find_sanitizer() == str(tool)


@pytest.fixture
def visited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[list[str]], Any]]:
    """Run everything with commands that return what the test says, by a word in them; code, commands, outcomes."""
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(on_gpu, "find_sanitizer", lambda: "compute-sanitizer")
    commands: list[list[str]] = []

    def run(answers: dict[str, list[int | None]], *argv: str) -> tuple[int, list[list[str]], Any]:
        def call(self: Visit, command: list[str], limit: float) -> tuple[int | None, str, float]:
            commands.append(command)
            left = next((codes for word, codes in answers.items() if word in " ".join(command)), [])
            return (left.pop(0) if left else 0), "first\nlast\n", 1.0

        monkeypatch.setattr(Visit, "call", call)
        code = on_gpu.main(list(argv))
        return code, commands, json.loads((tmp_path / "on_gpu.json").read_text())

    return run


def test_every_part_runs_and_the_table_is_written(visited: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, commands, outcomes = visited({})
    assert code == 0
    assert [outcome["part"] for outcome in outcomes if outcome["part"] != "tests"] == [
        "compile",
        *["sanitizer"] * 3,
        "layers",
        "host",
    ]
    files = {path.stem for path in Path(__file__).parent.glob("test_gpu_*.py")}
    assert {outcome["name"] for outcome in outcomes if outcome["part"] == "tests"} == files
    assert {outcome["status"] for outcome in outcomes} == {"passed"}
    assert [command[command.index("--tool") + 1] for command in commands if "--tool" in command] == list(on_gpu._TOOLS)
    assert "sanitizer  racecheck" in capsys.readouterr().out


def test_parts_run_after_one_that_failed(visited: Any) -> None:
    code, _, outcomes = visited({"test_gpu_cases": [1], "memcheck": [None]})
    assert code == 1
    bad = {outcome["name"]: outcome["status"] for outcome in outcomes if outcome["status"] != "passed"}
    assert bad == {"test_gpu_cases": "failed", "memcheck": "timed out"}
    assert outcomes[-1]["part"] == "host"


def test_layers_go_on_in_a_new_process_where_one_lost_the_device(visited: Any) -> None:
    code, commands, outcomes = visited({"benchmarks gpu": [3, -11, 0]}, "--skip", "tests", "sanitizer")
    layers = [command for command in commands if "gpu" in command]
    assert [("--resume" in command) for command in layers] == [False, True, True]
    assert [o["status"] for o in outcomes if o["part"] == "layers"] == ["failed", "failed", "passed"]
    assert code == 1


def test_nothing_is_begun_without_time(visited: Any) -> None:
    code, commands, outcomes = visited({}, "--seconds", "1", "--skip", "compile")
    assert (code, commands) == (0, [])
    assert {outcome["status"] for outcome in outcomes} == {"not run"}


def test_the_host_s_time_does_not_decide(visited: Any) -> None:
    assert visited({"benchmarks host": [1]}, "--skip", "tests")[0] == 0


# ---------------------------------------------------------------- the small problems


class Planned:
    """In the place of a prepared call: its launches are noted, and its results are zeros."""

    launched: ClassVar[set[str]] = set()

    def __init__(self, runtime: Any, device: int, plan: Plan, inputs: Any, roles: Any, results: Any, outs: Any) -> None:
        self.launched.update(launch.variant.name for launch in plan.launches)
        self._results = results

    def run(self, inputs: Any, outs: Any) -> list[Any]:
        return [np.zeros(result.shape, result.dtype) for result in self._results]


def test_the_small_problems_use_every_kernel_of_up_to_three_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "Prepared", Planned)
    monkeypatch.setattr(Planned, "launched", set())

    def every_one(candidates: Sequence[Candidate]) -> Candidate:
        """Note what each candidate launches, which small_shapes lets have its turn, and pick the first."""
        for candidate in candidates:
            Planned.launched.update(launch.variant.name for launch in candidate.make().launches)
        return candidates[0]

    for problem, dtype, wide in small_shapes.calls():
        arrays = small_shapes.operands(problem, dtype)
        limit = mock.patch.object(params, "INDEX_LIMIT", 1 if wide else params.INDEX_LIMIT)
        with limit, choice.picking(every_one), emulated_cuda():
            small_shapes.compute(problem, arrays)
    known = {variant.name for variant in variants.all_variants()}
    assert {name for name in known if "_4d" not in name} <= Planned.launched <= known


def test_the_small_problems_are_right_on_the_cpu_and_small() -> None:
    for problem in (*small_shapes.PROBLEMS, *small_shapes.GRADIENTS):
        results = small_shapes.compute(problem, small_shapes.operands(problem, "float32"))
        assert all(result.size and result.nbytes < 20e6 for result in results)
        if problem.operator != "max_pool":  # whose windows without any element depend on the dtype
            exact = small_shapes.compute(problem, small_shapes.operands(problem, "float64"))
            assert all((result == value).all() for result, value in zip(results, exact, strict=True))


@pytest.mark.skipif(device.unavailable_reason() is None, reason="there is a GPU")
def test_without_a_gpu_the_small_problems_say_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["small_shapes"])
    assert small_shapes.main() == 2
    assert capsys.readouterr().err.startswith("small_shapes: no GPU to run on: ")
    assert os.environ.get("GPUCONV_REQUIRE_GPU") != "1"
