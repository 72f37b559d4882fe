"""Probes of instructions in the emulator: that they pass there, and that each detects planted errors."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import floor, frexp
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks import probes
from benchmarks.probes import __main__ as command
from benchmarks.probes import bits, launch, mma, rules
from benchmarks.probes.launch import FOLDER, Mapped, Program, Result, compiled
from benchmarks.probes.numbers import DEPTH, KINDS, numbers
from benchmarks.probes.probe import Probe, Wrong, check
from benchmarks.progress import Rows, read
from tests.benchmarks.probing import HEADERS, Emulated
from tests.emulator import EmulatorError

pytestmark = pytest.mark.slow


class Remembering(Emulated):
    """Keeps the results of each launch."""

    def __init__(self, architecture: str = "sm_90a") -> None:
        super().__init__(architecture)
        self.launches: list[list[Any]] = []

    def run(self, *arguments: Any, **more: Any) -> list[Any]:
        results = super().run(*arguments, **more)
        self.launches.append([result.copy() for result in results])
        return results


class Repeating(Emulated):
    """Repeats recorded results of launches, with one bit changed."""

    def __init__(self, launches: list[list[Any]], wrong: int, change: Any) -> None:
        super().__init__()
        self._launches, self._wrong, self._change, self._next = launches, wrong, change, 0

    def run(self, *_: Any, **__: Any) -> list[Any]:
        results = [result.copy() for result in self._launches[self._next]]
        if self._next == self._wrong:
            self._change(results)
        self._next += 1
        return results


def _all() -> list[Probe]:
    return command.probes(bits.Recorder(None))


NAMES = [probe.name for probe in _all()]


@pytest.fixture(scope="module")
def passed() -> dict[str, list[list[Any]]]:
    """Return the launches of each probe, all of which have passed."""
    found = {}
    for probe in _all():
        device = Remembering()
        check(probe.run(device))
        found[probe.name] = device.launches
    return found


# ---------------------------------------------------------------- each passes, and can fail


@pytest.mark.emulator
def test_all_probes_pass_in_the_emulator(passed: dict[str, list[list[Any]]]) -> None:
    assert list(passed) == NAMES
    assert all(passed.values())


# Results with planted mistakes: bits that TF32 lacks, other intermediate sums, payloads of NaN.
_SOME_ONLY = re.compile(r"cvt\.rna.*|places of sums.*|.*infinities.*")


def _compared(name: str, launches: list[list[Any]]) -> list[tuple[int, list[Any]]]:
    """Return numbers and results of the launches that are compared, without notes and inputs of later launches."""
    every = list(enumerate(launches))
    if name.startswith("places"):
        return every[:-1]
    return [every[0], every[-1]] if name.startswith("steps") else every


@pytest.mark.emulator
@pytest.mark.parametrize("name", NAMES)
def test_one_bit_that_differs_anywhere_is_noticed(passed: dict[str, list[list[Any]]], name: str) -> None:
    (probe,) = (probe for probe in _all() if probe.name == name)
    launches, random = passed[name], np.random.default_rng(1)
    for wrong, results in _compared(name, launches):
        for which in range(len(results)):

            def change(found: list[Any], which: int = which) -> None:
                patterns = found[which].reshape(-1).view(f"u{found[which].itemsize}")
                every_other = _SOME_ONLY.fullmatch(name) is not None
                at = slice(1, None, 2) if every_other else random.integers(patterns.size)
                bit = 20 if every_other else random.integers(8 * patterns.itemsize)
                patterns[at] ^= patterns.dtype.type(1 << bit)

            with pytest.raises(Wrong, match="expected"):
                check(probe.run(Repeating(launches, wrong, change)))


FAULTS = [
    ("ldmatrix", "base/ptx.cuh", "x4.trans.shared", "x4.shared"),
    ("cp.async", "base/ptx.cuh", "[%0], [%1], 16, %2;", "[%0], [%1], 16;"),
    ("cp.async in groups", "base/ptx.cuh", "cp.async.commit_group;", ""),
    ("max.NaN", "base/ptx.cuh", "max.NaN.f16x2", "max.f16x2"),
    ("cvt.rna.tf32", "base/ptx.cuh", "cvt.rna.tf32.f32 %0, %1;", "mov.b32 %0, %1;"),
    ("named barriers", "basic.cu", "4 + (group ^ 1)", "4 + group"),
    ("tickets and loads past L1", "base/tickets.cuh", "== all - 1", "== all - 2"),
    ("lanes and bytes", "base/ptx.cuh", "__shfl_up_sync(0xffffffff, value, 1)", "__shfl_up_sync(0xffffffff, value, 2)"),
    ("mma.sync bf16", "base/ptx.cuh", '"r"(a.y), "r"(a.z), "r"(a.w)', '"r"(a.z), "r"(a.y), "r"(a.w)'),
    ("mma.sync f64", "base/ptx.cuh", '"+d"(d0), "+d"(d1)', '"+d"(d1), "+d"(d0)'),
    ("mbarrier: a ring of ordinary stores", "conv/wgmma/ring.cuh", "parity ^ 1", "parity"),
    ("mbarrier: a ring of TMA copies", "tma.cu", "kStageWords * 4);\n        copy", "kStageWords * 2);\n        copy"),
    ("setmaxnreg", "base/hopper.cuh", "setmaxnreg.dec.sync.aligned.u32 %0;", ""),
    ("TMA boxes with a pitch", "base/hopper.cuh", "{%3, %4, %5, %6}], [%2];", "{%3, %5, %4, %6}], [%2];"),
    (
        "TMA boxes of patches, 64 bytes",
        "base/hopper.cuh",
        "{%3, %4, %5, %6, %7}], [%2];",
        "{%3, %5, %4, %6, %7}], [%2];",
    ),
    ("TMA im2col with strides", "base/hopper.cuh", "[%2], {%7, %8};", "[%2], {%8, %7};"),
    ("wgmma f16 64x256, B along K, 64 bytes", "base/hopper.cuh", "BYTES / 2", "BYTES / 4"),
    ("wgmma f16 64x256, B along columns, 128 bytes", "base/hopper.cuh", "NEXT / 16", "NEXT / 32"),
    (
        "wgmma f16 64x256, B along columns, 64 bytes",
        "base/hopper.cuh",
        "64ull << 32 | 1ull << 62",
        "64ull << 32 | 2ull << 62",
    ),
    (
        "wgmma tf32 64x64, A in registers, B along K, 128 bytes",
        "conv/wgmma/wgmma.cuh",
        '"r"(a[1]), "r"(a[2])',
        '"r"(a[2]), "r"(a[1])',
    ),
]


@pytest.mark.emulator
@pytest.mark.parametrize(("name", "file", "old", "new"), FAULTS, ids=[f"{fault[0]}: {fault[3]}" for fault in FAULTS])
def test_an_instruction_that_does_something_else_is_noticed(
    tmp_path: Path, name: str, file: str, old: str, new: str
) -> None:
    shutil.copytree(HEADERS, tmp_path / "include")
    shutil.copytree(FOLDER, tmp_path / "probes", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    path = tmp_path / ("probes" if file.endswith(".cu") else "include") / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    (probe,) = (probe for probe in _all() if probe.name == name)
    device = Emulated("sm_90a", tmp_path / "probes", tmp_path / "include")
    with pytest.raises((Wrong, EmulatorError)):
        check(probe.run(device))


# ---------------------------------------------------------------- rows


def _statuses(path: Path) -> dict[str, str]:
    return {line["row"]: line["status"] for line in read(path)}


@pytest.mark.emulator
def test_an_old_device_skips_what_it_does_not_have_and_keeps_its_sums(tmp_path: Path) -> None:
    rows, kept = tmp_path / "rows.jsonl", tmp_path / "bits.npz"
    arguments = ["--rows", str(rows), "--bits", str(kept)]
    assert command.main(arguments, Emulated("sm_80")) == 0
    found = _statuses(rows)
    assert set(found) == {probe.name for probe in _all()}
    skipped = {name for name, status in found.items() if status == "skipped"}
    assert skipped == {name for name in found if re.match(r".*(wgmma|TMA|mbarrier|setmaxnreg)", name)}
    assert all(status == "passed" for name, status in found.items() if name not in skipped)
    with np.load(kept) as file:
        for kind in KINDS:
            inputs = bits.operands(kind, len(file[f"mma_{kind}"]), 16, 8)
            np.testing.assert_array_equal(file[f"mma_{kind}"], rules.in_order(*inputs, kind).view(np.uint32))
            assert re.fullmatch("[0-9a-f]{64}", str(file[f"mma_{kind}_inputs"]))
    before = rows.read_bytes()
    assert command.main(arguments, Emulated("sm_80")) == 0  # nothing is left to do
    assert rows.read_bytes() == before


class _Broken(Emulated):
    """A device on which every launch fails, and which may then be lost."""

    def __init__(self, lost: bool) -> None:
        super().__init__()
        self.lost = lost

    def alive(self) -> bool:
        return not self.lost

    def run(self, *_: Any, **__: Any) -> list[Any]:
        raise RuntimeError("an illegal memory access was encountered")


def test_a_lost_device_leaves_its_row_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    assert command.main(["--rows", str(path)], _Broken(lost=True)) == 3
    assert Rows(path, "probes").open() == [NAMES[0]]
    assert "an illegal memory access" in capsys.readouterr().out


def test_any_other_error_fails_its_row_and_the_next_ones_go_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert command.main(["--rows", str(path)], _Broken(lost=False)) == 1
    assert set(_statuses(path).values()) == {"failed"}
    ended = [json.loads(line) for line in path.read_text().splitlines() if "failed" in line]
    assert ended[0]["detail"] == "RuntimeError: an illegal memory access was encountered"


def test_no_row_is_begun_when_the_time_is_up(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    command.main(["--rows", str(path), "--step", "first", "--seconds", "0"], _Broken(lost=False))
    assert list(_statuses(path)) == list(Rows(path, "first").ended) == [NAMES[0]]


def test_without_a_difference_to_look_for_nothing_passes() -> None:
    with pytest.raises(Wrong, match="nothing was compared"):
        check(iter(()))


# ---------------------------------------------------------------- every instruction has its probe


def _opcodes() -> Iterator[str]:
    """Yield the instructions of the asm statements of all kernels."""
    for path in sorted(HEADERS.rglob("*.cu*")):
        for statement in re.finditer(r"\basm\b(?:\s+volatile)?\s*\((.*?)\);", path.read_text(), re.DOTALL):
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', re.split(r'"\s*:', statement[1])[0] + '"'))
            for part in re.split(r"[;{}]|\\n", text):
                opcode = re.match(r"\s*(?:@!?\w+\s+)?([a-z]+(?:\.\w+(?:::\w+)?)+)\s", part + " ")
                if opcode is not None:
                    yield opcode[1]


def test_every_instruction_of_the_kernels_is_in_the_table() -> None:
    assert probes.__doc__ is not None
    table = probes.__doc__.split("====\n")[2]
    listed = [line[:52].strip().split(", ") for line in table.splitlines() if not line.startswith("=")]
    known = {opcode for line in listed for opcode in line}
    found = set(_opcodes())
    assert {"mma", "ldmatrix", "setmaxnreg", "mbarrier", "bar"} <= {opcode.split(".")[0] for opcode in found}
    missing = {opcode for opcode in found if not any(opcode == one or opcode.startswith(one + ".") for one in known)}
    assert not missing


def test_the_table_names_probes_that_there_are() -> None:
    assert probes.__doc__ is not None
    table = probes.__doc__.split("====\n")[2]
    every = [probe.name for probe in _all()]
    for line in table.splitlines():
        for name in line[53:].split("; ") if line[:1] not in "=" else ():
            beginning = re.split(r" …|, of TMA|, TMA", name)[0]
            assert name.startswith("none: ") or any(one.startswith(beginning) for one in every), name


# ---------------------------------------------------------------- rules of sums


def _cut(value: Fraction, bit: int) -> Fraction:
    """Return a number with all bits below 2**bit cleared."""
    unit = Fraction(2) ** bit
    return floor(abs(value) / unit) * unit * (1 if value >= 0 else -1)


def _exponent(value: Fraction) -> int:
    return frexp(float(value))[1] - 1


def _one_sum(a: list[float], b: list[float], c: float, width: int, fraction: int) -> Fraction:
    total = Fraction(c)
    for first in range(0, len(a), width):
        factors = [(Fraction(x), Fraction(y)) for x, y in zip(a, b, strict=True)][first : first + width]
        terms = [(x * y, _exponent(x) + _exponent(y)) for x, y in factors if x * y] + [(total, _exponent(total))][
            : total != 0
        ]
        if not terms:
            continue
        largest = max(exponent for _, exponent in terms)
        total = sum((_cut(term, largest - fraction) for term, _ in terms), Fraction(0))
        total = _cut(total, _exponent(total) - 23) if total else total
    return total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", [rules.Fused(8, 25), rules.Fused(4, 24)])
def test_fused_sums_are_those_of_exact_fractions(kind: str, rule: rules.Fused) -> None:
    a, b, c = bits.operands(kind, 2, 5, 3)
    got = rules.fused(a, b, c, kind, rule)
    for tile, row, column in np.ndindex(2, 5, 3):
        factors = [numbers(x, kind).tolist() for x in (a[tile, row], b[tile, column])]
        expected = _one_sum(*factors, float(c[tile, row, column]), rule.width, rule.fraction)
        assert Fraction(float(got[tile, row, column])) == expected


def test_what_is_published_tells_hopper_from_ampere() -> None:
    """Added to 1, sixteen products of 2**-25 count on Hopper, not on Ampere; those of 2**-26 count on neither."""
    a, b, c = np.full((1, 1, 16), 2.0**-12), np.full((1, 1, 16), 2.0**-13), np.ones((1, 1, 1), np.float32)
    a, b = a.astype(np.float16).view(np.uint16), b.astype(np.float16).view(np.uint16)
    lower = np.full((1, 1, 16), 2.0**-14).astype(np.float16).view(np.uint16)
    sums = {
        architecture: [
            float(rules.fused(a, x, c, "f16", rules.published("f16", architecture))[0, 0, 0]) for x in (b, lower)
        ]
        for architecture in ("sm_80", "sm_90a")
    }
    assert sums == {"sm_80": [1.0, 1.0], "sm_90a": [1 + 2.0**-21, 1.0]}


@pytest.mark.parametrize("kind", KINDS)
def test_operands_tell_all_rules_apart(kind: str) -> None:
    inputs = bits.operands(kind, 64, 16, 8)
    every = [rules.in_order(*inputs, kind), *(rules.fused(*inputs, kind, rule) for rule in rules.family(kind))]
    assert all(np.isfinite(sums).all() for sums in every)
    assert len({sums.tobytes() for sums in every}) == len(every)
    assert len(every) == 1 + 16 * {16: 4, 8: 3}[DEPTH[kind]]


def _as_if(rule: rules.Fused, kind: str) -> str:
    """Return a probe's verdict on tensor cores that add by a rule."""
    name = f"sums of mma.sync {kind}"
    (probe,) = (probe for probe in _all() if probe.name == name)

    def multiplied(device: Any, kind: str, form: Any, *inputs: Any) -> Any:
        return rules.fused(*inputs, kind, rule)

    with mock.patch.object(bits, "_multiplied", multiplied):
        return check(probe.run(Emulated()))


