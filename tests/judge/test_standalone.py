"""The judges without gpuconv, judge.c and judge.py: on hand-written suites, their verdicts are those of gpuconv."""

from __future__ import annotations

import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from gpuconv.judge import flat, verdicts
from tests.judge.samples import copied_suite
from tests.judge.samples import tests as samples

SOURCES = Path(flat.__file__).with_name("standalone")
DATA = "test_data_set_0"
NAN, INF = float("nan"), float("inf")
LOOSER = ("tf32_bound", "narrow_bound", "wide_bound", "transform_bound")
Array = Any


@functools.cache
def program() -> Path:
    """Compile judge.c with the sanitizers for addresses and undefined behaviour."""
    compiler = next((found for name in ("cc", "gcc", "g++", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        if os.environ.get("GPUCONV_REQUIRE_EMULATOR"):
            pytest.fail("there is no C compiler")
        pytest.skip("there is no C compiler")
    made = Path(mkdtemp()) / "judge"
    words = [compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-g"]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    source = ["-x", "c", str(SOURCES / "judge.c"), "-o", str(made), "-lm"]
    subprocess.run([*words, *checks, *source], check=True)
    return made


JUDGES: dict[str, Callable[[], list[str]]] = {
    "judge.c": lambda: [str(program())],
    "judge.py": lambda: [sys.executable, "-I", str(SOURCES / "judge.py")],
}


def run(judge: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*JUDGES[judge](), *map(str, words)], capture_output=True, text=True, check=False)


# ---------------------------------------------------------------- suites and outputs, made by hand


def alternative(kind: str = "whole", of: str | None = None, nan: bool = False) -> dict[str, Any]:
    verdict = "inconsistent when mixed" if nan else "differs"
    return {"sentence": f"{kind} of {of}", "kind": kind, "of": of, "verdict": verdict}


def store(folder: Path, name: str, arrays: dict[str, Array], **facts: Any) -> None:
    """Write one test in all of its formats."""
    facts = {"name": name, "operator": "conv", "opset": 22, "type": arrays["output_0"].dtype.name, "rank": 1,
             "rule": "a rule", "rules": ["a rule"], "sentence": "", "status": "specified", "quotation": None,
             "discussions": [], "upstream": {}, "valid": True, "onnx_shape": None, "attributes": {}, "inputs": [],
             "constants": [], "outputs": [], "bits": False, "alternatives": {}} | facts  # fmt: skip
    data = folder / name / DATA
    data.mkdir(parents=True)
    (folder / name / "case.json").write_text(json.dumps(facts))
    (folder / name / "test.flat").write_bytes(flat.pack(facts, arrays))
    for title, array in arrays.items():
        onnx.save_tensor(numpy_helper.from_array(array, title), data / f"{title}.pb")
        np.save(data / f"{title}.npy", array.view(np.uint16) if array.dtype.name == "bfloat16" else array)


def finish(folder: Path) -> Path:
    names = sorted(path.name for path in folder.iterdir())
    (folder / "suite.json").write_text(json.dumps({"format": 2, "tests": names}))
    (folder / "tests.txt").write_text("".join(f"{name}\n" for name in names))
    return folder


def floats(*values: float, dtype: Any = np.float32) -> Array:
    return np.array(values, dtype)


def zeros(*arrays: Array) -> dict[str, Array]:
    return {f"bound_{n}": np.zeros(array.shape) for n, array in enumerate(arrays)}


def sums(folder: Path) -> None:
    """Write sums with bounds, one of them infinite."""
    y = floats(1, 2, 3, 4)
    arrays = {"output_0": y, "bound_0": floats(0.5, 0.25, INF, 0, dtype=float)}
    store(folder, "sums", arrays)
    store(
        folder,
        "double",
        {"output_0": y.astype(np.float64), "bound_0": np.full(4, 1e-9), "narrow_bound_0": np.full(4, 1e-3)},
    )
    more = {"tf32_bound_0": np.full(4, 2.0), "transform_bound_0": np.full(4, 4.0)}
    store(folder, "products", {**arrays, **more})
    for dtype in (np.float16, ml_dtypes.bfloat16):
        name = np.dtype(dtype).name
        store(
            folder,
            f"half_{name}",
            {"output_0": y.astype(dtype), "bound_0": np.full(4, 2.0**-9), "wide_bound_0": np.full(4, 0.5)},
        )


def windows(folder: Path) -> None:
    """Write MaxPool with Indices, with empty windows and NaN; one alternative is for elements of another one."""
    y, indices = floats(1, 2, 3, -9), np.array([0, 1, 2, -1])
    arrays: dict[str, Array] = {"output_0": y, "output_1": indices, **zeros(y, indices)}
    others = {"zero": alternative("element"), "lowest": alternative("element"), "turned": alternative(),
              "turned_zero": alternative("element", "turned")}  # fmt: skip
    answers = {
        "zero": (floats(1, 2, 3, 0), indices),
        "lowest": (y, np.array([0, 1, 2, 3])),
        "turned": (y[::-1], indices[::-1]),
        "turned_zero": (floats(0, 3, 2, 1), np.array([3, 2, 1, 0])),
    }
    for name, (values, places) in answers.items():
        arrays |= {
            f"alternative_{name}_0": np.ascontiguousarray(values),
            f"alternative_{name}_1": np.ascontiguousarray(places),
        }
    store(folder, "windows", arrays, alternatives=others)


def positions(folder: Path) -> None:
    """Write NaN, which one answer keeps and another ignores; and an answer of another shape."""
    y, ignored, longer = floats(NAN, NAN, 3), floats(1, 2, 3), floats(1, 2, 3, 4, 5)
    arrays = {"output_0": y, **zeros(y), "alternative_ignored_0": ignored, "alternative_longer_0": longer}
    others = {"ignored": alternative(nan=True), "longer": alternative()}
    store(folder, "positions", arrays, alternatives=others)
    bound, other = floats(0.5, INF, dtype=float), floats(3.3e38, 7)
    arrays = {"output_0": floats(1, 3e38), "bound_0": bound, "alternative_other_0": other}
    store(folder, "large", arrays, alternatives={"other": alternative()})


def kinds(folder: Path) -> None:
    """Write integers, bits, an invalid model, outputs without elements, and outputs of rank 0."""
    for dtype in ("int8", "uint8"):
        y = np.array([[1, 100], [3, 255]]).astype(dtype)
        store(folder, f"whole_{dtype}", {"output_0": y, **zeros(y)})
    y = np.array([0x7FC00001, 0x80000000, 0x3F800000], np.uint32).view(np.float32)
    store(folder, "bits", {"output_0": y, **zeros(y)}, bits=True)
    store(folder, "invalid", {"output_0": y, **zeros(y)}, valid=False)
    for name, shape in (("empty", (0, 3)), ("scalar", ())):
        y = np.ones(shape, np.float32)
        store(folder, name, {"output_0": y, **zeros(y)})


@functools.cache
def suite() -> Path:
    folder = Path(mkdtemp()) / "suite"
    for write in (sums, windows, positions, kinds):
        write(folder)
    return finish(folder)


BF16 = functools.partial(floats, dtype=ml_dtypes.bfloat16)
# Name of the test, outputs, verdict by hand.
OUTPUTS: tuple[tuple[str, tuple[Array, ...], str], ...] = (
    ("sums", (floats(1, 2, 3, 4),), "agrees"),
    ("sums", (floats(1.5, 1.75, NAN, 4),), "agrees"),
    ("sums", (floats(np.nextafter(np.float32(1.5), np.float32(2)), 2, 3, 4),), "wrong"),
    ("sums", (floats(1, 2, 3, np.nextafter(np.float32(4), np.float32(5))),), "wrong"),
    ("sums", (floats(1, NAN, 3, 4),), "wrong"),
    ("sums", (floats(1, INF, 3, 4),), "wrong"),
    ("sums", (floats(1, 2, 3),), "wrong"),
    ("sums", (floats(1, 2, 3, 4).reshape(2, 2),), "wrong"),
    ("sums", (floats(1, 2, 3, 4), floats(1)), "wrong"),
    ("sums", (floats(1, 2, 3, 4, dtype=np.float64),), "differs"),
    ("sums", (floats(1, 2, 3, 4 + 2.0**-40, dtype=np.float64),), "differs"),
    ("sums", (floats(1, 2, 3, 5, dtype=np.float64),), "wrong"),
    ("sums", (floats(1, 2, 3, 4, dtype=np.float16),), "wrong"),
    ("sums", (np.array([1, 2, 3, 4], np.int32),), "wrong"),
    ("double", (floats(1, 2 + 1e-10, 3, 4, dtype=float),), "agrees"),
    ("double", (floats(1, 2 + 1e-7, 3, 4, dtype=float),), "differs"),
    ("double", (floats(1, 2, 3, 4.1, dtype=float),), "wrong"),
    ("products", (floats(1, 2, 3, 5),), "differs"),
    ("products", (floats(1, 2, 3, 7),), "differs"),
    ("products", (floats(1, 2, 3, 9),), "wrong"),
    ("half_float16", (floats(1, 2, 3, 4, dtype=np.float16),), "agrees"),
    ("half_float16", (floats(1, 2, 3, 4.25, dtype=np.float16),), "differs"),
    ("half_float16", (floats(1, 2, 3, 4.75, dtype=np.float16),), "wrong"),
    ("half_float16", (floats(1, 2, 3 + 2.0**-13, 4),), "differs"),
    ("half_bfloat16", (BF16(1, 2, 3, 4),), "agrees"),
    ("half_bfloat16", (BF16(1, 2, 3, 4.25),), "differs"),
    ("half_bfloat16", (BF16(1, 2, 3, 4.75),), "wrong"),
    ("half_bfloat16", (floats(1, 2, 3 + 2.0**-13, 4),), "differs"),
    ("half_bfloat16", (floats(1, 2, 3, 4, dtype=np.float16),), "wrong"),
    ("windows", (floats(1, 2, 3, -9), np.array([0, 1, 2, -1])), "agrees"),
    ("windows", (floats(1, 2, 3, 0), np.array([0, 1, 2, 3])), "differs"),
    ("windows", (floats(1, 2, 3, 0), np.array([0, 1, 2, -1])), "differs"),
    ("windows", (floats(-9, 3, 2, 1), np.array([-1, 2, 1, 0])), "differs"),
    ("windows", (floats(0, 3, 2, 1), np.array([-1, 2, 1, 0])), "differs"),
    ("windows", (floats(-9, 3, 2, 1), np.array([0, 1, 2, -1])), "wrong"),  # Y of one answer, Indices of another
    ("windows", (floats(-9, 2, 3, 0), np.array([0, 1, 2, -1])), "wrong"),
    ("windows", (floats(0, 2, 3, -9), np.array([0, 1, 2, -1])), "wrong"),  # its 0 is allowed in the other answer
    ("windows", (floats(1, 2, 3, -9),), "wrong"),
    ("windows", (floats(1, 2, 3, -9), np.array([0, 1, 2, -1], np.int32)), "wrong"),
    ("positions", (floats(NAN, -NAN, 3),), "agrees"),
    ("positions", (floats(1, 2, 3),), "differs"),
    ("positions", (floats(1, 2, 3, 4, 5),), "differs"),
    ("positions", (floats(NAN, 2, 3),), "inconsistent"),
    ("positions", (floats(2, NAN, 3),), "wrong"),
    ("large", (floats(1.25, 7),), "agrees"),
    ("large", (floats(INF, 7.25),), "differs"),
    ("large", (floats(INF, 8),), "wrong"),
    ("whole_int8", (np.array([[1, 100], [3, -1]], np.int8),), "agrees"),
    ("whole_int8", (np.array([[1, 100], [3, 1]], np.int8),), "wrong"),
    ("whole_uint8", (np.array([[1, 100], [3, 255]], np.uint8),), "agrees"),
    ("whole_uint8", (np.array([[1, 100], [3, -1]], np.int8),), "wrong"),
    ("bits", (np.array([0x7FC00001, 0x80000000, 0x3F800000], np.uint32).view(np.float32),), "agrees"),
    ("bits", (np.array([0x7FC00000, 0, 0x3F800000], np.uint32).view(np.float32),), "differs"),
    ("bits", (floats(NAN, 0, 2),), "wrong"),
    ("invalid", (floats(NAN, 0, 1),), "agrees"),
    ("invalid", (floats(NAN, 0, 2),), "wrong"),
    ("empty", (np.ones((0, 3), np.float32),), "agrees"),
    ("empty", (np.ones((3, 0), np.float32),), "wrong"),
    ("scalar", (floats(1).reshape(()),), "agrees"),
    ("scalar", (floats(1),), "wrong"),
    # Beside an element of an alternative, of an element alternative or of one that holds for all, one of none.
    ("windows", (floats(1, 2, 3, 0), np.array([0, 1, 7, -1])), "wrong"),
    ("windows", (floats(-9, 2, 5, -9), np.array([0, 1, 2, -1])), "wrong"),
    ("products", (floats(2.9, 6, 3, 9), ), "wrong"),
)  # fmt: skip


def save(folder: Path, arrays: tuple[Array, ...], suffix: str) -> None:
    folder.mkdir(parents=True)
    for number, array in enumerate(arrays):
        path = folder / f"output_{number}{suffix}"
        if suffix == ".flat":
            path.write_bytes(flat.pack({}, {"anything": array}))
        else:
            np.save(path, array.view(np.uint16) if array.dtype.name == "bfloat16" else array)


@functools.cache
def judged() -> tuple[Path, Path]:
    """Return a suite with a test for each entry of OUTPUTS, and the folder of these outputs, half of them flat."""
    tests, outputs = Path(mkdtemp()) / "suite", Path(mkdtemp())
    for number, (name, arrays, _) in enumerate(OUTPUTS):
        shutil.copytree(suite() / name, tests / f"test{number:02}")
        save(outputs / f"test{number:02}", arrays, ".flat" if number % 2 else ".npy")
    return finish(tests), outputs


def lines(judge: str, *options: str) -> dict[str, str]:
    """Return the verdicts on OUTPUTS."""
    return printed(judge, *judged(), *options)


def by_hand() -> dict[str, str]:
    return {f"test{number:02}": verdict for number, (_, _, verdict) in enumerate(OUTPUTS)}


@pytest.mark.parametrize("judge", JUDGES)
def test_verdicts_by_hand(judge: str) -> None:
    assert lines(judge) == by_hand()
    tests, outputs = judged()
    done = run(judge, tests, outputs)
    counts = {name: list(by_hand().values()).count(name) for name in ("agrees", "differs", "inconsistent", "wrong")}
    text = ", ".join(f"{count} {name}" for name, count in counts.items())
    assert done.stdout.splitlines()[-1] == f"{len(OUTPUTS)} tests: {text}, 0 refuses, 0 crashes"
    assert (done.returncode, done.stderr) == (1, "")


def test_gpuconv_agrees_with_the_verdicts_by_hand() -> None:
    tests, _ = judged()
    for number, (name, arrays, verdict) in enumerate(OUTPUTS):
        assert verdicts.judge(verdicts.Test(tests / f"test{number:02}"), list(arrays)).kind == verdict, (number, name)


def test_both_print_the_same_lines() -> None:
    """Including the reasons: indices, values, counts, factors, names of alternatives."""
    first, second = (run(judge, *judged()).stdout.splitlines() for judge in JUDGES)
    assert first == second
    assert "wrong test04: output 0[1] is nan, expected 2 (1 of 4 elements differ)" in first
    assert "differs test15: float64 computed in float32, 100 times the bound" in first
    assert "wrong test50: output 0[1, 1] is -1, expected 255" not in first
    more = "2 of 4 elements differ, 1 of them from every alternative, too"
    assert [line.partition(": ")[2] for line in first[-4:-1]] == [
        "output 1[2] is 7, expected 2 (1 of 4 elements differ)",
        f"output 0[2] is 5, expected 3 ({more})",
        f"output 0[3] is 9, expected 4 ({more.replace('2 of 4', '3 of 4')})",
    ]


def mixture(test: verdicts.Test, random_: random.Random) -> list[Array]:
    """Mix elements of all of a test's answers, some of them off by about one of the bounds."""
    answers = [test.tensors("output"), *(test.tensors(f"alternative_{name}") for name in test.facts["alternatives"])]
    first = random_.choice(answers)
    answers = [answer for answer in answers if [y.shape for y in answer] == [y.shape for y in first]]
    kinds = [kind for kind in ("bound", *LOOSER) if test.tensors(kind)]
    made = []
    for number, y in enumerate(first):
        flat_ = y.ravel().copy()
        bounds = test.tensors(random_.choice(kinds))
        share = random_.choice((0, 0, 0.1, 0.5))
        for index in range(flat_.size):
            if random_.random() < share:
                flat_[index] = random_.choice(answers)[number].ravel()[index]
        if flat_.dtype.kind not in "iu" and flat_.size and random_.random() < 0.5:
            index = random_.randrange(flat_.size)
            limit = float(bounds[number].ravel()[index]) if bounds[number].size == flat_.size else 1.0
            off = float(flat_[index]) + random_.choice((-1.01, -0.9, 0.5, 1, 1.001, 3, NAN)) * limit
            with np.errstate(all="ignore"):
                flat_[index] = np.array(off).astype(flat_.dtype)
        made.append(flat_.reshape(y.shape))
    if made[0].dtype == np.float32 and random_.random() < 0.1:
        made[0] = made[0].astype(np.float64)
    return made


def mixed(tests: list[verdicts.Test], folder: Path, seed: int, count: int) -> dict[str, str]:
    """Write a suite of `count` copies of tests with mixtures as outputs; return gpuconv's verdicts with elements."""
    random_, found = random.Random(seed), {}
    for number in range(count):
        test, name = random_.choice(tests), f"mixed{number:04}"
        arrays = mixture(test, random_)
        shutil.copytree(test.folder, folder / "suite" / name)
        save(folder / "outputs" / name, tuple(arrays), random_.choice((".npy", ".flat")))
        verdict = verdicts.judge(test, arrays)
        number, *at = verdict.element or (None,)
        found[name] = f"{verdict.kind} " + ("" if number is None else f"output {number}{at}")
    finish(folder / "suite")
    return found


def printed(judge: str, tests: Path, outputs: Path, *options: str) -> dict[str, str]:
    """Return the verdicts that a judge prints, "agrees" for all other tests."""
    others = dict(
        reversed(line.split(":")[0].split()) for line in run(judge, tests, outputs, *options).stdout.splitlines()[:-1]
    )
    return {name: others.get(name, "agrees") for name in (tests / "tests.txt").read_text().split()}


def cited(judge: str, folder: Path) -> dict[str, str]:
    """Return the verdicts that a judge prints of mixtures, each with the element that its reason cites."""
    found = printed(judge, folder / "suite", folder / "outputs")
    elements = dict.fromkeys(found, "")
    for line in run(judge, folder / "suite", folder / "outputs").stdout.splitlines()[:-1]:
        element = re.search(r"output \d\[[\d, ]*\]", line)
        elements[line.split(":")[0].split()[1]] = element[0] if element else ""
    return {name: f"{found[name]} {elements[name]}" for name in found}


def test_mixtures_of_answers(tmp_path: Path) -> None:
    """All three judges give the same verdicts on random mixtures, and each verdict occurs."""
    tests = [verdicts.Test(path) for path in sorted(suite().iterdir()) if path.is_dir()]
    found = mixed(tests, tmp_path, 0, 250)
    for judge in JUDGES:
        assert cited(judge, tmp_path) == found
    kinds = {verdict.split()[0] for verdict in found.values()}
    assert kinds == {"agrees", "differs", "inconsistent", "wrong"}


# ---------------------------------------------------------------- what a target claims, refuses, or leaves out


@pytest.mark.parametrize("judge", JUDGES)
def test_claims(judge: str) -> None:
    """--precision and --accumulate turn exactly those failures into agreement that are within their bounds."""
    for options, numbers in (
        (("--precision", "tf32"), (17,)),
        (("--accumulate", "float16"), (21,)),
        (("--accumulate", "bfloat16"), (25,)),
    ):
        assert lines(judge, *options) == by_hand() | {f"test{number}": "agrees" for number in numbers}
    assert run(judge, *judged(), "--accumulate", "loat").returncode == 2


@pytest.mark.parametrize("judge", JUDGES)
def test_exit_codes(judge: str) -> None:
    for filter_, codes in (
        ("test00", (0, 0)),
        ("test09", (0, 1)),
        ("test02", (1, 1)),
        ("test42", (1, 1)),
        ("no such", (2, 2)),
    ):
        done = [run(judge, *judged(), "--filter", filter_, *strict).returncode for strict in ((), ("--strict",))]
        assert tuple(done) == codes, filter_


@pytest.mark.parametrize("judge", JUDGES)
def test_refusals_and_missing_outputs(judge: str, tmp_path: Path) -> None:
    """Refusing agrees where a correct checker rejects the model, too."""
    for name in ("sums", "invalid", "windows"):
        (tmp_path / name).mkdir()
    for name in ("sums", "invalid"):
        (tmp_path / name / "refused.txt").write_bytes(b" no \x1b[31m\xff3-D\nsecond line")
    np.save(tmp_path / "windows" / "output_0.npy", floats(1, 2, 3, -9))
    done = run(judge, suite(), tmp_path)
    found = done.stdout.splitlines()
    assert "refuses sums: no  [31m 3-D" in found
    assert not any("invalid" in line for line in found)
    assert "wrong windows: 1 outputs, expected 2" in found
    assert "crashes empty: neither refused.txt nor output_0.npy nor output_0.flat" in found
    assert done.returncode == 1


def npy(dtype: str, shape: str) -> bytes:
    """Return the header of a .npy file without any data."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("output_0.npy", b""),
        ("output_0.npy", b"\x93NUMPY\x01\x00\xff\xff{}"),
        ("output_0.npy", npy("<f4", "(9999999999999, 9999999)")),
        ("output_0.npy", npy("<f4", "(2, -3)")),
        ("output_0.npy", npy("<f4", "(4,)")),
        ("output_0.npy", npy("|O", "(0,)")),
        ("output_0.npy", npy("<c8", "(0,)")),
        ("output_0.flat", b"FLAT0001"),
        ("output_0.flat", b"FLAT0001" + (1).to_bytes(8, "little") + bytes(176)),
        ("output_0.flat", b"FLAT0001" + (1).to_bytes(8, "little") + b"\xff" * 176),
    ],
)  # fmt: skip
def test_unreadable_outputs_are_crashes(judge: str, name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "sums").mkdir()
    (tmp_path / "sums" / name).write_bytes(content)
    done = run(judge, suite(), tmp_path, "--filter", "sums")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"crashes sums: {name}: ")
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize("judge", JUDGES)
def test_npy_files_of_other_orders(judge: str, tmp_path: Path) -> None:
    """Fortran order, big-endian numbers, bfloat16 as np.save writes it."""
    y = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    bits = BF16(1, 2, 3)
    for name, array in (("a", y), ("b", bits)):
        store(tmp_path / "suite", name, {"output_0": array, **zeros(array)})
    finish(tmp_path / "suite")
    for number, array in enumerate((np.asfortranarray(y), y.astype(">f4"), np.asfortranarray(y.astype(">f4")))):
        outputs = tmp_path / str(number)
        save(outputs / "a", (), ".npy")
        save(outputs / "b", (), ".npy")
        np.save(outputs / "a" / "output_0.npy", array)
        np.save(outputs / "b" / "output_0.npy", bits)
        done = run(judge, tmp_path / "suite", outputs)
        assert (done.returncode, done.stdout.splitlines()[0][:16]) == (0, "2 tests: 2 agree"), done.stdout


# ---------------------------------------------------------------- broken suites


def mutated(content: bytes, random_: random.Random) -> bytes:
    """Cut, change or repeat some bytes, most often among the first ones."""
    changed = bytearray(content)
    for _ in range(random_.choice((1, 1, 2, 8))):
        at = random_.randrange(len(changed) if random_.random() < 0.5 else min(len(changed), 200))
        kind = random_.randrange(4)
        if kind == 0:
            changed[at] = random_.choice((0, 1, 7, 0x7F, 0x80, 0xFF, random_.randrange(256)))
        elif kind == 1:
            changed[at : at + 8] = random_.choice((-1, 0, 1, 2**31, 2**62, -(2**63), 2**63 - 1)).to_bytes(
                8, "little", signed=True
            )
        elif kind == 2:
            del changed[at:]
        else:
            changed[at:at] = changed[at : at + random_.randrange(1, 80)]
        if not changed:
            break
    return bytes(changed)


def mutants(folder: Path, seed: int, count: int) -> Iterator[tuple[Path, Path]]:
    """Yield suites and outputs with mutated files; the number of tests in each is `count`."""
    random_ = random.Random(seed)
    tests, outputs = judged()
    names = sorted(path.name for path in tests.iterdir() if path.is_dir())
    for number in range(count):
        name = random_.choice(names)
        source, target = tests / name, folder / "suite" / f"m{number:03}"
        shutil.copytree(source, target)
        shutil.copytree(outputs / name, folder / "outputs" / target.name)
        for path in (*random_.sample(sorted(target.rglob("*.npy")), 1), target / "case.json", target / "test.flat",
                     *(folder / "outputs" / target.name).iterdir()):  # fmt: skip
            if random_.random() < 0.5:
                path.write_bytes(mutated(path.read_bytes(), random_))
    yield finish(folder / "suite"), folder / "outputs"


def check_mutants(judge: str, folder: Path, seed: int, count: int) -> None:
    """Each test has a verdict or is named as broken in one line; no crash, no message of a sanitizer."""
    for tests, outputs in mutants(folder, seed, count):
        done = run(judge, tests, outputs)
        *shown, total = done.stdout.splitlines()
        broken = done.stderr.splitlines()
        assert done.returncode == (2 if broken else 1), done.stderr
        assert all(line.startswith("judge: the suite is broken: m") and len(line) < 700 for line in broken), done.stderr
        assert int(total.split()[0]) + len(broken) == count
        agrees = int(total.split(": ")[1].split()[0])
        assert len({line.split()[1] for line in shown}) == len(shown) == int(total.split()[0]) - agrees


@pytest.mark.parametrize("judge", JUDGES)
def test_mutated_files_are_no_crash(judge: str, tmp_path: Path) -> None:
    check_mutants(judge, tmp_path, 0, 150)


@pytest.mark.parametrize("judge", JUDGES)
def test_a_missing_suite_is_one_line(judge: str, tmp_path: Path) -> None:
    for tests in (tmp_path / "none", tmp_path):
        done = run(judge, tests, tmp_path)
        assert (done.returncode, len(done.stderr.splitlines()), done.stdout) == (2, 1, "")
    (tmp_path / "tests.txt").write_text("../outside\n")
    (tmp_path / "suite.json").write_text('{"tests": ["../outside"]}')
    assert run(judge, tmp_path, tmp_path).returncode == 2


# ---------------------------------------------------------------- the suite that gpuconv writes


@functools.cache
def example() -> Path:
    """Compile max_pool.c."""
    made = Path(mkdtemp()) / "max_pool"
    words = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-fsanitize=address,undefined"]
    subprocess.run([*words, str(SOURCES / "max_pool.c"), "-o", str(made)], check=True)
    return made


def test_the_example_of_a_target(tmp_path: Path) -> None:
    """max_pool.c answers each MaxPool of float32 that it does not refuse correctly, and refuses all other tests."""
    program()
    tests = copied_suite(tmp_path)
    names = (tests / "tests.txt").read_text().split()
    for name in names:
        outputs = tmp_path / "outputs" / name
        outputs.mkdir(parents=True)
        done = subprocess.run([example(), tests / name, outputs], capture_output=True, check=False)
        if done.returncode:
            (outputs / "refused.txt").write_bytes(done.stderr)
    found = printed("judge.c", tests, tmp_path / "outputs")
    kinds = {(name, json.loads((tests / name / "case.json").read_text())["operator"]) for name in names}
    pools = {name for name, operator in kinds if operator == "max_pool" and "_float32_" in name}
    assert {name for name, kind in found.items() if kind == "agrees"} == {n for n in pools if "with_indices" not in n}
    assert set(found.values()) == {"agrees", "refuses"}


def test_the_suite_has_the_judges_and_equal_arrays(tmp_path: Path) -> None:
    """The arrays and entries of test.flat are those of the .pb files and of case.json."""
    tests = copied_suite(tmp_path)
    for name in ("judge.c", "judge.py", "max_pool.c"):
        assert (tests / name).read_bytes() == (SOURCES / name).read_bytes()
    names = json.loads((tests / "suite.json").read_text())["tests"]
    assert (tests / "tests.txt").read_text().split() == names
    for name in names:
        records = flat.unpack((tests / name / "test.flat").read_bytes())
        paths = sorted((tests / name / DATA).glob("*.pb"))
        assert paths
        for path in paths:
            array, found = verdicts.read(path), records.pop(path.stem)
            assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
        facts = json.loads((tests / name / "case.json").read_text())
        for attribute, value in facts["attributes"].items():
            found = records.pop(f"attributes.{attribute}")
            assert (found if isinstance(value, str) else found.tolist()) == value
        for alternative_, about in facts["alternatives"].items():
            for key, value in about.items():
                assert records.pop(f"alternatives.{alternative_}.{key}", None) == value
        assert records == {key: facts[key] for key in records}
        assert {"operator", "opset", "type", "bits", "valid"} <= set(records)


def test_mixtures_of_the_suite_s_answers(tmp_path: Path) -> None:
    found = mixed(list(samples()), tmp_path, 1, 150)
    for judge in JUDGES:
        assert cited(judge, tmp_path) == found


def test_what_a_flat_file_cannot_hold() -> None:
    with pytest.raises(ValueError, match="at most 95 bytes"):
        flat.pack({}, {"x" * 96: floats(1)})
    with pytest.raises(ValueError, match="at most 8 axes, not 9"):
        flat.pack({}, {"x": np.zeros((1,) * 9)})
    with pytest.raises(ValueError, match="no type complex64"):
        flat.pack({}, {"x": np.zeros(1, np.complex64)})
    content = flat.pack({"opset": 22}, {"x": floats(1, 2, 3)})
    for size in range(len(content) - 4):  # the last four bytes are padding
        with pytest.raises(ValueError, match=r"^it (ends in|does not begin)"):
            flat.unpack(content[:size])
