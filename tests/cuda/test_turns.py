"""Locks that an interrupt may have left acquired."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.turns import turn
from tests.harness.interruption import DEADLINE


def test_one_has_the_turn_at_a_time() -> None:
    lock, inside, most = threading.Lock(), [0], [0]

    def work() -> None:
        for _ in range(50):
            with turn(lock, DEADLINE):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(1e-4)
                inside[0] -= 1

    users = [threading.Thread(target=work) for _ in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert most == [1]


def test_the_lock_is_given_back_after_an_error() -> None:
    lock = threading.Lock()
    with pytest.raises(KeyError), turn(lock, DEADLINE):
        raise KeyError
    assert not lock.locked()


def test_who_waits_too_long_goes_on_and_leaves_the_lock_as_it_is() -> None:
    lock = threading.Lock()
    lock.acquire()
    with turn(lock, 0.01):
        pass
    assert lock.locked()


def test_a_compilation_that_never_ended_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(dict):  # type: ignore[type-arg]
        def setdefault(self, key: object, lock: threading.Lock) -> threading.Lock:  # type: ignore[override]
            lock.acquire()
            return lock

    entry = SimpleNamespace(path="k.cubin", log="", content=b"")
    monkeypatch.setattr(compiler, "_locks", Taken())
    monkeypatch.setattr(compiler, "_LONGEST", 0.01)
    monkeypatch.setattr(compiler.sources, "source", lambda variant: "source")
    monkeypatch.setattr(compiler.nvrtc, "identity", lambda: "compiler")
    monkeypatch.setattr(compiler.cache, "find", lambda *_: tuple(vars(entry).values()))
    built = compiler.build(SimpleNamespace(name="k"), "sm_80")  # type: ignore[arg-type]
    assert built.path == "k.cubin"
