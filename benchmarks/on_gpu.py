"""Check and measure everything on a GPU, in commands of a few minutes that each continue where the last one stopped.

    python -m benchmarks.on_gpu --pack kernels.pack                 # the most important steps first, as time allows
    python -m benchmarks.on_gpu --pack kernels.pack --from FOLDER   # continue with the results in FOLDER

    EMULATED_CUDA=1 python -m benchmarks.on_gpu                     # all steps, shortened, on the emulated device

Each step runs in a process of its own. A process that makes no progress (by default for 25 seconds) is killed, its row
is recorded as hung, and the step continues with the next row. Results are written at once, to rows.jsonl and on_gpu.log
in the folder $OUT or benchmarks/results. The final report lists errors first. The steps, in their order:

"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from benchmarks import last_page
from benchmarks.progress import Rows, emulated, read
from benchmarks.supervision import Outcome, Step, interpreter, supervise

ROWS, LOG, BITS = "rows.jsonl", "on_gpu.log", "bits.npz"
_MIN_SECONDS = 5.0  # no step is started with less than this many seconds left
_ERRORS_FOUND = 9  # exit code by which compute-sanitizer reports errors
_STREAMS = ("gpu/test_streams", "gpu/test_memory", "gpu/test_interchange")  # test modules
_NO_SANITIZER = "compute-sanitizer is not installed here"
# On the emulated device, which is slow: options that shorten the steps, and steps that need hardware.
_SMALL = {
    "kernels": ("--arch", "sm_90a", "--filter", "max_pool_float32_3d_vectors_3x"),
    "probes": ("--share", "2000"),
    "smoke": ("--most", "5", "--repeats", "2"),
    "sweep": ("--layers", "resnet50.conv1", "--most", "1", "--work", "1e5"),
    "constants": ("--share", "4000"),
    "layers": ("--most", "1", "--work", "1e5"),
    "chained": ("--layers", "resnet50.l4.3x3", "--most", "2", "--work", "1e5"),
    "streams": ("--most", "3"),
    "random": ("--most", "2"),
    "cases": ("--most", "4"),
    "large": ("--most", "1"),
    "all layers": ("--most", "4", "--work", "1e5"),
}
_NEEDS_HARDWARE = dict.fromkeys(("memcheck", "racecheck"), "compute-sanitizer needs a real GPU")
_EMULATED = {"GPUCONV_REQUIRE_GPU": "0", "GPUCONV_REQUIRE_EMULATOR": "1"}
_CASES = ("cuda/test_cases", "cpu/test_gradients", "gpu/test_tools", "gpu/test_models")


def main(argv: list[str] | None = None) -> int:
    """Run the remaining steps; return 1 if anything was wrong, in this command or in those it continues."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.begun is not None and (what := _other_device(arguments.begun)):
        parser.error(what)
    deadline = time.monotonic() + arguments.seconds
    folder = _folder(arguments.begun)
    path = folder / ROWS
    own = Rows(path, last_page.STEPS)
    extra = {"GPUCONV_PACK": str(arguments.pack.resolve())} if arguments.pack else {}
    extra |= _EMULATED if emulated() else {}
    for step in steps(folder, packed=bool(arguments.pack)):
        if step.name in arguments.skip or (arguments.only and step.name not in arguments.only):
            continue
        if own.ended.get(step.name, {}).get("status") in ("passed", "failed"):
            continue
        outcome = _outcome(step, path, folder / LOG, deadline, extra)
        print(last_page.step_line(outcome), flush=True)
        own.end(outcome.step, outcome.status, seconds=round(outcome.seconds, 1), detail=outcome.detail)
        if outcome.step == "environment" and outcome.status == "failed":
            break  # CuPy finds no usable device
    page = last_page.of(path, folder)
    print(page.text)
    return int(page.wrong)


def _outcome(step: Step, path: Path, log: Path, deadline: float, extra: dict[str, str]) -> Outcome:
    if deadline - time.monotonic() < _MIN_SECONDS:
        return Outcome(step.name, "not run", 0.0, "no time was left")
    if not step.command:
        return Outcome(step.name, "not run", 0.0, step.why)
    return supervise(step, path, log, deadline, extra)


def _other_device(begun: Path) -> str:
    """Return why ``begun`` cannot be continued, or "": emulated results and a GPU's are never mixed."""
    of_emulator = any(line.get("emulated", False) for line in read(begun / ROWS))
    if of_emulator == emulated() or not (begun / ROWS).exists():
        return ""
    return f"{begun} has results of {'the emulated device' if of_emulator else 'a GPU'}; go on with them there"


def _folder(begun: Path | None) -> Path:
    """Return the folder for results, and copy the results of an earlier command there."""
    folder = Path(os.environ["OUT"]) if os.environ.get("OUT") else Path(__file__).parent / "results"
    folder.mkdir(parents=True, exist_ok=True)
    if begun is None:
        for name in (ROWS, LOG, BITS):
            (folder / name).unlink(missing_ok=True)
    elif begun.resolve() != folder.resolve():
        for name in (ROWS, LOG, BITS):
            if (begun / name).exists():
                shutil.copyfile(begun / name, folder / name)
    return folder


def steps(folder: Path, packed: bool = False) -> list[Step]:
    """Return all steps in order; one that cannot run here has no command."""
    found = _steps(folder, packed)
    return [_shortened(step) for step in found] if emulated() else found


