"""Ctrl-C ends the command without a traceback, from before the package is imported to after the command is done."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="no process gets a SIGINT of its own there"),
]

# Interrupts itself while a module is looked up, as Ctrl-C may do during an import.
AT_IMPORT = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""


def run(code: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize(
    "module", ["gpuconv", "gpuconv._conv", "numpy", "argparse", "gpuconv.cli", "gpuconv.cli.judge"]
)
def test_an_interrupt_while_modules_are_imported_ends_the_command(module: str) -> None:
    start = "from gpuconv_command import main\nsys.exit(main())"
    done = run(AT_IMPORT.format(module=module) + start, "explain", "conv", "1,3,8,8", "4,3,3,3")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("module", ["gpuconv._conv", "numpy", "gpuconv.cli.main"])
def test_also_when_python_runs_the_package(module: str) -> None:
    start = "import runpy\nsys.argv[:1] = ['-m']\nsys.orig_argv = [sys.executable, '-m', 'gpuconv']\n"
    start += "runpy._run_module_as_main('gpuconv')"
    done = run(AT_IMPORT.format(module=module) + start, "info")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_importing_the_package_leaves_the_handler_alone() -> None:
    code = "import signal, sys\nbefore = signal.getsignal(signal.SIGINT)\nimport gpuconv\n"
    done = run(code + "sys.exit(signal.getsignal(signal.SIGINT) is not before)")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_in_a_command_is_one_line() -> None:
    code = (
        "import signal, sys\nfrom gpuconv.cli import main\n"
        "main._info = lambda _: signal.raise_signal(signal.SIGINT)\n"
        "from gpuconv_command import main\nsys.exit(main())"
    )
    done = run(code, "info")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "gpuconv: error: interrupted\n")


def test_an_interrupt_when_the_command_is_done_changes_nothing() -> None:
    code = (
        "import atexit, signal, sys\natexit.register(signal.raise_signal, signal.SIGINT)\n"
        "from gpuconv_command import main\nsys.exit(main())"
    )
    done = run(code, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("gpuconv ")


def test_a_command_that_is_started_to_ignore_it_does() -> None:
    code = AT_IMPORT.format(module="numpy") + (
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nfrom gpuconv_command import main\nsys.exit(main())"
    )
    assert run(code, "--version").returncode == 0


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.5])
def test_a_signal_from_outside(seconds: float) -> None:
    code = (
        "import sys, gpuconv_command\ngpuconv_command.exit_on_interrupt()\nprint('ready', flush=True)\n"
        "sys.exit(gpuconv_command.main())"
    )
    words = [sys.executable, "-c", code, "check"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert "".join(stderr.splitlines()[-1:]) in ("", "gpuconv: error: interrupted")
