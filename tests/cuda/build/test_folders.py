"""The cache of compiled kernels with concurrent use: unusable folders, threads, and processes that start together."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpuconv import CompileError
from gpuconv.cuda.build import cache, nvrtc
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.call import tuned
from tests.harness.toolchain import FILES, kernels, needs_nvrtc, variant

Write = Callable[[Mapping[str, str]], Path]
ROOT = Path(__file__).resolve().parents[3]

__all__ = ["kernels"]  # a fixture
pytestmark = [pytest.mark.slow, needs_nvrtc, pytest.mark.usefixtures("kernels")]


@dataclass(frozen=True)
class Problem:
    """A dataclass for which a choice is stored; any dataclass would do."""

    size: int


def _built(**changes: Any) -> compiler.Built:
    return compiler.build(variant(**changes), "sm_80")


SCRIPT = """
import os, sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.harness.toolchain import variant
from gpuconv.cuda.build import cache, compile as compiler, kernel_files, nvrtc
kernel_files.folder = lambda: Path(sys.argv[2])
def build(folder=None):
    return compiler.build(variant(), "sm_80", folder)
"""


def _start(tmp_path: Path, code: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT + code, str(ROOT), str(tmp_path / "kernels_cu")],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(tmp_path: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    process = _start(tmp_path, code, **variables)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return subprocess.CompletedProcess(process.args, 0, out, err)


def test_other_processes_find_it_too(tmp_path: Path) -> None:
    path = _built().path
    assert _run(tmp_path, "print(build().seconds, build().path)").stdout == f"None {path}\n"


# ---------------------------------------------------------------- folders


@pytest.mark.skipif(os.name == "nt", reason="Windows has other variables")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"GPUCONV_CACHE_DIR": "/a/b"}, "/a/b"),
        ({"GPUCONV_CACHE_DIR": "here"}, str(Path("here").absolute())),
        ({"GPUCONV_CACHE_DIR": "", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/gpuconv"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/gpuconv"),
        ({"HOME": "/h"}, "/h/.cache/gpuconv"),
        ({"HOME": "relative"}, None),
    ],
)
def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str | None) -> None:
    for name in ("GPUCONV_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache.folder() == (expected if expected is None else Path(expected))


@pytest.mark.parametrize("home", ["no folder", "below a file", "no home", "read-only"])
def test_without_a_usable_folder_the_process_has_its_own(tmp_path: Path, home: str) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "temporary").mkdir()
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    if home == "read-only" and os.access(folder, os.W_OK):
        pytest.skip("root writes everywhere")
    name = {
        "no folder": tmp_path / "file",
        "below a file": tmp_path / "file" / "cache",
        "read-only": folder,
        "no home": "",
    }
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    first, second, _ = build(), build(), compiler.build(replace(variant(), name="another"), "sm_80")
print(*(warning.category.__name__ + " " + str(warning.message) for warning in caught), sep="|")
assert first.path == second.path and first.seconds and second.seconds is None
assert first.path.read_bytes()[:4] == b"\\x7fELF"
if hasattr(os, "fork"):
    child = os.fork()
    if not child:
        sys.exit()
    os.waitpid(child, 0)
assert first.path.exists()
print(first.path)
"""
    variables = {
        "GPUCONV_CACHE_DIR": str(name[home]),
        "XDG_CACHE_HOME": "",
        "HOME": "~",
        "TMPDIR": str(tmp_path / "temporary"),
    }
    said, printed, *_ = _run(tmp_path, code, **variables).stdout.splitlines()
    place, cause = {
        "no folder": (f"be stored in {name[home]}", "Not a directory"),
        "below a file": (f"be stored in {name[home]}", "Not a directory"),
        "read-only": (f"be stored in {name[home]}", "Permission denied"),
        "no home": ("be kept", "neither XDG_CACHE_HOME nor HOME names a folder"),
    }[home]
    assert said == (
        f"RuntimeWarning compiled kernels cannot {place} ({cause}), so that every process compiles them again; "
        "set GPUCONV_CACHE_DIR to a folder that can be written"
    )
    path = Path(printed)
    assert path.parent.parent == tmp_path / "temporary"
    assert not list((tmp_path / "temporary").iterdir())
    assert (tmp_path / "file").read_text() == "a file"


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.replace

    def full(source: Path, target: Path) -> None:
        if tmp_path in Path(target).parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(source, target)

    monkeypatch.setattr("os.replace", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        built = _built()
    assert tmp_path not in built.path.parents
    assert _built() == replace(built, seconds=None)
    assert not list((tmp_path / "cache").iterdir())
    with pytest.raises(OSError, match="No space left"):
        compiler.build(variant(), "sm_80", tmp_path / "chosen")


@pytest.mark.skipif(os.name != "posix", reason="needs resource limits")
def test_no_disk_with_space_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from gpuconv import CompileError
try:
    build()
except CompileError as error:
    print(error)
"""
    (tmp_path / "temporary").mkdir()
    out = _run(tmp_path, code, TMPDIR=str(tmp_path / "temporary")).stdout
    assert out.startswith("scale_4.sm_80 cannot be stored (")
    assert out.count("File too large") == 2
    assert out.endswith("); set GPUCONV_CACHE_DIR to a folder with space\n")
    assert not list((tmp_path / "cache").iterdir())
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_others_can_neither_read_nor_write_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "new" / "cache"))
    before = os.umask(umask)
    try:
        folder = _built().path.parent
        tuned.store("A device", Problem(3), "quick")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder)] == [0o700, 0o700]


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
@pytest.mark.parametrize(("umask", "modes"), [(0, (0o755, 0o644)), (0o027, (0o750, 0o640)), (0o077, (0o700, 0o600))])
def test_what_is_compiled_for_others_they_can_read(tmp_path: Path, umask: int, modes: tuple[int, int]) -> None:
    before = os.umask(umask)
    try:
        folder = compiler.build(variant(), "sm_80", tmp_path / "image" / "kernels", for_others=True).path.parent
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder)] == [modes[0], modes[0]]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {modes[1]}


# ---------------------------------------------------------------- several at once


def test_threads_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    build = nvrtc.build

    def counted(name: str, *arguments: Any) -> Any:
        compiled.append(name)
        return build(name, *arguments)

    monkeypatch.setattr(nvrtc, "build", counted)
    together = threading.Barrier(16)

    def run(number: int) -> compiler.Built:
        together.wait()
        return _built(name=f"scale_{number % 2}")

    with ThreadPoolExecutor(16) as pool:
        built = list(pool.map(run, range(16)))
    assert sorted(compiled) == ["scale_0", "scale_1"]
    assert len({one.path for one in built}) == 2
    assert sum(one.seconds is not None for one in built) == 2


def test_threads_wait_for_a_failure_only_once_each(kernels: Write) -> None:
    kernels({"scale.cu": FILES["scale.cu"] + "nonsense"})
    with ThreadPoolExecutor(4) as pool:
        errors = [future.exception() for future in [pool.submit(_built) for _ in range(4)]]
    assert all(isinstance(error, CompileError) for error in errors)


def test_processes_race(tmp_path: Path) -> None:
    code = """
import time
nvrtc.identity()
folder = Path(os.environ["GPUCONV_CACHE_DIR"])
(folder.parent / f"ready {os.getpid()}").touch()
while len(list(folder.parent.glob("ready *"))) < 3:
    time.sleep(0.001)
compiled = 0
for turn in range(20):
    built = build(folder)
    compiled += built.seconds is not None
    assert built.path.parent == folder and built.path.read_bytes()[:4] == b"\\x7fELF"
    for path in folder.glob("*.json"):
        path.unlink(missing_ok=True)
build(folder)
print("done", compiled > 5)
"""
    processes = [_start(tmp_path, code) for _ in range(3)]
    for process in processes:
        assert process.communicate(timeout=120) == ("done True\n", "")
    assert len(list((tmp_path / "cache").glob("*.cubin"))) == 1
    assert _built().path.parent == tmp_path / "cache"
    assert not list((tmp_path / "cache").glob(".*"))