def _shortened(step: Step) -> Step:
    """Return a step shortened for the emulated device, with generous time limits."""
    if step.name in _NEEDS_HARDWARE:
        return replace(step, command=(), why=_NEEDS_HARDWARE[step.name])
    python, option, module, *words = step.command
    # Tests install the emulated device themselves; `gpuconv compile` needs no device.
    runner = ("benchmarks.emulated",) if module.partition(".")[0] == "benchmarks" else ()
    command = (python, option, *runner, module, *words, *_SMALL.get(step.name, ()))
    return replace(step, command=command, seconds=max(step.seconds, 240), quiet=120, waking=240)


def _steps(folder: Path, packed: bool) -> list[Step]:
    rows = str(folder / ROWS)

    def module(name: str, words: tuple[str, ...], seconds: float, dumps: bool = False, of: str = "") -> Step:
        command = interpreter("-m", *words, "--rows", rows, "--step", of or name)
        return Step(name, command, seconds, of=of, dumps=dumps)

    jobs = str(os.cpu_count() or 1)
    compiling = Step("kernels", interpreter("-m", "gpuconv", "compile", "--jobs", jobs), 120, quiet=120, waking=120)
    return [
        module("environment", ("benchmarks.environment",), 60),
        *([] if packed else [compiling]),
        module("probes", ("benchmarks.probes", "--bits", str(folder / BITS)), 60, dumps=True),
        module("smoke", ("benchmarks.smoke", "--each-kernel", "--repeats", "20"), 100, dumps=True),
        module("sweep", ("benchmarks.sweep",), 140),
        module("constants", ("benchmarks.constants",), 45),
        module("layers", ("benchmarks", "gpu", "--most", "25"), 90),
        module("chained", ("benchmarks.chained",), 60),
        _tests("streams", rows, 60, *_STREAMS, jobs=0),
        _tests("random", rows, 90, "cuda/test_random", jobs=8),
        _tests("cases", rows, 240, *_CASES, jobs=8),
        _sanitized("memcheck", rows, 90, "--families", "wgmma", "split", "bands", "--dtypes", "bfloat16", "float32"),
        _sanitized("racecheck", rows, 60, "--families", "mma", "ffma", "--dtypes", "float16", "float32"),
        _tests("large", rows, 120, "gpu/test_large", jobs=0),
        module("all layers", ("benchmarks", "gpu", "--budget", "1200"), 1200, of="layers"),
    ]


def _tests(name: str, rows: str, seconds: float, *files: str, jobs: int) -> Step:
    """Return a step that runs test files in ``jobs`` processes (0: in one) on one GPU, with a time limit per test."""
    command = interpreter("-m", "pytest", "-q", "-m", "gpu", *(f"tests/{file}.py" for file in files))
    command += ("-p", "benchmarks.pytest_rows", "--rows", rows, "--step", name)
    command += ("-p", "no:cacheprovider", "-W", "default", "--maxfail=60")  # warnings of libraries are no errors here
    several = bool(jobs) and find_spec("xdist") is not None
    command += ("-n", str(min(jobs, 2) if emulated() else jobs), "--dist", "worksteal") if several else ()
    if several and find_spec("pytest_timeout") is not None:  # a hanging test must not hold up the other processes
        command += ("--timeout", "60", "--timeout-method", "thread")
    return Step(name, command, seconds, quiet=90 if several else 25, dumps=not several)


def _sanitized(name: str, rows: str, seconds: float, *words: str) -> Step:
    tool = find_sanitizer()
    if tool is None:
        return Step(name, (), seconds, why=_NO_SANITIZER)
    options = ["--tool", name, "--error-exitcode", str(_ERRORS_FOUND), "--print-limit", "20"]
    options += ["--report-api-errors", "no"] if name == "memcheck" else []  # CuPy tries calls that may fail
    inner = interpreter("-m", "benchmarks.smoke", "--each-kernel", *words, "--rows", rows, "--step", name)
    return Step(name, (tool, *options, *inner), seconds, quiet=60)


def find_sanitizer() -> str | None:
    """Return the path of compute-sanitizer: on PATH, in CUDA's folders, or in an NVIDIA package; None without it."""
    found = shutil.which("compute-sanitizer")
    if found is not None:
        return found
    return next((str(path) for path in _sanitizer_paths() if path.is_file() and os.access(path, os.X_OK)), None)


def _sanitizer_paths() -> Iterator[Path]:
    folders = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for folder in (*folders, Path("/usr/local/cuda")):
        yield from (folder / below / "compute-sanitizer" for below in ("bin", "compute-sanitizer"))
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    if packages.is_dir():
        yield from sorted(packages.rglob("compute-sanitizer"))


def _parser() -> argparse.ArgumentParser:
    named = [step.name for step in steps(Path())]
    text = f"{__doc__}    {', '.join(named)}"
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.on_gpu", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=570, help="time limit of this command (default %(default)s)")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="precompiled kernels: gpuconv compile --pack FILE")
    parser.add_argument(
        "--from", type=Path, dest="begun", metavar="FOLDER", help="continue an earlier command's results"
    )
    parser.add_argument("--only", nargs="+", choices=named, metavar="STEP", help="run only these steps")
    parser.add_argument("--skip", nargs="+", choices=named, metavar="STEP", default=[], help="skip these steps")
    return parser


if __name__ == "__main__":
    sys.exit(main())
