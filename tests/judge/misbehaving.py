"""A backend that does what the model's name says before, or instead of, returning its input.

Its test is a MaxPool whose windows have one element, so the input is the right answer.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

__version__ = "7.5"


class Ended(BaseException):
    """Not an Exception, like what ends a thread or a coroutine in some frameworks."""


def _raise(error: BaseException) -> Any:
    raise error


def _write_into_descriptors(text: bytes, end: int) -> None:
    for descriptor in range(3, end):
        with suppress(OSError):
            os.write(descriptor, text)


def _print_megabytes() -> None:
    for descriptor in (1, 2):
        for _ in range(128):
            os.write(descriptor, b"x" * 65536)


def _start_a_daemon() -> None:
    """Start a process in a separate session, whose parent ends; write its pid."""
    program = "import os, sys, time; os.fork() and os._exit(0); print(os.getpid(), flush=True); time.sleep(600)"
    started = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    assert started.stdout is not None
    Path(os.environ["DAEMON"]).write_bytes(started.stdout.readline())


def _enter_a_folder_that_is_removed() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


def _delete_the_test() -> None:
    for folder in Path(tempfile.gettempdir()).glob("gpuconv-judge-*"):
        shutil.rmtree(folder)


def _close_standard_streams() -> None:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()
    for descriptor in (0, 1, 2):
        os.close(descriptor)


def _forked(_: Any = None) -> None:
    os.fork()


def _recurse() -> Any:
    return _recurse()


REPLY = b'{"id": "0", "outputs": 1}\n'
BEFORE: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "forks": _forked,
    "writes into low descriptors": lambda: _write_into_descriptors(b"junk\n", 64),
    "starts a daemon": _start_a_daemon,
    "prints no UTF-8": lambda: [os.write(descriptor, b"caf\xe9\n") for descriptor in (1, 2)],
    "prints megabytes": _print_megabytes,
    "changes directory": _enter_a_folder_that_is_removed,
    "changes the umask": lambda: os.umask(0o777),
    "deletes the test": _delete_the_test,
    "reads its input": lambda: sys.stdin.read() == "" or _raise(AssertionError()),
    "exits later": lambda: threading.Timer(0.2, os._exit, [0]).start(),
    "refuses": lambda: _raise(NotImplementedError("no \x1b[31mred")),
    "recurses": _recurse,
    "exits": lambda: os._exit(0),
    "aborts": os.abort,
    "kills its group": lambda: os.killpg(0, signal.SIGKILL),
    "raises SystemExit": lambda: sys.exit("done"),
    "raises BaseException": lambda: _raise(Ended("all of it")),
    "writes into every descriptor": lambda: _write_into_descriptors(b"junk\n", 1024),
    "forges a reply": lambda: _write_into_descriptors(REPLY, 1024),
    "closes every descriptor": lambda: os.closerange(3, 1024),
    "closes its streams": _close_standard_streams,
    "hangs": lambda: time.sleep(600),
    "closes every descriptor and hangs": lambda: (os.closerange(3, 1024), time.sleep(600)),
}
INSTEAD: dict[str, Callable[[Any], Any]] = {
    "is wrong": lambda x: [x + 1],
    "returns nothing": lambda x: None,
    "returns text": lambda x: ["text"],
    "returns objects": lambda x: [np.array([x, None], dtype=object)],
    "returns too much": lambda x: [x, x],
    "returns a mapping": lambda x: {"Y": x},
    "returns an iterator": lambda x: iter([x]),
}


class Prepared:
    def __init__(self, model: Any) -> None:
        self.name = model.graph.name

    def run(self, inputs: list[Any]) -> Any:
        BEFORE.get(self.name, lambda: None)()
        (x,) = inputs
        return INSTEAD.get(self.name, lambda x: [x])(x)


def prepare(model: Any, device: str) -> Prepared:
    return Prepared(model)
