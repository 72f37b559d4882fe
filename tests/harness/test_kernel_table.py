"""Every kernel keeps to its limits on every architecture, and uses what the committed table says.

A run compiles each kernel for one of its architectures, the thorough tests for all others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpuconv import CompileError
from gpuconv.cpu import _threads
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.compile import Report
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.variants import all_variants
from tests.harness import kernel_table, machine_code, records
from tests.harness.kernel_table import ARCHITECTURES, PATH, TOOL, launches, left, looked_at
from tests.harness.toolchain import needs_nvrtc

REGISTERS = 65536  # of a multiprocessor, of every architecture
REGISTER_UNIT = 8  # that a thread's are handed out in
GROUPS = kernel_table.groups()


@dataclass(frozen=True)
class Built:
    """The kernels of one operator, dtype and rank for one architecture."""

    architecture: str
    group: str
    reports: Mapping[str, Report]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (architecture, group, chosen),
            marks=[pytest.mark.thorough] if chosen is left else [],
            id=f"{architecture}-{group}{'-left' if chosen is left else ''}",
        )
        for chosen in (looked_at, left)
        for architecture in ARCHITECTURES
        for group in GROUPS
        if chosen(GROUPS[group], architecture)
    ],
)
def built(request: pytest.FixtureRequest) -> Built:
    """Compile one group of kernels; test processes beside each other need no threads for it."""
    architecture, group, chosen = request.param
    threads = 1 if "PYTEST_XDIST_WORKER" in os.environ else _threads.count()
    variants = chosen(GROUPS[group], architecture)
    return Built(architecture, group, kernel_table.reports(variants, architecture, threads, keep=chosen is looked_at))


@needs_nvrtc
def test_kernels_keep_to_the_limits(built: Built) -> None:
    broken = [
        line for name, report in built.reports.items() for line in beyond_limits(name, built.architecture, report)
    ]
    assert not broken, "\n".join(broken)


def beyond_limits(name: str, architecture: str, report: Report) -> list[str]:
    """Name the limits that a kernel breaks, whatever the table says."""
    launch = launches()[name]
    rounded = -(-report.registers // REGISTER_UNIT) * REGISTER_UNIT
    registers = rounded * launch.variant.threads * launch.variant.blocks_per_sm
    shared, most = report.shared_bytes + launch.shared_bytes, representative(architecture).limits.shared_bytes_per_block
    rules = {
        f"{report.spill_stores} bytes of spill stores": report.spill_stores == 0,
        f"{report.spill_loads} bytes of spill loads": report.spill_loads == 0,
        f"{report.stack_bytes} bytes of local memory": report.stack_bytes == 0,
        f"{report.remarks} from the assembler": not report.remarks,
        f"{registers} registers for {launch.variant.blocks_per_sm} blocks, of {REGISTERS}": registers <= REGISTERS,
        f"{shared} bytes of shared memory, of {most}": shared <= most,
    }
    return [f"{name} for {architecture}: {rule}" for rule, kept in rules.items() if not kept]


@needs_nvrtc
def test_kernels_use_what_the_table_says(built: Built) -> None:
    records.require_compiler(PATH, TOOL)
    table = records.read(PATH)
    recorded = {name: {built.architecture: table.get(name, {}).get(built.architecture)} for name in built.reports}
    found = {name: {built.architecture: kernel_table.cell(report)} for name, report in built.reports.items()}
    records.assert_same(recorded, found, PATH, TOOL)


def test_nothing_in_the_table_breaks_a_limit() -> None:
    """Every kernel for every architecture, as it was when the table was made."""
    rows = {name: row for name, row in records.read(PATH).items() if isinstance(row, dict)}
    broken = [
        line
        for name, row in rows.items()
        for architecture in ARCHITECTURES
        if architecture in row
        for line in beyond_limits(name, architecture, reported(row[architecture]))
    ]
    assert not broken, "\n".join(broken)


def reported(cell: list[int]) -> Report:
    """What the table has of one kernel on one architecture, as the assembler would say it."""
    registers, shared, spilled, stack = [*cell, 0, 0][:4]
    return replace(GOOD, registers=registers, shared_bytes=shared, spill_stores=spilled, stack_bytes=stack)


def test_every_kernel_is_looked_at_for_one_architecture_and_left_for_its_others() -> None:
    seen = [one.name for name in ARCHITECTURES for group in GROUPS for one in looked_at(GROUPS[group], name)]
    assert sorted(seen) == sorted(launches())
    others = [one.name for name in ARCHITECTURES for group in GROUPS for one in left(GROUPS[group], name)]
    variants = [launch.variant for launch in launches().values()]
    assert len(seen) + len(others) == sum(len(one.architectures or ARCHITECTURES) for one in variants)


def test_kernels_of_one_architecture_are_looked_at_for_that() -> None:
    variants = [replace(launch.variant, architectures=("sm_90a",)) for launch in list(launches().values())[:20]]
    seen = {name: len(looked_at(variants, name)) for name in ARCHITECTURES}
    assert seen == {name: 20 if name == "sm_90a" else 0 for name in ARCHITECTURES}


def test_the_table_has_a_row_for_every_kernel_and_no_other() -> None:
    rows = {name: row for name, row in records.read(PATH).items() if isinstance(row, dict)}
    launch_bounds = {name: {key: row[key] for key in row if key not in ARCHITECTURES} for name, row in rows.items()}
    records.assert_same(launch_bounds, kernel_table.heads(), PATH, TOOL)
    for name, row in rows.items():
        assert tuple(key for key in row if key in ARCHITECTURES) == (
            launches()[name].variant.architectures or ARCHITECTURES
        )


def test_plans_name_every_kernel_that_is_built_ahead_and_no_other() -> None:
    assert set(launches()) == {variant.name for variant in all_variants()}


# ---------------------------------------------------------------- the tests' own tools

GOOD = Report(registers=128, stack_bytes=0, spill_stores=0, spill_loads=0, shared_bytes=0, barriers=1, remarks=())


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"spill_stores": 4}, "4 bytes of spill stores"),
        ({"spill_loads": 8}, "8 bytes of spill loads"),
        ({"stack_bytes": 16}, "16 bytes of local memory"),
        ({"remarks": ("a warning",)}, "('a warning',) from the assembler"),
        ({"registers": 129}, "69632 registers for 2 blocks, of 65536"),
        ({"shared_bytes": 52225}, "101377 bytes of shared memory, of 101376"),
    ],
)
def test_every_limit_is_noticed(changes: dict[str, Any], rule: str) -> None:
    name = "conv_float32_3d_128x128x16_uniform"
    assert beyond_limits(name, "sm_86", GOOD) == []
    assert beyond_limits(name, "sm_86", replace(GOOD, **changes)) == [f"{name} for sm_86: {rule}"]


def test_spills_would_be_in_the_table() -> None:
    assert kernel_table.cell(replace(GOOD, shared_bytes=64)) == [128, 64]
    assert kernel_table.cell(replace(GOOD, spill_stores=4, spill_loads=8)) == [128, 0, 12, 0]
    assert kernel_table.cell(replace(GOOD, stack_bytes=16)) == [128, 0, 0, 16]


def test_differences_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tests" / "rows.json"
    recorded = {"same": {"a": 1}, "other": {"a": [1, 2], "b": 3}, "gone": {"a": 4}}
    found = {"same": {"a": 1}, "other": {"a": [1, 5], "b": 3}, "new": {"a": 6}}
    with pytest.raises(pytest.fail.Exception) as caught:
        records.assert_same(recorded, found, path, "tests/rows.py")
    assert str(caught.value).splitlines() == [
        "3 of the numbers in tests/rows.json are others now; where that is meant: "
        "`python tests/rows.py --write`, and the reason in the commit",
        "other a: recorded [1, 2], found [1, 5]",
        "gone: recorded {'a': 4}, found nothing",
        "new: recorded nothing, found {'a': 6}",
    ]


@needs_nvrtc
def test_ptx_is_kept_with_the_machine_code_that_is_made_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = launches()["pack_weights_float32_3d"].variant
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "together"))
    entry = machine_code.build(variant, "sm_80")
    files = {path.name for path in entry.path.parent.iterdir()}
    ptx = compiler.ptx(variant, "sm_80")
    assert machine_code.build(variant, "sm_80") == entry
    assert {path.name for path in entry.path.parent.iterdir()} == files
    monkeypatch.setenv("GPUCONV_CACHE_DIR", str(tmp_path / "alone"))
    assert compiler.ptx(variant, "sm_80") == ptx
    assert compiler.report(variant, "sm_80") == compiler.read(entry.log)
    with pytest.raises(CompileError, match="error: "):
        machine_code.build(replace(variant, function="nothing"), "sm_80")


@needs_nvrtc
def test_rows_of_another_compiler_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.json"
    records.write(path, {"columns": "what there is"}, {"row": {"a": [1, 2]}})
    assert path.read_text(encoding="utf-8").splitlines()[3] == '"row": {"a": [1, 2]}'
    monkeypatch.delenv("GPUCONV_REQUIRE_EMULATOR", raising=False)
    records.require_compiler(path, "tests/rows.py")  # neither skips nor fails
    monkeypatch.setattr(records, "compiler", lambda: "NVRTC 99.0")
    with pytest.raises(pytest.skip.Exception, match=r"and here is NVRTC 99\.0: nothing compared but the limits"):
        records.require_compiler(path, "tests/rows.py")
    monkeypatch.setenv("GPUCONV_REQUIRE_EMULATOR", "1")
    with pytest.raises(pytest.fail.Exception, match=r"`python tests/rows\.py --write` makes it anew"):
        records.require_compiler(path, "tests/rows.py")