def test_tensor_cores_of_another_rule_are_recognised() -> None:
    said = _as_if(rules.published("bf16", "sm_90a"), "bf16")
    assert "the rule is as published: 16 products at once, 25 bits below the largest exponent, cut off" in said
    assert re.search(
        r"order of k, .*: no, \d+ of 4224 differ, first at \[\d.*as published: .*: yes, all 4224 sums", said
    )
    rule = rules.Fused(4, 23, nearest=True)
    said = _as_if(rule, "tf32")
    assert re.search(r"order of k, .*: no, .*as published: .*: no, ", said)
    assert f"the rule is neither the emulator's nor what was published, but {rule}" in said


@pytest.mark.parametrize("step", [1, -1])
def test_sums_of_float64_by_fused_multiply_adds_are_recognised(step: int) -> None:
    (probe,) = (probe for probe in _all() if probe.name == "sums of mma.sync f64, 16 x 8 x 16")

    def tile(device: Any, a: Any, b: Any, c: Any) -> Any:
        sums = c.copy()
        for k in range(a.shape[1])[::step]:
            for i, j in np.ndindex(sums.shape):
                sums[i, j] = float(Fraction(a[i, k]) * Fraction(b[j, k]) + Fraction(sums[i, j]))
        return sums

    with mock.patch.object(mma, "_double_tile", tile):
        said = check(probe.run(Emulated()))
    assert said.endswith("in the order of k" if step == 1 else "from the last k")
    assert "fused multiply-adds" in said


