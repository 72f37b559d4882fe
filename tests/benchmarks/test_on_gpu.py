"""The run on a GPU, tested without one: its steps, its last page, and its parts that need no device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import constants, environment, last_page, learn, on_gpu, supervision
from benchmarks.progress import Rows, read
from benchmarks.supervision import Outcome, Step
from gpuconv.cuda.build import nvrtc
from gpuconv.cuda.call import device
from tests.harness import cuda_device

pytestmark = pytest.mark.slow

without_gpu = pytest.mark.skipif(cuda_device.hardware(), reason="there is a GPU")
Visited = Callable[..., tuple[int, list[str]]]


# ---------------------------------------------------------------- the command


@pytest.fixture
def visited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visited:
    """Run the command with steps whose results the test sets; return its status, and the steps that ran."""
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(on_gpu, "find_sanitizer", lambda: "compute-sanitizer")

    def run(
        ends: dict[str, str], *argv: str, rows: Callable[[Step, Path], None] | None = None
    ) -> tuple[int, list[str]]:
        ran: list[str] = []

        def supervise(step: Step, path: Path, log: Path, deadline: float, extra: Any) -> Outcome:
            ran.append(step.name)
            if rows is not None:
                rows(step, path)
            return Outcome(step.name, ends.get(step.name, "passed"), 1.5)

        monkeypatch.setattr(on_gpu, "supervise", supervise)
        return on_gpu.main(list(argv)), ran

    return run


def test_the_steps_that_say_most_come_first(visited: Visited) -> None:
    code, ran = visited({}, "--pack", "kernels.pack")
    assert code == 0
    assert ran[:7] == ["environment", "probes", "smoke", "sweep", "constants", "layers", "chained"]
    assert set(ran[7:]) == {"streams", "random", "cases", "memcheck", "racecheck", "large", "all layers"}
    assert visited({})[1][:2] == ["environment", "kernels"]  # which are compiled if none were copied to the machine


def test_a_later_command_goes_on_where_the_last_one_stopped(visited: Visited, tmp_path: Path) -> None:
    first = visited({"smoke": "failed", "sweep": "out of time", "layers": "hung"})[1]
    code, ran = visited({}, "--from", str(tmp_path))
    assert (code, ran) == (1, ["sweep", "layers"])  # smoke still failed
    assert visited({}, "--from", str(tmp_path))[1] == []
    assert visited({})[1] == first  # which starts from the beginning


def test_results_of_another_folder_are_taken_over(
    visited: Visited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visited({"probes": "out of time"})
    other = tmp_path / "other"
    monkeypatch.setenv("OUT", str(other))
    assert visited({}, "--from", str(tmp_path))[1] == ["probes"]
    assert len(read(other / on_gpu.ROWS)) == len(read(tmp_path / on_gpu.ROWS)) + 1


def test_steps_are_chosen_and_left_out(visited: Visited) -> None:
    assert visited({}, "--only", "smoke", "sweep")[1] == ["smoke", "sweep"]
    assert "sweep" not in visited({}, "--skip", "sweep")[1]


def test_nothing_is_begun_without_time(visited: Visited, capsys: pytest.CaptureFixture[str]) -> None:
    assert visited({}, "--seconds", "1") == (0, [])
    assert "not run" in capsys.readouterr().out


def test_without_a_sanitizer_its_steps_cost_a_line(
    visited: Visited, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_gpu, "find_sanitizer", lambda: None)
    code, ran = visited({})
    assert code == 0
    assert not {"memcheck", "racecheck"} & set(ran)
    assert "compute-sanitizer is not installed here" in capsys.readouterr().out


def test_what_a_step_found_wrong_decides(visited: Visited) -> None:
    def rows(step: Step, path: Path) -> None:
        if step.name == "smoke":
            found = Rows(path, step.name)
            for name in found.left(["conv float16 0"]):
                found.end(name, "failed", detail="result 0: 3 of 40 elements")

    assert visited({"smoke": "failed"}, rows=rows)[0] == 1
    assert visited({"random": "failed"})[0] == 1


@pytest.mark.parametrize("packed", [False, True])
def test_every_step_names_its_rows_and_runs_by_this_interpreter(
    tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_gpu, "find_sanitizer", lambda: "compute-sanitizer")
    found = on_gpu.steps(tmp_path, packed)
    assert len({step.name for step in found}) == len(found)
    for step in found:
        assert sys.executable in step.command
        if step.name != "kernels":
            words = step.command[step.command.index("--rows") :]
            assert words[:4] == ("--rows", str(tmp_path / on_gpu.ROWS), "--step", step.of or step.name)
    assert not any(step.dumps for step in found if step.name in ("sweep", "constants", "layers", "all layers"))


def test_on_the_emulated_device_steps_are_small_and_need_no_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_gpu, "find_sanitizer", lambda: "compute-sanitizer")
    usual = {step.name: step for step in on_gpu.steps(tmp_path)}
    monkeypatch.setenv("EMULATED_CUDA", "1")
    found = {step.name: step for step in on_gpu.steps(tmp_path)}
    assert list(found) == list(usual)
    assert {name for name, step in found.items() if not step.command} == {"memcheck", "racecheck"}
    modules = {name: step.command[2] for name, step in found.items() if step.command}
    assert modules.pop("kernels") == "gpuconv"  # which compiles for hardware: PTX must not be where its cubins are kept
    assert {name for name, module in modules.items() if module == "pytest"} == {"streams", "random", "cases", "large"}
    assert set(modules.values()) == {"pytest", "benchmarks.emulated"}


def test_emulated_results_are_marked_and_never_mixed_with_others(
    visited: Visited, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMULATED_CUDA", "1")
    visited({})
    assert all(line["emulated"] for line in read(tmp_path / on_gpu.ROWS))
    assert "EMULATED: no time and no rate here is a measurement." in capsys.readouterr().out
    visited({}, "--from", str(tmp_path))
    monkeypatch.setenv("EMULATED_CUDA", "0")
    with pytest.raises(SystemExit, match="2"):
        visited({}, "--from", str(tmp_path))
    assert "has results of the emulated device" in capsys.readouterr().err
    visited({})
    assert not any("emulated" in line for line in read(tmp_path / on_gpu.ROWS))
    assert "EMULATED" not in capsys.readouterr().out


def visit(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a small version of the command on the emulated device; random tests are short in a thorough run, too."""
    usual = {name: value for name, value in os.environ.items() if name != "GPUCONV_PROFILE"}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.on_gpu", "--seconds", "500", *words],
        capture_output=True, text=True, check=False, cwd=supervision.ROOT, timeout=550,
        env={**usual, "OUT": str(folder), "EMULATED_CUDA": "1", **variables},
    )  # fmt: skip


