"""The suites that ``gpuconv judge`` runs: a given one, the cached one, or a few tests of it in a temporary folder.

A whole suite is written once and kept in ``suites`` in gpuconv's cache folder. Its name there is a hash of all that its
content follows from, so that it is found again without being written. It is written elsewhere and renamed, so that
commands that run at once see a whole suite or none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import gpuconv
from gpuconv._errors import one_line
from gpuconv.cli.judge_filters import Filters, labels
from gpuconv.cli.terminal import CommandError

_PACKAGES = ("onnx", "numpy", "ml_dtypes")  # whose versions the files may depend on
_STAMP = ".stamp"  # in a cached suite: a hash of the names, sizes and times of its files
_UNUSED = 30 * 86_400  # seconds after which a cached suite is removed
_ABANDONED = 86_400  # seconds after which what a killed process was writing is removed
_LOOSE = (
    "README.txt",
    "LICENSE",
    "judge.c",
    "judge.py",
    "max_pool.c",
    "tests.txt",
)  # in the order in which the suite's hash has them
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a ZIP file can have

Show = Callable[[str], None]
Suite = tuple[list[Any], dict[str, Any]]  # the tests that are asked for, and what suite.json says besides


@contextmanager
def opened(arguments: Any, filters: Filters, show: Show) -> Iterator[Suite]:
    """Yield the tests that are asked for: of the cached suite, or written to a temporary folder."""
    show("looking at the cached suite")
    folder = _cached_folder(arguments.seed, arguments.count)
    if folder is not None and (_is_whole(folder) or (filters.is_empty and _write_to_cache(folder, arguments, show))):
        with suppress(OSError):
            os.utime(folder)
        yield _tests(folder, filters)
        return
    with tempfile.TemporaryDirectory(prefix="gpuconv-suite-", ignore_cleanup_errors=True) as temporary:
        written(Path(temporary), arguments, filters, "judge", show)
        yield _tests(Path(temporary), Filters("", {}))


def written(folder: Path, arguments: Any, filters: Filters, command: str, show: Show) -> Any:
    """Write the tests that are asked for, and no others."""
    from gpuconv.judge import suite

    def tell(name: str) -> None:
        show(f"writing {name}")

    if filters.is_empty:
        return suite.write(folder, arguments.seed, arguments.count, tell)
    show("listing the tests")
    chosen = set(filters.choose(map(labels, suite.problems(arguments.seed, arguments.count)), command))
    return suite.write(folder, arguments.seed, arguments.count, tell, lambda problem: problem.name in chosen)


def zipped(folder: Path) -> Path:
    """Write FOLDER.zip beside a suite: the same bytes for the same suite, whenever it was written."""
    path = folder.with_name(f"{folder.name}.zip")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for file in sorted(each for each in folder.rglob("*") if each.is_file()):
                entry = zipfile.ZipInfo(f"{folder.name}/{file.relative_to(folder).as_posix()}", _EPOCH)
                entry.create_system, entry.external_attr = 3, 0o100644 << 16  # as on Unix: -rw-r--r--
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, file.read_bytes())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


# ---------------------------------------------------------------- reading a suite


def _tests(folder: Path, filters: Filters) -> Suite:
    """Return the tests of a suite that are asked for; CommandError where suite.json is not of this format."""
    from gpuconv.judge.verdicts import Test

    about = _described(folder)
    tests = {name: Test(folder / name) for name in about.pop("tests")}
    if filters.is_empty:
        return list(tests.values()), about
    if any(filters.words.values()):
        known: Any = ({**test.facts, "name": name} for name, test in tests.items())
    else:  # names are known without reading anything
        known = ({"name": name, **dict.fromkeys(filters.words, "")} for name in tests)
    return [tests[name] for name in filters.choose(known, "judge")], about


def _described(folder: Path) -> dict[str, Any]:
    from gpuconv.judge.suite import FORMAT

    try:
        about = json.loads((folder / "suite.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(f"judge: {folder} is no suite ({one_line(str(error))})") from None
    if not isinstance(about, dict):
        raise CommandError(f"judge: {folder} is no suite (suite.json is no object)")
    if about.get("format") != FORMAT:
        text = f"suite.json has the format {about.get('format')!r}, this version of gpuconv reads {FORMAT}"
        raise CommandError(f"judge: {folder} is no suite ({one_line(text)}; write it anew)")
    names, missing = about.get("tests"), {"seed", "sweep", "sha256"} - {*about}
    if missing or not isinstance(names, list) or not names or not all(map(_is_name, names)):
        raise CommandError(f"judge: {folder} is no suite (suite.json lacks a list of tests, seed, sweep or sha256)")
    return about


def _is_name(name: Any) -> bool:
    """Return whether a value is the name of a folder directly inside the suite."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def given(folder: Path, filters: Filters, show: Show) -> Suite:
    """Return the tests of a suite from an unknown source, after checking its hash."""
    folder = folder.absolute()
    everything, _ = _tests(folder, Filters("", {}))
    for test in everything:
        show(f"checking {test.folder.name}")
        test.check()
    suite = _tests(folder, filters)
    if _digest(folder, [test.folder.name for test in everything], show) != suite[1]["sha256"]:
        _name_unreadable(everything)
        raise CommandError(
            f"judge: the suite is damaged: its files do not have the hash in {folder / 'suite.json'}; write or "
            "download it again"
        )
    return suite