# ---------------------------------------------------------------- how a device is launched


def test_parameters_of_a_launch_are_where_the_driver_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy is replaced: each argument must be the address of a parameter's bytes."""
    seen: list[Any] = []

    def asarray(host: Any) -> Any:
        kept = np.array(host)
        return SimpleNamespace(data=SimpleNamespace(ptr=kept.ctypes.data), get=lambda: kept, kept=kept)

    def read_back(pointer: bytes) -> list[int]:
        return np.frombuffer(ctypes.string_at(int.from_bytes(pointer, "little"), 32), np.int64).tolist()

    def function(grid: Any, block: Any, pointers: Any, shared_bytes: int) -> None:
        sizes = (8, 4, 128, 8)
        parameters = [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)]
        seen.append((grid, block, shared_bytes, parameters, read_back(parameters[0])))
        result = int.from_bytes(parameters[3], "little")
        ctypes.memmove(result, np.array([7, 8], np.uint32).tobytes(), 8)

    function.ptr = 99  # type: ignore[attr-defined]
    told: list[Any] = []
    driver = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8, funcSetAttribute=lambda *given: told.append(given)
    )
    stream = SimpleNamespace(synchronize=lambda: seen.append("waited"))
    cuda = SimpleNamespace(
        function=SimpleNamespace(CPointer=lambda address: address), driver=driver, get_current_stream=lambda: stream
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=asarray, cuda=cuda))
    device = object.__new__(launch.Cuda)
    words = memoryview(bytes(range(128))).cast("Q")
    device._device = SimpleNamespace(tensor_map=lambda described: lambda address: words)
    program = Program("any", "kernel")
    device._functions = {program: function}
    x, mapped = np.arange(4), Mapped(np.zeros((2, 8), np.float32), None)  # type: ignore[arg-type]
    (got,) = device.run(program, 64, [x, -5, mapped, Result((2,))], shared_bytes=100_000, grid=3)
    (grid, block, shared_bytes, parameters, first), waited = seen
    assert first == [0, 1, 2, 3]
    assert (grid, block, shared_bytes, waited) == ((3, 1, 1), (64, 1, 1), 100_000, "waited")
    assert parameters[1] == (-5).to_bytes(4, "little", signed=True)
    assert parameters[2] == bytes(range(128))
    assert told == [(99, 8, 100_000)]
    assert got.tolist() == [7, 8]


def test_a_kernel_whose_registers_would_not_change_hands_is_refused() -> None:
    with (
        mock.patch.object(
            launch.nvrtc, "build", return_value=(b"", "ptxas info : (C7508) setmaxnreg ignored to maintain")
        ),
        pytest.raises(launch.Refused, match="setmaxnreg"),
    ):
        compiled("tma", ("SOMETHING=1",), "sm_90a")


def test_probes_are_told_apart_by_their_names() -> None:
    every = [probe.name for probe in _all()]
    assert len(set(every)) == len(every)
    assert replace(_all()[0], architectures=("sm_90a",)).runs_on("sm_80") is False