@pytest.mark.emulator
@pytest.mark.thorough
def test_the_whole_visit_runs_on_the_emulated_device(tmp_path: Path) -> None:
    result = visit(tmp_path)
    lines = read(tmp_path / on_gpu.ROWS)
    ended = {line["row"]: line["status"] for line in lines if line["step"] == last_page.STEPS}
    absent = {"memcheck", "racecheck"}
    assert ended == {step.name: "not run" if step.name in absent else "passed" for step in on_gpu.steps(tmp_path)}
    assert (result.returncode, "NOTHING IS WRONG" in result.stdout) == (0, True), result.stdout
    assert all(line["emulated"] for line in lines)
    assert learn.main([str(tmp_path / on_gpu.ROWS)]) == 2


@pytest.mark.emulator
@pytest.mark.thorough
def test_kernels_that_cost_processes_their_device_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    limits = {"EMULATED_CUDA_STICKY_ERRORS": "1", "EMULATED_CUDA_MAX_STEPS": "3000"}  # like a GPU's timeout
    result = visit(tmp_path, "--only", "probes", "sweep", **limits)
    lines = {line["row"]: line for line in read(tmp_path / on_gpu.ROWS) if line["step"] != last_page.STEPS}
    died = {row for row, line in lines.items() if line["status"] == "died"}
    assert result.returncode == 1
    assert {line["status"] for line in lines.values()} == {"passed", "died"}
    assert all("cudaErrorLaunchTimeout: " in lines[row]["detail"] for row in died)
    assert len(died) > 2
    assert all(words in result.stdout for words in ("died in probes", "died in sweep"))


