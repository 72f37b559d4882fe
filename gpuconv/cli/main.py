"""The command ``gpuconv``: parses arguments; runs info, check, run, explain, tune, compile, suite or judge."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any, NoReturn

import numpy as np

import gpuconv
from gpuconv._environment import chained_launches
from gpuconv._errors import printable
from gpuconv.cli import calls
from gpuconv.cli import check as _check
from gpuconv.cli import compile as _compile
from gpuconv.cli import judge as _judge
from gpuconv.cli import run as _run
from gpuconv.cli.terminal import CommandError, as_json, whole
from gpuconv.cuda.call import device

_FAILED = 2
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for failed checks, 2 for an error, 130 for Ctrl-C.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name; by default those of this process.
    """
    _escape_what_stdout_lacks()
    try:
        arguments, unknown = _parser().parse_known_args(argv)
        if unknown:
            name = arguments.COMMAND
            raise CommandError(f"{name}: there is no argument {' '.join(unknown)} (see gpuconv {name} --help)")
        code: int = arguments.command(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        _settle_stdout()
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED)
    except (CommandError, gpuconv.GpuconvError) as error:
        return _fail(str(error))
    except MemoryError as error:
        return _fail(f"not enough memory ({error})")
    except OSError as error:  # such as a full disk that stdout is redirected to
        return _fail(str(error))


