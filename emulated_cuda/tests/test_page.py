"""The instructions of docs/emulated-cuda.md, followed outside a checkout: its example, and exit codes of processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import emulated_cuda

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "emulated-cuda.md").read_text(encoding="utf-8")
HALVES = 'cupy.ones((2, 3), "f").astype("e")'  # nothing waits for it
WRITES_BEHIND = """
    kernel = cupy.RawKernel('extern "C" __global__ void behind(float* y) { y[100] = 1; }', "behind")
    kernel((1,), (1,), (cupy.empty(4, "f"),))
"""

pytestmark = pytest.mark.gpu


def block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with the package as in its wheel, and with gpuconv and its kernels."""
    folder = tmp_path_factory.mktemp("installed")
    package = Path(emulated_cuda.__file__).parent
    shutil.copytree(package, folder / "emulated_cuda", ignore=shutil.ignore_patterns("__py*"))
    for name in ("gpuconv", "kernels_cu"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(installed: Path, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run Python in a folder; return exit code, output and errors."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CUPY_", "GPUCONV_"))}
    environment |= {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    return done.returncode, done.stdout, done.stderr


def script(installed: Path, folder: Path, source: str) -> tuple[int, str, str]:
    (folder / "script.py").write_text(source, encoding="utf-8")
    return run(installed, folder, "script.py")


def pytest_says(installed: Path, folder: Path, source: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(source, encoding="utf-8")
    code, said, error = run(
        installed, folder, "-m", "pytest", "-p", "emulated_cuda.plugin", "-p", "no:cacheprovider", str(folder)
    )
    assert error == ""
    return code, said


def test_the_missing_barrier_is_found_where_the_page_says(installed: Path, tmp_path: Path) -> None:
    code, said = pytest_says(installed, tmp_path, block("py"))
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "1 failed" in said
    for line in block("text").splitlines():
        assert line in said


def test_with_the_barrier_it_passes(installed: Path, tmp_path: Path) -> None:
    mended = block("py").replace("  const int left", "  __syncthreads();\n  const int left")
    code, said = pytest_says(installed, tmp_path, mended)
    assert code == 0
    assert "1 passed" in said
    assert "CUDA: emulated, from PTX" in said


def test_a_test_that_waits_for_nothing_passes_and_the_process_ends_well(installed: Path, tmp_path: Path) -> None:
    code, said = pytest_says(installed, tmp_path, f"import cupy\ndef test_halves():\n    {HALVES}\n")
    assert (code, "1 passed" in said) == (0, True)


def test_a_test_fails_for_its_own_work_and_not_for_that_of_the_one_before(installed: Path, tmp_path: Path) -> None:
    good = "def test_good():\n    assert int(cupy.arange(3).sum()) == 3\n"
    code, said = pytest_says(installed, tmp_path, f"import cupy\ndef test_bad():{WRITES_BEHIND}\n{good}")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 passed" in said
    assert "work that the test did not wait for failed: behind: global memory out of bounds" in said


def test_a_script_with_pending_work_ends_well(installed: Path, tmp_path: Path) -> None:
    source = f"import emulated_cuda\nemulated_cuda.install()\nimport cupy\n{HALVES}\n"
    assert script(installed, tmp_path, source) == (0, "", "")


def test_a_script_says_at_its_end_what_nothing_waited_for(installed: Path, tmp_path: Path) -> None:
    source = f"import emulated_cuda\nemulated_cuda.install()\nimport cupy\nif True:{WRITES_BEHIND}\n"
    code, said, error = script(installed, tmp_path, source)
    assert (code, said) == (0, "")
    assert error.startswith("emulated_cuda: work that nothing waited for failed: behind: global memory out of bounds")


def test_gpuconv_runs_after_install(installed: Path, tmp_path: Path) -> None:
    source = """
import emulated_cuda
library = emulated_cuda.install()
import numpy as np
import gpuconv
x = gpuconv.to_device(np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4))
w = gpuconv.to_device(np.ones((1, 1, 2, 2), np.float32))
print(gpuconv.to_host(gpuconv.conv(x, w))[0, 0, 0].tolist())
print(library is emulated_cuda.install())
gpuconv.conv(x, w, strides=[2, 2])  # pending at the end
"""
    assert script(installed, tmp_path, source) == (0, "[10.0, 14.0, 18.0]\nTrue\n", "")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import cupy\nimport emulated_cuda\nemulated_cuda.install()", "before the first import of it"),
        (
            "import emulated_cuda\nemulated_cuda.install()\nemulated_cuda.install(emulated_cuda.Settings(devices=2))",
            "emulated_cuda.control.changed",
        ),
    ],
    ids=["after_cupy", "twice"],
)
def test_an_installation_that_would_change_nothing_is_refused(
    installed: Path, tmp_path: Path, source: str, message: str
) -> None:
    code, _, error = script(installed, tmp_path, source)
    assert code == 1
    assert message in error.splitlines()[-1]
