"""A temporary copy of the checkout into which mutants are written, with pytest in processes of its own.

Processes are forked from one that has imported NumPy, onnx and pytest, which saves seconds per mutant.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_WARM = ("numpy", "ml_dtypes", "pytest", "onnx", "onnx.reference")
_OPTIONS = ("-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0")


@contextmanager
def working_copy() -> Iterator[Path]:
    """Copy the checkout and make the copy the working directory, from which Python and child processes import."""
    before, variables = Path.cwd(), dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="gpuconv-mutants-") as folder:
        root = Path(folder).resolve() / "checkout"
        root.mkdir()
        for path in ROOT.iterdir():
            if path.name in ("gpuconv", "tests"):
                shutil.copytree(path, root / path.name)  # including bytecode
            elif not path.name.startswith("."):
                (root / path.name).symlink_to(path)
        os.chdir(root)
        paths = os.pathsep.join([str(root), str(root / "emulated_cuda" / "src")])
        os.environ.update(PYTHONPATH=paths, OPENBLAS_NUM_THREADS="1", GPUCONV_REQUIRE_EMULATOR="1")
        try:
            yield root
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(variables)


@contextmanager
def changed(path: Path, text: str) -> Iterator[None]:
    """Replace a module's source and delete its bytecode; none may be written meanwhile."""
    whole = path.read_text(encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()
    path.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(whole, encoding="utf-8")


@contextmanager
def private_kernel_cache(root: Path, usual: Path) -> Iterator[None]:
    """Give a mutant a kernel cache of its own, which starts with hard links to the files in ``usual``."""
    before = os.environ.get("GPUCONV_CACHE_DIR")
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        shutil.copytree(usual, folder, copy_function=_linked, dirs_exist_ok=True)
        os.environ["GPUCONV_CACHE_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["GPUCONV_CACHE_DIR"]
            os.environ.update({} if before is None else {"GPUCONV_CACHE_DIR": before})


def kernel_cache() -> Path:
    """Return gpuconv's kernel cache; a child process finds it, so that this one does not import gpuconv."""
    words = "from gpuconv.cuda.build import cache; print(cache.folder() or '')"
    found = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout.strip()
    return Path(found) if found and Path(found).is_dir() else Path(tempfile.mkdtemp(dir=Path.cwd().parent))


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy2(source, target)


def import_common_packages() -> None:
    """Import what tests need and no mutant changes, before processes are forked."""
    for name in _WARM:
        importlib.import_module(name)


def start_pytest(
    files: Sequence[str], log: Path, plugin: Callable[[], object], *options: str, write_bytecode: bool = False
) -> multiprocessing.process.BaseProcess:
    """Start pytest on files of the copy in a forked process group; its output goes to ``log``.

    ``plugin`` creates a pytest plugin in that process.
    """
    target, arguments = _pytest, (files, log, plugin, options, write_bytecode)
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


def wait(process: multiprocessing.process.BaseProcess, seconds: float | None = None) -> int | None:
    """Return a process's exit status, or None if it exceeded ``seconds`` and was killed with its children."""
    process.join(seconds)
    if process.exitcode is None:
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        return None
    return process.exitcode


def _pytest(
    files: Sequence[str], log: Path, plugin: Callable[[], object], options: Sequence[str], write_bytecode: bool
) -> None:
    os.setsid()
    sys.dont_write_bytecode = not write_bytecode
    os.environ["PYTHONDONTWRITEBYTECODE"] = "" if write_bytecode else "1"
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [*paths, *(entry for entry in sys.path if Path(entry).resolve() != ROOT)]
    import pytest

    os._exit(pytest.main([*_OPTIONS, *options, *files], [plugin()]))
