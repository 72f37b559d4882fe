"""`gpuconv run --output-dir`: either all files are written completely, or none."""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuconv.cli import outputs

Run = Callable[..., str]


def _shell(*argv: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpuconv", *map(str, argv)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def _interruptible() -> None:
    """Handle Ctrl-C even if the tests run in the background, where processes inherit that it is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_output_folder_that_is_none_is_an_error(error: Run, pool: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert error("run", pool, "--output-dir", tmp_path / "file") == f"--output-dir {tmp_path}/file: not a directory"
    assert "file/in" in error("run", pool, "--output-dir", tmp_path / "file" / "in")


def test_an_output_folder_that_has_no_name(error: Run, pool: str) -> None:
    assert error("run", pool, "--output-dir", "a\0b") == r"--output-dir a\x00b: not a valid folder name"


def test_an_output_folder_that_cannot_be_written_is_an_error(
    error: Run, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(outputs.Path, "mkdir", refuse)
    out = tmp_path / "a" / "b"
    assert error("run", pool, "--output-dir", out) == f"--output-dir {out}: Permission denied"
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(os.name != "posix", reason="Windows has other permissions")
def test_nobody_else_sees_files_before_they_are_whole(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with outputs.output_folder(str(tmp_path)):
            (temporary,) = tmp_path.iterdir()
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    finally:
        os.umask(before)
    assert not list(tmp_path.iterdir())


def test_a_directory_in_the_place_of_an_output_keeps_all_as_it_was(error: Run, pool: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "z.npy").mkdir(parents=True)
    (out / "y.npy").write_text("old")
    assert error("run", pool, "--output-dir", out) == f"{out / 'z.npy'}: is a directory"
    assert (out / "y.npy").read_text() == "old"
    assert sorted(os.listdir(out)) == ["y.npy", "z.npy"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_failure_while_writing_leaves_nothing(
    error: Run, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException
) -> None:
    save = np.save
    calls = []

    def fail_second(stream: Any, array: Any, **options: Any) -> None:
        calls.append(stream.name)
        if len(calls) == 2:
            stream.write(b"half")
            raise raised
        save(stream, array, **options)

    monkeypatch.setattr(np, "save", fail_second)
    interrupted = isinstance(raised, KeyboardInterrupt)
    text = error("run", pool, "--output-dir", tmp_path / "new" / "out", code=130 if interrupted else 2)
    assert text == "interrupted" if interrupted else "z.npy: cannot write 8 bytes (No space left on device)" in text
    assert len(calls) == 2
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs resource limits")
def test_a_real_write_that_fails_leaves_nothing(tmp_path: Path, save_model: Run) -> None:
    import resource

    model = save_model("net (float[100000] x) => (float[100000] y) { y = Relu (x) }")
    process = _shell(
        *("run", model, "--output-dir", tmp_path / "out"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    _, err = process.communicate()
    assert process.returncode == 2
    assert re.fullmatch(r"gpuconv: error: .*y\.npy: cannot write 400000 bytes .*\n", err)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_ctrl_c_leaves_nothing(tmp_path: Path, save_model: Run) -> None:
    slow = """net (int64 n) => (int64 y) {
        go = Constant <value = bool {1}> ()
        y = Loop <body = body (int64 i, bool on, int64 v) => (bool still, int64 sum) {
            still = Identity (on)
            sum = Add (v, i)
        }> (n, go, n)
    }"""
    model = save_model(slow)
    np.save(tmp_path / "n.npy", np.array(10**9))
    arguments = "run", model, "--input", f"n={tmp_path}/n.npy", "--output-dir", tmp_path / "out"
    process = _shell(*arguments, preexec_fn=_interruptible)
    try:
        while not (tmp_path / "out").exists():
            assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, err) == (130, "gpuconv: error: interrupted\n")
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_no_tensor_is_not_written(error: Run, tmp_path: Path, save_model: Run) -> None:
    text = "net (float[2] x) => (float[2] y, seq(float[2]) z) { y = Relu (x)\n z = SequenceConstruct (x) }"
    model = save_model(text)
    assert "output 'z' is not a tensor of numbers" in error("run", model, "--output-dir", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_file_names_are_safe_and_unique() -> None:
    names = ["y", "Y", "a/b", "a:b", "../../etc", "-rf", "", ".", "é", "x" * 300]
    files = list(outputs.file_names(names).values())
    assert files[:5] == ["y.npy", "Y_2.npy", "a_b.npy", "a_b_2.npy", "_.._etc.npy"]
    assert len({file.lower() for file in files}) == len(names)
    for file in files:
        assert re.fullmatch(r"\w[\w.-]{0,120}\.npy", file, re.ASCII), file