@without_gpu
@pytest.mark.parametrize("name", ["smoke", "constants", "layers", "sweep", "probes", "chained"])
def test_a_step_without_a_gpu_says_so_in_one_line(name: str, tmp_path: Path) -> None:
    step = next(step for step in on_gpu.steps(tmp_path) if step.name == name)
    result = subprocess.run(step.command, capture_output=True, text=True, check=False, cwd=supervision.ROOT)
    assert result.returncode == 2
    assert "no GPU to " in result.stderr
    assert result.stderr.count("\n") == 1


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


# ---------------------------------------------------------------- the last page


def page(path: Path, *lines: dict[str, Any]) -> last_page.Page:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return last_page.of(path, path.parent)


def test_the_page_says_first_what_is_wrong(tmp_path: Path) -> None:
    found = page(
        tmp_path / "rows.jsonl",
        {"step": "environment", "row": "device", "status": "passed", "value": "NVIDIA H200"},
        {"step": "smoke", "row": "conv float16 0", "status": "begun"},
        {"step": "smoke", "row": "conv float16 0", "status": "failed", "detail": "3 of 40 elements"},
        {"step": "smoke", "row": "conv float16 1", "status": "hung", "detail": "kernel at line 42"},
        {"step": "smoke", "row": "conv float16 2", "status": "passed"},
        {"step": "steps", "row": "smoke", "status": "failed", "seconds": 12.0, "detail": "1 rows hung or died"},
        {"step": "steps", "row": "streams", "status": "hung", "seconds": 25.0, "detail": "in no row"},
    )
    lines = found.text.splitlines()
    assert found.wrong
    assert lines[:4] == [
        "WRONG: 1 failed in smoke, 1 hung in smoke",
        "STEP streams hung: in no row",
        "HUNG smoke: conv float16 1: kernel at line 42",
        "FAILED smoke: conv float16 0: 3 of 40 elements",
    ]
    assert "smoke        failed         12.0 s  1 failed, 1 hung, 1 passed" in lines
    assert lines[-4:] == ["-- environment", "device: NVIDIA H200", "", f"everything is in {tmp_path}"]


def test_rows_that_are_wrong_alike_are_one_line(tmp_path: Path) -> None:
    wrong = [{"step": "cases", "row": f"test {n}", "status": "failed", "detail": "no memory"} for n in range(40)]
    lines = page(tmp_path / "rows.jsonl", *wrong).text.splitlines()
    assert lines[:3] == ["WRONG: 40 failed in cases", "FAILED cases: test 0 and 39 more: no memory", ""]


def test_without_a_device_nothing_else_is_tried(visited: Visited) -> None:
    assert visited({"environment": "failed"}) == (1, ["environment"])


def test_a_row_that_was_mended_is_not_wrong_any_more(tmp_path: Path) -> None:
    row = {"step": "random", "row": "test", "status": "failed"}
    found = page(tmp_path / "rows.jsonl", row, {**row, "status": "passed"})
    assert (found.wrong, found.text.splitlines()[0]) == (False, "NOTHING IS WRONG in what was run.")


def test_the_page_stays_below_its_limit_and_keeps_something_of_everything(tmp_path: Path) -> None:
    wrong = [{"step": "smoke", "row": f"row {n}", "status": "failed", "detail": f"{n} {'x' * 500}"} for n in range(300)]
    values = [{"step": "environment", "row": f"item {n}", "status": "passed", "value": "y" * 300} for n in range(60)]
    constants = [{"step": "constants", "row": "copy", "status": "passed", "value": "3.05 TB/s"}]
    found = page(tmp_path / "rows.jsonl", *wrong, *values, *constants)
    assert len(found.text) <= last_page.LARGEST
    assert "... and 276 more" in found.text
    assert "copy: 3.05 TB/s" in found.text


# ---------------------------------------------------------------- the environment and the constants