def _digest(folder: Path, names: Sequence[str], show: Show) -> str:
    """Compute the hash of a suite from its files, in the order in which they were written."""
    digest = hashlib.sha256()
    for name in names:
        show(f"checking {name}")
        files = [path for path in (folder / name).rglob("*") if path.is_file()]
        _add(digest, folder, sorted(files, key=lambda path: path.relative_to(folder).as_posix()))
    _add(digest, folder, [folder / name for name in _LOOSE if (folder / name).is_file()])
    return digest.hexdigest()


def _add(digest: Any, folder: Path, files: Sequence[Path]) -> None:
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)


def _name_unreadable(tests: Sequence[Any]) -> None:
    """Raise DamagedTest for the first array that cannot be read, if there is one."""
    from gpuconv.judge.suite import DATA
    from gpuconv.judge.verdicts import DamagedTest, read

    for test in tests:
        for path in sorted((test.folder / DATA).glob("*.pb")):
            try:
                read(path)
            except Exception as error:
                why = one_line(f"{type(error).__name__}: {error}")
                raise DamagedTest(f"{test.folder.name}: {DATA}/{path.name} cannot be read ({why})") from None


# ---------------------------------------------------------------- the cache


def _cached_folder(seed: int, count: int | None) -> Path | None:
    """Return the cache folder of the whole suite; None if there is no usable cache."""
    from gpuconv.cuda.build import cache

    folder = cache.folder()
    if folder is None or cache.distrust(folder) is not None or not cache.can_be_written(folder):
        return None
    return folder / "suites" / _key(seed, count)


def _key(seed: int, count: int | None) -> str:
    """Return a hash of everything that determines the files of a suite."""
    from gpuconv.judge import suite

    digest = hashlib.sha256(json.dumps([suite.FORMAT, gpuconv.__version__, seed, count]).encode())
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            digest.update(f"{name} {metadata.version(name)}\n".encode())
    root = Path(gpuconv.__file__).parent
    standalone = (root / "judge" / "standalone").glob("*.*")
    for path in sorted([*(root / "judge").glob("*.py"), *(root / "rules").glob("*.py"), *standalone]):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def _write_to_cache(folder: Path, arguments: Any, show: Show) -> bool:
    """Write the whole suite to a temporary folder and rename it into the cache; return whether that is possible."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _tidy(folder.parent)
        temporary = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    except OSError:
        return False
    try:
        written(temporary / "suite", arguments, Filters("", {}), "judge", show)
        (temporary / "suite" / _STAMP).write_text(_stamp(temporary / "suite"))
        _put(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def _put(temporary: Path, folder: Path) -> None:
    """Rename a suite into the cache, unless another process has done so; a damaged one is replaced."""
    for attempt in range(3):
        try:
            os.rename(temporary / "suite", folder)
            return
        except OSError:
            if _is_whole(folder):
                return
            if attempt == 2:
                raise
            with suppress(OSError):
                os.rename(folder, temporary / f"damaged_{attempt}")


def _is_whole(folder: Path) -> bool:
    """Return whether all files of a cached suite have the sizes and times of when they were written."""
    try:
        return (folder / _STAMP).read_text() == _stamp(folder)
    except OSError:
        return False


def _stamp(folder: Path) -> str:
    digest = hashlib.sha256()
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name != _STAMP:
                path = os.path.join(where, name)
                facts = os.stat(path, follow_symlinks=False)
                digest.update(f"{os.path.relpath(path, folder)}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _tidy(folder: Path) -> None:
    """Remove suites that nobody used for a month, and what killed processes have left."""
    with suppress(OSError), os.scandir(folder) as places:
        for place in places:
            with suppress(OSError):
                limit = _ABANDONED if place.name.startswith(".") else _UNUSED
                if place.stat(follow_symlinks=False).st_mtime < time.time() - limit:
                    shutil.rmtree(place.path, ignore_errors=True)
