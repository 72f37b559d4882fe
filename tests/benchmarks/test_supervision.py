"""Steps in separate processes: one that hangs, dies or loses its device is skipped, and the next ones run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import supervision
from benchmarks.progress import Rows, read
from benchmarks.supervision import Step, environment_of, supervise

pytestmark = pytest.mark.slow

# A step of five rows, some of which fail.
WORKER = """
import os, sys, time
from pathlib import Path
from benchmarks.progress import Rows

rows = Rows(Path(sys.argv[1]), "worker")
what = dict(word.split("=") for word in sys.argv[2:])
for name in rows.left("abcde"):
    print("at", name)
    how = what.get(name)
    if how == "hangs":
        print("two lines")
        time.sleep(600)
    if how == "killed":
        os.kill(os.getpid(), 9)
    if how == "raises":
        raise ValueError("of a row")
    if how == "lacks":
        sys.exit(4)
    if how == "loses":
        rows.end(name, "failed", detail="an illegal access")
        sys.exit(3)
    if how == "slow":
        for _ in range(15):
            time.sleep(0.2)
            print("still here")
    rows.end(name, "failed" if how == "wrong" else "passed")
sys.exit(any(line["status"] != "passed" for line in rows.ended.values()))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def run(path: Path, *what: str, seconds: float = 60.0, quiet: float = 1.5) -> supervision.Outcome:
    command = (sys.executable, "-c", WORKER, str(path), *what)
    step = Step("worker", command, seconds, quiet=quiet, waking=20.0)
    return supervise(step, path, path.with_name("log"), time.monotonic() + 60)


def ends(path: Path) -> dict[str, str]:
    return {line["row"]: line["status"] for line in read(path) if line["status"] != "begun"}


def test_a_step_without_trouble(path: Path) -> None:
    outcome = run(path)
    assert (outcome.status, outcome.detail) == ("passed", "at d | at e")
    assert ends(path) == dict.fromkeys("abcde", "passed")
    assert "at a\nat b\n" in path.with_name("log").read_text()


def test_a_step_that_lacks_a_library_is_not_run(path: Path) -> None:
    assert run(path, "a=lacks").status == "not run"
    assert run(path).status == "passed"  # later, when one exists


@pytest.mark.parametrize(("code", "said"), [(supervision.LOST, "said\n"), (1, "said\nof a destructor\n")])
def test_who_has_lost_its_device_ends_without_destructors(code: int, said: str) -> None:
    program = "import atexit; from benchmarks.supervision import leave; atexit.register(print, 'of a destructor')"
    command = [sys.executable, "-c", f"{program}; print('said'); leave({code})"]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment_of(dict(os.environ), {})
    )
    assert (result.returncode, result.stdout) == (code, said)


def test_a_row_that_prints_two_lines_and_hangs_is_left_behind(path: Path) -> None:
    start = time.monotonic()
    outcome = run(path, "b=hangs")
    assert (outcome.status, outcome.detail) == ("failed", "1 rows hung or died")
    assert ends(path) == {**dict.fromkeys("abcde", "passed"), "b": "hung"}
    assert next(line["detail"] for line in read(path) if line["status"] == "hung") == "at b | two lines"
    assert time.monotonic() - start < 30


def test_what_makes_progress_slowly_does_not_hang(path: Path) -> None:
    assert run(path, "c=slow").status == "passed"


def test_rows_in_which_a_process_was_lost_are_left_behind(path: Path) -> None:
    outcome = run(path, "a=killed", "c=raises", "e=loses")
    assert outcome.status == "failed"
    assert ends(path) == {"a": "died", "b": "passed", "c": "died", "d": "passed", "e": "failed"}
    assert "ValueError: of a row" in next(
        line["detail"] for line in read(path) if line["row"] == "c" and "detail" in line
    )


def test_a_wrong_row_is_no_reason_to_run_again(path: Path) -> None:
    assert run(path, "b=wrong").status == "failed"
    assert [line["row"] for line in read(path) if line["status"] == "begun"] == list("abcde")


def test_out_of_time_the_rest_is_for_a_later_command(path: Path) -> None:
    assert run(path, "c=hangs", seconds=3.0, quiet=60.0).status == "out of time"
    assert ends(path) == {"a": "passed", "b": "passed"}
    assert run(path).status == "passed"
    assert ends(path) == dict.fromkeys("abcde", "passed")


def test_a_step_that_does_not_begin_any_row_is_given_up(path: Path) -> None:
    step = Step("worker", (sys.executable, "-c", "raise SystemExit('no such library')"), 20)
    outcome = supervise(step, path, path.with_name("log"), time.monotonic() + 20)
    assert (outcome.status, outcome.detail) == ("failed", "no such library")
    silent = Step("worker", (sys.executable, "-c", "import time; time.sleep(600)"), 20, quiet=0.5, waking=1.0)
    outcome = supervise(silent, path, path.with_name("log"), time.monotonic() + 20)
    assert (outcome.status, outcome.detail[:11]) == ("hung", "in no row: ")


def test_what_a_process_has_started_ends_with_it(path: Path, tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time; print('before', flush=True);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); time.sleep(600)"
    )
    step = Step("worker", (sys.executable, "-c", program), 3)
    assert supervise(step, path, path.with_name("log"), time.monotonic() + 20).status == "out of time"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _is_alive(int((tmp_path / "pid").read_text())):
        time.sleep(0.05)
    assert not _is_alive(int((tmp_path / "pid").read_text()))


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_checkout_stands_before_what_pythonpath_has() -> None:
    assert environment_of({"PYTHONPATH": "/a:/b"}, {"X": "1"}) == {
        "PYTHONPATH": f"{supervision.ROOT}:/a:/b",
        "PYTHONUNBUFFERED": "1",
        "GPUCONV_REQUIRE_GPU": "1",
        "X": "1",
    }
    assert environment_of({}, {})["PYTHONPATH"] == str(supervision.ROOT)


# Simulates a hung kernel: the driver makes the pipe that the variable names, and writes the dump on request.
IN_THE_DRIVER = """
import os, sys, time
from pathlib import Path
from benchmarks.progress import Rows

pipe = os.environ["CUDA_COREDUMP_PIPE"].replace("%p", str(os.getpid()))
os.mkfifo(pipe)
for name in Rows(Path(sys.argv[1]), "worker").left("a"):
    print("kernel that waits", flush=True)
    with open(pipe, "rb") as asked:
        asked.read(1)
    Path(os.environ["CUDA_COREDUMP_FILE"].replace("%p", str(os.getpid()))).write_bytes(b"dump")
    time.sleep(600)
"""


@pytest.mark.parametrize("tool", ["cuda-gdb", None])
def test_cuda_gdb_says_where_a_kernel_waits(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    if tool:
        (folder / tool).write_text(
            '#!/bin/sh\necho "$3" | grep -q "target cudacore .*core" && echo "warps at line 42"\n'
        )
        (folder / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}" if tool else str(folder))
    step = Step("worker", (sys.executable, "-c", IN_THE_DRIVER, str(path)), 60, quiet=1.0, dumps=True)
    supervise(step, path, path.with_name("log"), time.monotonic() + 60)
    detail = Rows(path, "worker").ended["a"]["detail"]
    assert detail == (
        "kernel that waits (warps at line 42)" if tool else f"kernel that waits ({supervision.NO_DEBUGGER})"
    )
