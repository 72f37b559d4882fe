"""Filters of ``gpuconv suite`` and ``gpuconv judge``: ``--operator``, ``--opset`` and so on."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuconv._errors import listed
from gpuconv.cli.terminal import CommandError

Labels = Mapping[str, Any]  # a test's "operator", "opset", "type", "rank", "rule", and its "name" in the suite

_HELP = {
    "operator": ("NAME,…", "only these operators, such as Conv,MaxPool"),
    "opset": ("N,…", "only these opsets, each that in which the operator's schema was written"),
    "type": ("NAME,…", "only these element types, such as float32,int8"),
    "rank": ("N,…", "only these numbers of spatial axes"),
    "rule": ("TEXT,…", "only rules whose name contains TEXT"),
}


def add(parser: argparse.ArgumentParser) -> None:
    """Add the filters to a command's parser."""
    parser.add_argument("--filter", default="", metavar="TEXT", help="only tests whose name contains TEXT")
    for name, (metavar, text) in _HELP.items():
        parser.add_argument(f"--{name}", action="append", default=[], metavar=metavar, help=f"{text}; can be repeated")


@dataclass(frozen=True)
class Filters:
    """What is asked for: part of a test's name, and for some labels the words of which one must match."""

    name: str
    words: Mapping[str, Sequence[str]]

    @property
    def is_empty(self) -> bool:
        """Whether all tests are asked for."""
        return not self.name and not any(self.words.values())

    def choose(self, tests: Iterable[Labels], command: str) -> list[str]:
        """Return the names of the tests that are asked for; raise CommandError if there is none, with what there is."""
        known = list(tests)
        words = {name: self._resolved(name, sorted({each[name] for each in known}), command) for name in self.words}
        chosen = [
            each["name"]
            for each in known
            if self.name in each["name"]
            and all(any(_matches(name, word, each[name]) for word in words[name]) for name in words if words[name])
        ]
        if not chosen and any(words.values()):
            raise CommandError(f"{command}: no test has all that the filters ask for")
        if not chosen:
            raise CommandError(f"{command}: no test's name contains {self.name!r}")
        return chosen

    def _resolved(self, name: str, values: Sequence[Any], command: str) -> list[str]:
        """Split what is asked for at commas, but not those in names of rules; each word must match something."""
        found = []
        for text in self.words[name]:
            whole = name == "rule" and any(_matches(name, text, value) for value in values)
            for word in [text] if whole else [part.strip() for part in text.split(",") if part.strip()]:
                if not any(_matches(name, word, value) for value in values):
                    names = listed([str(value) for value in values], 60)
                    raise CommandError(f"{command}: --{name} {word} is in no test; there are {names}")
                found.append(word)
        return found


def of(arguments: argparse.Namespace) -> Filters:
    """Return what a command line asks for."""
    return Filters(arguments.filter, {name: getattr(arguments, name) for name in _HELP})


def labels(problem: Any) -> dict[str, Any]:
    """Return the labels that the test of a problem will have."""
    from gpuconv.judge import combinations

    case = problem.case
    return {
        "name": problem.name,
        "operator": case.op,
        "opset": problem.opset,
        "type": problem.dtype,
        "rank": len(case.x_shape) - 2,
        "rule": combinations.of(problem).name,
    }


def _matches(name: str, word: str, value: Any) -> bool:
    if name == "rule":
        return word.casefold() in value.casefold()
    return _plain(word) == _plain(str(value))


def _plain(word: str) -> str:
    return word.replace("_", "").casefold()