def _escape_what_stdout_lacks() -> None:
    """Make stdout escape characters that its encoding lacks, as stderr does: models contain arbitrary names."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _fail(message: str, code: int = _FAILED) -> int:
    _settle_stdout()
    if sys.stderr is not None:
        print(f"gpuconv: error: {printable(message)}", file=sys.stderr)
    return code


def _settle_stdout() -> None:
    """Flush stdout; if that fails, redirect it to /dev/null, so that Python does not report the error again on exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, like those of the commands."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gpuconv", description=gpuconv.__doc__)
    parser.add_argument("--version", action="version", version=f"gpuconv {gpuconv.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="COMMAND")
    _add_info(commands)
    _add_check(commands)
    _add_run(commands)
    calls.add(commands)
    _add_compile(commands)
    _judge.add(commands, _seed, _positive)
    return parser


def _add_info(commands: Any) -> None:
    about = "Print the versions, devices, folders and limits that gpuconv uses, for example for a bug report."
    info = commands.add_parser("info", help="print versions, devices and limits", description=about)
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(command=_info)


def _add_check(commands: Any) -> None:
    about = "Run the named cases and ONNX's own tests, and compare the results with the expected ones."
    check = commands.add_parser("check", help="compare this installation with expected results", description=about)
    check.add_argument(
        "--backend", type=str.lower, choices=["cpu", "cuda"], help="check only this backend (default: all available)"
    )
    check.add_argument("--filter", default="", metavar="TEXT", help="run only checks whose name contains TEXT")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(command=_check.command)


def _add_run(commands: Any) -> None:
    about = "Run a model once and print its inputs, and dtype, shape and statistics of each output."
    run = commands.add_parser("run", help="run an ONNX model", description=about)
    run.add_argument(
        "model", metavar="MODEL", help="path, or onnx:NAME for one of the onnx package, such as onnx:light_resnet50"
    )
    run.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="read one input from a file; can be repeated (default: random values)",
    )
    run.add_argument("--output-dir", metavar="DIR", help="write each output to DIR/NAME.npy")
    run.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,320,320",
        help="shape of one random input; can be repeated (default: as declared, and 1 for undeclared extents)",
    )
    run.add_argument("--device", type=str.lower, choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    run.add_argument("--profile", action="store_true", help="print the time of every node")
    run.add_argument("--seed", type=_seed, default=0, metavar="N", help="seed of the random inputs (default: 0)")
    run.add_argument("--json", action="store_true", help="print JSON")
    run.add_argument(
        "--untrusted",
        action="store_true",
        help="parse, check and infer shapes of the model in a child process with limited time and memory first; "
        "the run itself is not limited",
    )
    run.set_defaults(command=_run.command)


def _add_compile(commands: Any) -> None:
    about = "Compile the CUDA kernels ahead of time, without a device. Kernels that are already cached are skipped."
    build = commands.add_parser("compile", help="compile the CUDA kernels ahead of time", description=about)
    build.add_argument(
        "--arch",
        default="",
        metavar="NAME,…",
        help="architectures, such as sm_80,sm_90a (default: the device's; without a device "
        "sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a)",
    )
    build.add_argument(
        "--output-dir", metavar="DIR", help="write to DIR, to be used as GPUCONV_CACHE_DIR (default: the cache folder)"
    )
    build.add_argument(
        "--pack", metavar="FILE", help="also write all kernels to one FILE, to be used as GPUCONV_PACK by any compiler"
    )
    build.add_argument("--filter", default="", metavar="TEXT", help="compile only kernels whose name contains TEXT")
    build.add_argument("-j", "--jobs", type=_positive, metavar="N", help="threads (default: one per processor)")
    build.set_defaults(command=_compile.command)


def _seed(text: str) -> int:
    return _whole(text, 0, "an integer of at least 0")


def _positive(text: str) -> int:
    return _whole(text, 1, "an integer of at least 1")


def _whole(text: str, least: int, what: str) -> int:
    try:
        number = whole(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return number


def _info(arguments: argparse.Namespace) -> int:
    lines = dict(_facts())
    if arguments.json:
        print(as_json(lines))
        return 0
    width = max(map(len, lines)) + 2
    for name, text in lines.items():
        print(f"{name + ':':{width}}{text}")
    return 0


def _facts() -> Iterator[tuple[str, str]]:
    from gpuconv.cpu import _threads, _workspace

    yield "gpuconv", gpuconv.__version__
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "NumPy", f"{np.__version__}, BLAS: {_blas()}"
    yield "CuPy", _version("cupy-cuda13x", "cupy-cuda12x", "cupy")
    yield "onnx", _version("onnx")
    yield "ml_dtypes", _version("ml_dtypes")
    yield "CPU threads", f"{_threads.count()} (GPUCONV_NUM_THREADS)"
    yield "CPU workspace", f"{_workspace.limit()} bytes at most (GPUCONV_WORKSPACE_BYTES)"
    reason = device.unavailable_reason()
    yield "CUDA device", "present" if reason is None else f"none: {reason}"
    yield "NVRTC", _nvrtc()
    yield "kernel cache", f"{_cache()} (GPUCONV_CACHE_DIR)"
    yield "packed kernels", f"{_packed()} (GPUCONV_PACK)"
    overlap = "may overlap" if chained_launches() else "follow each other"
    yield "launches", f"{overlap} (GPUCONV_CHAINED_LAUNCHES)"
    missing = _check.cuda_missing()
    yield "backends", "cpu, cuda" if missing is None else f"cpu (no cuda: {missing})"


def _cache() -> str:
    from gpuconv.cuda.build import cache

    folder = cache.folder()
    if folder is None:
        return "a temporary folder"
    reason = cache.distrust(folder)
    if reason is not None:
        return f"{folder}, not used, since {reason}; a temporary folder"
    return (
        str(folder) if cache.can_be_written(folder) else f"{folder}, not writable; a temporary folder for new kernels"
    )


def _packed() -> str:
    from gpuconv.cuda.build import pack

    path = pack.path()
    packed = None if path is None else pack.examined(path)
    if isinstance(packed, pack.Pack):
        architectures = ", ".join(sorted(packed.architectures))
        return f"{path}, {len(packed.kernels)} for {architectures}, by {packed.compiler.partition(',')[0]}"
    return "none" if path is None else f"{path}, not used, since {packed}"


def _nvrtc() -> str:
    from gpuconv.cuda.build import nvrtc

    try:
        return f"{nvrtc.version()}, headers in {nvrtc.headers()}"
    except gpuconv.CompileError as error:
        return f"none: {error}"


def _blas() -> str:
    build: Any = np.show_config(mode="dicts")
    blas = build.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def _version(*distributions: str) -> str:
    for name in distributions:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "not installed"
