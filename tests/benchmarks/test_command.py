"""The command line of the benchmarks: errors in one line, before anything is measured."""

from __future__ import annotations

import sys

import pytest

from benchmarks import __main__ as command


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("cliffs --write", "--write needs --cpu: modelled times are not stored; write them by --json FILE"),
        ("cliffs --arch sm_70", "arch must be one of"),
        (
            "cliffs --cpu --arch sm_80",
            "--arch and --picture belong to the GPU model: leave them out, or leave out --cpu",
        ),
        ("cliffs --cpu --picture a.png", "--arch and --picture belong to the GPU model: leave them out"),
        ("cliffs --cpu --write --count 3", "--cpu --write stores 500 problems of seed 0: omit --count and --seed"),
        (
            "cliffs --cpu --write --seed 1",
            "stores 500 problems of seed 0: omit --count and --seed, or write by --json FILE",
        ),
        ("planning --arch sm_1", "arch must be one of"),
        pytest.param("static --layers lstm", "no layer's name contains 'lstm'", marks=pytest.mark.emulator),
        pytest.param("static --arch sm_70", "arch must be one of", marks=pytest.mark.emulator),
    ],
)
def test_wrong_arguments_are_refused(
    words: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words.split()])
    monkeypatch.setattr(command, "_limit_threads", lambda _: None)
    assert command.main() == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"python -m benchmarks {words.split()[0]}: ")
    assert reason in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", ["--budget 0", "--budget nan", "--dtype float8", "--op Relu"])
def test_the_parser_refuses_wrong_options_of_gpu(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "gpu", *words.split()])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    out, error = capsys.readouterr()
    assert out == ""
    assert words.split()[0] in error.splitlines()[-1]