def test_the_environment_is_a_row_each_whatever_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["environment", "--rows", str(path)])
    code = environment.main()
    rows = Rows(path, "environment").ended
    assert list(rows) == list(environment.ITEMS)
    assert code == int(device.unavailable_reason() is not None)
    assert rows["device"]["status"] == ("failed" if code else "passed")
    assert rows["python"]["value"].endswith(sys.executable)
    assert "pytest-xdist 3." in capsys.readouterr().out


@pytest.mark.emulator
def test_the_constants_kernels_do_the_work_that_is_counted() -> None:
    ptx, _ = nvrtc.build("constants", constants.SOURCE.read_text(), "compute_90a", ("-std=c++17",))
    bodies = {part.split("(", 1)[0].strip(): part for part in ptx.decode().split(".visible .entry ")[1:]}
    counted = {
        "ffma": ("fma.rn.f32", constants.FFMA / 2),
        "mma_bfloat16": ("mma.sync.aligned.m16n8k16", constants.MMA["bfloat16"] / (2 * 16 * 8 * 16)),
        "mma_tf32": ("mma.sync.aligned.m16n8k8", constants.MMA["tf32"] / (2 * 16 * 8 * 8)),
        "wgmma_bfloat16": ("wgmma.mma_async.sync.aligned.m64n256k16", constants.WGMMA / (2 * 64 * 256 * 16)),
    }
    for kernel, (instruction, each_round) in counted.items():
        # Loops may be unrolled by a power of two, followed by the remaining iterations.
        found = bodies[kernel].count(instruction)
        assert found > 0
        assert found % each_round == 0, (kernel, found, each_round)


class Made:
    """A bench whose items return the values that the test sets."""

    architecture, multiprocessors = "sm_80", 100


def test_constants_are_written_with_units_and_those_without_a_device_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(bench: Any) -> float:
        raise RuntimeError("it does not run")

    items = {
        "clock": (lambda bench: 2e9, 1e9, "GHz"),
        "copy": (fails, 1e12, "TB/s"),
        "L2 reads": (lambda bench: 6.4e12, 1e12, "TB/s"),
        "wgmma bfloat16": (fails, 1e12, "TFLOP/s"),
    }
    monkeypatch.setattr(constants, "ITEMS", items)
    rows = Rows(tmp_path / "rows.jsonl", "constants")
    assert constants.measure(Made(), rows)  # type: ignore[arg-type]
    assert [(line["status"], line.get("value", line.get("detail"))) for line in rows.ended.values()] == [
        ("passed", "2 GHz"),
        ("failed", "RuntimeError: it does not run"),
        ("passed", "6.4 TB/s, 32.0 bytes per multiprocessor and clock"),
        ("skipped", "sm_80 has no wgmma"),
    ]


# ---------------------------------------------------------------- tests as rows

TESTS = """
import pytest

def test_good(): pass
def test_bad(): assert 1 == 2, "one is not two"
@pytest.mark.skip(reason="not here")
def test_left(): pass
@pytest.fixture
def broken(): raise RuntimeError("no fixture")
def test_broken(broken): pass
"""


@pytest.mark.parametrize("jobs", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "two processes"])
def test_every_test_is_a_row_and_ends_once(tmp_path: Path, jobs: tuple[str, ...]) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    rows = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.pytest_rows", "--rows", str(rows), *jobs]
    command += ["--step", "streams", "-p", "no:cacheprovider", "test_some.py"]
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # importing other plugins takes longer than the rest
    environment = supervision.environment_of(dict(os.environ), alone)

    def run() -> int:
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode

    assert run() == 1
    ended = Rows(rows, "streams").ended
    assert {name.partition("::")[2]: (line["status"], line["detail"]) for name, line in ended.items()} == {
        "test_good": ("passed", ""),
        "test_bad": ("failed", "AssertionError: one is not two"),
        "test_left": ("skipped", ""),
        "test_broken": ("failed", "RuntimeError: no fixture"),
    }
    count = len(read(rows))
    assert run() == 0  # nothing is left to do
    assert len(read(rows)) == count
