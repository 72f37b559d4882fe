"""Structs read from CUDA sources: offsets computed by hand, by the rules of C."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from gpuconv import CompileError
from gpuconv.cuda.build import structs
from tests.harness.declared import SOURCES
from tests.harness.toolchain import kernels

Write = Callable[[Mapping[str, str]], Path]
__all__ = ["kernels"]  # a fixture

CONSTANTS = """#include "base/divider.cuh"
constexpr int kSum = kFour + 1;
constexpr long long kOther = 2;
void one() { }
    constexpr int kTwice = 2, kOnce = 7;
    constexpr int kTwice = 3;
"""


@pytest.fixture(autouse=True)
def written(kernels: Write) -> None:
    kernels(SOURCES)


def _offsets(name: str) -> dict[str, int]:
    found = structs.layout(name, "structs.cu")
    return {member: structs.offset(found, member) for member in found.names or ()}


def _size(name: str) -> int:
    return structs.layout(name, "structs.cu").itemsize


def test_scalars_are_aligned_to_themselves() -> None:
    assert _offsets("Scalars") == {"a": 0, "b": 8, "c": 16, "d": 18, "e": 24, "f": 32, "g": 36, "h": 48, "i": 56}
    assert _size("Scalars") == 64
    found = structs.layout("Scalars", "structs.cu")
    assert [found[name].base.str for name in "abcdefgh"] == ["|i1", "<f8", "|b1", "<u2", "<u8", "<f4", "<f4", "<u8"]
    assert found["g"].shape == (3,)


def test_templates_of_narrow_numbers() -> None:
    # x 8, extent 3 * 4 at 8, pad 20, by 3 * 12 at 24, tiles 60, table 8 * 12 at 72, last 168, padding
    expected = {"x": 0, "extent": 8, "pad": 20, "by": 24, "tiles": 60, "table": 72, "last": 168}
    assert _offsets("Shared<int, 3>") == expected
    assert _size("Shared<int, 3>") == 176
    found = structs.layout("Shared<int, 3>", "structs.cu")
    assert found["table"].shape == (2, 4)
    assert found["by"].base.names == ("divisor", "multiplier", "shift")


def test_templates_of_wide_numbers() -> None:
    # extent 2 * 8 at 8, pad 24, by 2 * 8 at 32, tiles 12 at 48, table 96 at 60, last 156
    expected = {"x": 0, "extent": 8, "pad": 24, "by": 32, "tiles": 48, "table": 60, "last": 156}
    assert _offsets("Shared<long long, 2>") == expected
    assert _size("Shared<long long, 2>") == 160
    assert structs.layout("Shared<long long, 2>", "structs.cu")["by"].base.names == ("divisor",)


def test_any_number_of_axes() -> None:
    assert _offsets("Shared<int, 9>")["by"] == 48
    assert _size("Shared<int, 9>") == 48 + 9 * 12 + 12 + 96 + 4 + 4


def test_structs_inside_structs() -> None:
    assert _offsets("Outer") == {"first": 0, "inner": 8, "pair": 168, "end": 184}
    assert _size("Outer") == 192
    assert structs.offset(structs.layout("Outer", "structs.cu"), "inner.tiles") == 56


def test_aliases_and_types_as_arguments() -> None:
    assert _size("Inner") == 8
    assert _offsets("WrappedPair") == {"n": 0, "problem": 4}
    assert _size("WrappedPair") == 16
    assert _size("Wrapped<Shared<long long, 2>>") == 168


def test_members_of_a_base_come_first_and_its_padding_stays() -> None:
    assert list(_offsets("Derived<int, 3>")) == ["x", "extent", "pad", "by", "tiles", "table", "last", "own"]
    assert _offsets("Derived<int, 3>")["own"] == 176  # not 172, as the base is padded
    assert _size("Derived<int, 3>") == 184


def test_tensor_maps_are_aligned_to_64_bytes() -> None:
    assert _offsets("Mapped") == {"before": 0, "map": 64, "after": 192}
    assert _size("Mapped") == 256
    assert structs.layout("Mapped", "structs.cu")["map"].itemsize == 128
    assert _offsets("Two") == {"first": 0, "mapped": 64}
    assert _size("Two") == 320


def test_pointers_are_types_too() -> None:
    assert structs.layout("const int*", "structs.cu") == np.dtype("<u8")


def test_where_a_member_is() -> None:
    found = structs.layout("Outer", "structs.cu")
    assert structs.place(found, "end") == "end"
    assert structs.place(found, "tiles") == "inner.tiles"
    assert structs.place(found, "s") is None  # an array of structs has several
    assert structs.place(found, "none") is None


def test_constants_of_a_file_and_of_its_headers() -> None:
    assert [structs.constant(name, "structs.cu") for name in ("kFour", "kTwo", "kFive", "kNone")] == [4, 2, 5, 3]


@pytest.mark.parametrize("name", ["kMissing", "kOther", "kSum", "kTwice"])
def test_constants_that_cannot_be_read(name: str, kernels: Write) -> None:
    kernels({"constants.cu": CONSTANTS})
    message = rf"^kernels_cu/constants\.cu and its headers declare no constant {name} as a number, or several$"
    with pytest.raises(CompileError, match=message):
        structs.constant(name, "constants.cu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("struct Odd { int a : 3; };", r"struct Odd: its member 'int a : 3' cannot be read"),
        ("struct Odd { alignas(16) int a; };", r"struct Odd: its member 'alignas\(16\) int a' cannot be read"),
        ("struct Odd { int a = 1; };", r"struct Odd: its member 'int a = 1' cannot be read"),
        ("struct Odd { int *a, b; };", r"struct Odd: its member 'int \*a, b' cannot be read"),
        ("struct Odd { int* a, b; };", r"struct Odd: its member 'int\* a, b' cannot be read"),
        ("struct Odd { union { int a; float b; }; };", r"struct Odd: its member 'union { int a; float b; }' cannot"),
        ("struct Odd { struct { int a; } b; };", r"struct Odd: its member 'struct { int a; } b' cannot be read"),
        ("struct Odd { virtual void f() { } int a; };", r"struct Odd: its member 'virtual void f\(\) { }' cannot"),
        ("struct Odd {\n#if 1\n int a;\n#endif\n};", r"struct Odd: its member '#if 1 int a' cannot be read"),
        ("struct Odd { int a[NONE]; };", r"odd\.cu and its headers declare no constant NONE as a number, or several"),
        ("struct Odd { Missing a; };", r"odd\.cu and its headers declare no struct Missing that can be read"),
        ("struct alignas(16) Odd { int a; };", r"odd\.cu and its headers declare no struct Odd that can be read"),
        ("struct Odd { };", r"struct Odd has no members"),
        ("template <class T> struct Odd { T a; };", r"struct Odd has 0 arguments for the 1 parameters of its template"),
        ("struct A { int a; };\nstruct B : A { int b; };\nstruct Odd : B { int c; };", r"Odd: only a struct that"),
        ("struct Odd : int { int a; };", r"struct Odd: only a struct that has no base can be its base, not int"),
        (
            "template <class T, int N> struct P { T a; };\ntemplate <class T> struct P<T, 1> { int b; };\n"
            "struct Odd { P<int, 1> a; };",
            r"struct P has partial specialisations: it cannot be read",
        ),
    ],
)  # fmt: skip
def test_structs_that_cannot_be_read(text: str, message: str, kernels: Write) -> None:
    kernels({"odd.cu": text + "\n"})
    with pytest.raises(CompileError, match=message):
        structs.layout("Odd", "odd.cu")


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(CompileError, match=r"^kernels_cu/none\.cu cannot be read: "):
        structs.layout("Odd", "none.cu")
