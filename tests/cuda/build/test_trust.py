"""The cache of compiled kernels in a folder that others can write: what is loaded, what is refused, the warnings."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuconv.cuda.build import cache, trust
from tests.cuda.build.strangers import STRANGER, Give, giving

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows has other permissions")

ROOT = Path(__file__).resolve().parents[3]
KEY = cache.key("a kernel")
CONTENT, LOG = b"\x7fELF of a kernel", "Used 1 registers"


@pytest.fixture(params=["root", "any user"])
def give(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Give:
    """Give a file to another user: by chown as root, otherwise by patching what reports owners."""
    if request.param == "root":
        if os.getuid() != 0:
            pytest.skip("root alone gives files away; the same is tested as any user")
        return lambda path: os.chown(path, STRANGER, -1, follow_symlinks=False)
    return giving(monkeypatch)


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_warned", {}, raising=False)


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the cache be in its default place."""
    monkeypatch.delenv("GPUCONV_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gpuconv"


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the cache be a folder named by the user."""
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "named"))
    return tmp_path / "named"


def _store(folder: Path) -> cache.Entry:
    return cache.store(folder, "kernel", KEY, ".cubin", CONTENT, LOG)


def _is_found(folder: Path) -> bool:
    """Return whether the cache has an entry, which must be the stored one; a warning would be an error."""
    found = cache.find(folder, "kernel", KEY)
    if found is not None:
        assert (found.path.parent, found.log, found.content) == (folder, LOG, CONTENT)
    return found is not None


def _is_refused(folder: Path, *reasons: str) -> None:
    """Expect no entry, and one warning with these words."""
    with pytest.warns(RuntimeWarning) as caught:
        assert cache.find(folder, "kernel", KEY) is None
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith(f"the cache of compiled kernels in {folder} is not used as it is, since ")
    assert "GPUCONV_CACHE_DIR" in text
    for reason in reasons:
        assert reason in text
    assert not _is_found(folder), "and nothing is told again"


@contextmanager
def _deadline(seconds: int = 10) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------- the folder


def test_a_folder_of_this_user_is_used(usual: Path, named: Path) -> None:
    for folder in (usual, named):
        _store(folder)
        assert _is_found(folder)


def test_a_folder_of_a_stranger_is_not_used(usual: Path, give: Give) -> None:
    _store(usual)
    give(usual)
    _is_refused(usual, f"{usual} belongs to user {STRANGER}, who is neither this one nor root")
    with pytest.raises(PermissionError, match=f"belongs to user {STRANGER}"):
        _store(usual)


def test_a_named_folder_may_belong_to_anybody_with_its_files(named: Path, give: Give) -> None:
    for path in (_store(named).path, next(named.glob("*.json")), named):
        give(path)
    assert _is_found(named)


@pytest.mark.parametrize("which", ["usual", "named"])
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_used(mode: int, which: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(which)
    _store(folder)
    folder.chmod(mode)
    _is_refused(folder, f"others than its owner can write to {folder} (mode {mode:o})", "chmod go-w")
    before = sorted(folder.iterdir())
    with pytest.raises(PermissionError, match="others than its owner"):
        cache.store(folder, "another", KEY, ".cubin", CONTENT, LOG)
    assert sorted(folder.iterdir()) == before
    folder.chmod(0o755)
    assert _is_found(folder)


def test_a_folder_that_can_be_entered_but_not_listed_is_used(named: Path) -> None:
    _store(named)
    named.chmod(0o311)
    assert _is_found(named)


def test_that_it_is_not_used_is_told_once_a_folder(tmp_path: Path, usual: Path) -> None:
    for folder in (usual, tmp_path / "other"):
        _store(folder)
        folder.chmod(0o777)
    _is_refused(usual)
    _is_refused(tmp_path / "other")


def test_on_windows_there_is_no_such_check(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _store(usual)
    usual.chmod(0o777)
    monkeypatch.delattr(os, "getuid")
    assert _is_found(usual)
    assert _store(usual).path.exists()


def test_nothing_that_windows_lacks_is_needed(tmp_path: Path) -> None:
    code = """
import os
for name in ("getuid", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_PATH"):
    if hasattr(os, name):
        delattr(os, name)
del os.open  # which takes no folder there, and no descriptor of one
def open(path, flags, mode=0o777, *, dir_fd=None, open=__import__("posix").open):
    assert dir_fd is None and not os.path.isdir(path)
    return open(path, flags, mode)
os.open = open
import sys
from pathlib import Path
from gpuconv.cuda.build import cache
folder = Path(sys.argv[1])
made = cache.store(folder, "kernel", cache.key("k"), ".cubin", b"content", "log")
assert cache.find(folder, "kernel", cache.key("k")) == made
assert cache.distrust(folder) is None
"""
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path / "cache")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------- the way to it


@pytest.mark.parametrize("which", ["usual", "named"])
@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o770])
def test_in_a_folder_of_many_users_only_what_belongs_to_this_one_is_followed(
    mode: int, which: str, give: Give, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    variable = {"usual": "XDG_CACHE_HOME", "named": "GPUCONV_CACHE_DIR"}[which]
    monkeypatch.delenv("GPUCONV_CACHE_DIR", raising=False)
    monkeypatch.setenv(variable, str(shared / "mine"))
    folder = cache.folder()
    assert folder is not None
    _store(folder)
    assert _is_found(folder)
    give(shared / "mine")
    _is_refused(folder, f"{shared / 'mine'} belongs to user {STRANGER}")


def test_a_folder_that_many_users_can_exchange_is_nobody_elses(
    named: Path, give: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(named / "mine" / "cache"))
    folder = named / "mine" / "cache"
    _store(folder)
    give(folder)
    named.chmod(0o1777)
    assert _is_found(folder), "what is mine stays where it is"
    named.chmod(0o777)
    _is_refused(folder, f"{folder} belongs to user {STRANGER}")


def test_links_of_a_stranger_are_not_followed(tmp_path: Path, give: Give, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, real = tmp_path / "shared", tmp_path / "mine" / "downloads"
    _store(real / "cache")
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "link").symlink_to("../mine")
    (tmp_path / "to a link").symlink_to(shared / "link" / "downloads")
    for folder in (shared / "link" / "downloads" / "cache", tmp_path / "to a link" / "cache"):
        monkeypatch.setenv("GPUCONV_CACHE_DIR", str(folder))
        assert _is_found(folder)
    give(shared / "link")
    for folder in (shared / "link" / "downloads" / "cache", tmp_path / "to a link" / "cache"):
        monkeypatch.setenv("GPUCONV_CACHE_DIR", str(folder))
        _is_refused(folder, f"{shared / 'link'} belongs to user {STRANGER}")


def test_links_in_circles_are_as_good_as_absent(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    assert not _is_found(tmp_path / "circle" / "cache")
    assert cache.distrust(tmp_path / "circle" / "cache") is None
    with pytest.raises(OSError, match="symbolic links"):
        list(trust._way(tmp_path / "circle"))


def test_what_is_looked_at_is_what_was_opened(tmp_path: Path, give: Give, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    folder, theirs = shared / "cache", tmp_path / "theirs"
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(folder))
    for place in (folder, theirs):
        _store(place)
    give(theirs)
    shared.chmod(0o777)
    real = os.open

    def exchanged(path: Any, flags: int, mode: int = 0o777, **others: Any) -> int:
        return real(theirs if path == folder else path, flags, mode, **others)

    monkeypatch.setattr(os, "open", exchanged)
    _is_refused(folder, f"belongs to user {STRANGER}")


def test_a_temporary_folder_serves_where_all_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers, whose volumes have mode 777."""
    tmp_path.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    private = cache._Private()
    _store(private.make())
    assert _is_found(private.make())


# ---------------------------------------------------------------- its files


@pytest.mark.parametrize("suffix", [".cubin", ".json"])
def test_a_file_of_a_stranger_is_not_used(suffix: str, usual: Path, give: Give) -> None:
    _store(usual)
    (path,) = usual.glob(f"*{suffix}")
    with path.open():  # so no other file gets its inode number
        give(path)
        _is_refused(usual, f"{path} belongs to user {STRANGER}")
        _store(usual)
        assert _is_found(usual)


@pytest.mark.parametrize("which", ["usual", "named"])
@pytest.mark.parametrize("suffix", [".cubin", ".json"])
@pytest.mark.parametrize("mode", [0o620, 0o666])
def test_a_file_that_others_can_write_is_not_used(
    mode: int, suffix: str, which: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(which)
    _store(folder)
    (path,) = folder.glob(f"*{suffix}")
    path.chmod(mode)
    _is_refused(folder, f"others than its owner can write to {path} (mode {mode:o})")
    _store(folder)
    assert _is_found(folder)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path.parent)  # names of sockets must be short
        server.bind(path.name)


SPECIAL: dict[str, Callable[[Path], Any]] = {
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": _socket,
    "a link": lambda path: path.symlink_to(path.rename(path.parent.parent / path.name)),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
}


@pytest.mark.parametrize("suffix", [".cubin", ".json"])
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file_is_absent(
    kind: str, suffix: str, usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _store(usual)
    (path,) = usual.glob(f"*{suffix}")
    if kind != "a link":
        path.unlink()
    SPECIAL[kind](path)
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    with _deadline():
        assert not _is_found(usual)
    assert not before or set(os.listdir("/proc/self/fd")) == before
    if kind != "a folder":
        _store(usual)
        assert _is_found(usual)


@pytest.mark.parametrize("name", ["../pipe", "{}/pipe", "", ".", "..", "sub/kernel"])
def test_a_manifest_that_names_something_elsewhere_is_absent(name: str, usual: Path, tmp_path: Path) -> None:
    _store(usual)
    (usual / "sub").mkdir()
    (usual / "sub" / "kernel").write_bytes(CONTENT)
    os.mkfifo(tmp_path / "pipe")
    description = cache._description(KEY, name.format(tmp_path), CONTENT, LOG)
    (manifest,) = usual.glob("*.json")
    manifest.write_text(json.dumps(description))
    with _deadline():
        assert not _is_found(usual)


def test_a_log_that_is_no_text_is_absent(usual: Path) -> None:
    name = _store(usual).path.name
    (manifest,) = usual.glob("*.json")
    manifest.write_text(json.dumps(cache._description(KEY, name, CONTENT, 5)))  # type: ignore[arg-type]
    assert not _is_found(usual)


def test_files_that_are_too_large_are_absent(usual: Path) -> None:
    path = _store(usual).path
    (manifest,) = usual.glob("*.json")
    text = manifest.read_bytes()
    manifest.write_bytes(text + b" " * 2**20)
    assert not _is_found(usual)
    manifest.write_bytes(text)
    assert _is_found(usual)
    large = bytes(2**26 + 1)
    path.write_bytes(large)
    manifest.write_text(json.dumps(cache._description(KEY, path.name, large, LOG)))
    assert cache.find(usual, "kernel", KEY) is None


# ---------------------------------------------------------------- what was left


def test_what_killed_writers_left_is_removed_once(usual: Path) -> None:
    usual.mkdir(mode=0o700)
    names = [f".{'0123456789abcdef'}.tmp", f".{'f' * 16}.tmp", f".{'f' * 15}.tmp", "a.tmp", f".{'e' * 16}.tmp.json"]
    for name in names:
        (usual / name).write_bytes(b"half of")
    hours_ago = os.stat(usual).st_mtime - 2 * 3600
    for name in [names[0], *names[2:]]:
        os.utime(usual / name, (hours_ago, hours_ago))
    (usual / f".{'d' * 16}.tmp").symlink_to("nowhere")
    os.utime(usual / f".{'d' * 16}.tmp", (hours_ago, hours_ago), follow_symlinks=False)
    assert not _is_found(usual)
    assert (usual / names[0]).exists(), "looking for an entry removes nothing"
    _store(usual)
    assert sorted(path.name for path in usual.glob("*tmp*")) == sorted(names[1:])
    (usual / names[0]).write_bytes(b"half of")
    os.utime(usual / names[0], (hours_ago, hours_ago))
    _store(usual)
    assert (usual / names[0]).exists(), "a folder is looked through once"


def test_writers_that_are_killed_leave_entries_whole_or_absent(usual: Path) -> None:
    code = """
import os, random, signal, sys, time
from pathlib import Path
from gpuconv.cuda.build import cache
folder, random = Path(sys.argv[1]), random.Random(7)
cut_short = 0
for number in range(400):
    if number >= 40 and cut_short:
        break  # on a busy machine it takes more of them until one is killed as it writes
    title, content = f"kernel {number}", os.urandom(200_000)
    child = os.fork()
    if not child:
        for again in range(10**9):
            cache.store(folder, title, cache.key(f"{title}, {again}"), ".cubin", content, "log")
    time.sleep(random.uniform(0.001, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = [cache.find(folder, title, cache.key(f"{title}, {again}")) for again in range(200)]
    written = [entry for entry in found if entry is not None]
    assert all(entry == (folder / entry.path.name, "log", content) for entry in written)
    assert len({entry.path for entry in written}) <= 1
    assert found[: len(written)] == written, "all of them, up to the last"
    cut_short += bool(list(folder.glob(".*.tmp")))
print(cut_short > 0)
"""
    command = [sys.executable, "-W", "error", "-c", code, str(usual)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True\n")
    for path in usual.glob(".*.tmp"):
        os.utime(path, (0, 0))
    _store(usual)
    assert _is_found(usual)
    assert not list(usual.glob(".*.tmp"))


# ---------------------------------------------------------------- what is told of it


def test_info_tells_why_a_folder_is_not_used(named: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gpuconv.cli.main import main

    named.mkdir()
    named.chmod(0o777)
    assert main(["info"]) == 0
    told = f"{named}, not used, since others than its owner can write to {named} (mode 777); a temporary folder"
    assert re.search(
        rf"^kernel cache: +{re.escape(told)} \(GPUCONV_CACHE_DIR\)$", capsys.readouterr().out, re.MULTILINE
    )


def test_nothing_is_compiled_for_a_folder_that_others_can_write_to(tmp_path: Path, error: Callable[..., str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o777)
    assert error("compile", "--filter", "map_copy", "--output-dir", tmp_path / "out") == (
        f"compile: others than its owner can write to {tmp_path}/out (mode 777); --output-dir names another folder"
    )
    assert not list((tmp_path / "out").iterdir())
