"""No kernel spills, and each reaches the occupancy of its launch bounds with the shared memory of its launches.

This changes only with a kernel, so these tests are thorough. A run takes those of changed files, for one architecture
of each kernel, and compiles all other kernels only to PTX, which the emulator runs.
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
from tests.emulator.compile import ARCHITECTURES
from tests.harness import machine_code
from tests.harness.machine_code import left, looked_at
from tests.harness.toolchain import needs_nvrtc
from tests.kernels.small import survey

pytestmark = pytest.mark.slow

REGISTERS = 65536  # of a multiprocessor of every architecture
REGISTER_UNIT = 8  # allocation unit of a thread's registers
GROUPS = machine_code.of_sources()
VARIANTS = {variant.name: variant for variant in all_variants()}


@dataclass(frozen=True)
class Built:
    """The kernels of one source, operator and dtype for one architecture."""

    architecture: str
    group: str
    reports: Mapping[str, Report]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (architecture, group, chosen),
            marks=[pytest.mark.thorough, *([] if chosen is left else [pytest.mark.kernels(GROUPS[group][0].source)])],
            id=f"{architecture}-{group}{'-left' if chosen is left else ''}",
        )
        for chosen in (looked_at, left)
        for architecture in ARCHITECTURES
        for group in GROUPS
        if chosen(GROUPS[group], architecture)
    ],
)
def built(request: pytest.FixtureRequest) -> Built:
    """Compile one group of kernels, with one thread if test processes run in parallel."""
    architecture, group, chosen = request.param
    threads = 1 if "PYTEST_XDIST_WORKER" in os.environ else _threads.count()
    variants = chosen(GROUPS[group], architecture)
    return Built(architecture, group, machine_code.reports(variants, architecture, threads, keep=chosen is looked_at))


@needs_nvrtc
def test_kernels_keep_to_the_limits(built: Built) -> None:
    broken = [
        line for name, report in built.reports.items() for line in beyond_limits(name, built.architecture, report)
    ]
    assert not broken, "\n".join(broken)


def beyond_limits(name: str, architecture: str, report: Report) -> list[str]:
    """Name the limits that a kernel breaks."""
    variant, most = VARIANTS[name], shared_bytes_per_block(architecture)
    rounded = -(-report.registers // REGISTER_UNIT) * REGISTER_UNIT
    registers = rounded * variant.threads * variant.blocks_per_sm
    shared = report.shared_bytes + dynamic_bytes(name, architecture)
    rules = {
        f"{report.spill_stores} bytes of spill stores": report.spill_stores == 0,
        f"{report.spill_loads} bytes of spill loads": report.spill_loads == 0,
        f"{report.stack_bytes} bytes of local memory": report.stack_bytes == 0,
        f"{report.remarks} from the assembler": not report.remarks,
        f"{registers} registers for {variant.blocks_per_sm} blocks, of {REGISTERS}": registers <= REGISTERS,
        f"{shared} bytes of shared memory, of {most}": shared <= most,
    }
    return [f"{name} for {architecture}: {rule}" for rule, kept in rules.items() if not kept]


def shared_bytes_per_block(architecture: str) -> int:
    return representative(architecture).limits.shared_bytes_per_block


def dynamic_bytes(name: str, architecture: str) -> int:
    """Return the most shared memory that a launch needs on devices with as much per block; 0 if none launches it."""
    most = shared_bytes_per_block(architecture)
    alike = next(one for one in ARCHITECTURES if shared_bytes_per_block(one) == most)
    return survey(alike).shared_bytes.get(name, 0)


def test_every_kernel_is_looked_at_for_one_architecture_and_left_for_its_others() -> None:
    seen = [one.name for name in ARCHITECTURES for group in GROUPS for one in looked_at(GROUPS[group], name)]
    assert sorted(seen) == sorted(VARIANTS)
    others = [one.name for name in ARCHITECTURES for group in GROUPS for one in left(GROUPS[group], name)]
    variants = VARIANTS.values()
    assert len(seen) + len(others) == sum(len(one.architectures or ARCHITECTURES) for one in variants)


def test_kernels_of_one_architecture_are_looked_at_for_that() -> None:
    variants = [replace(variant, architectures=("sm_90a",)) for variant in list(VARIANTS.values())[:20]]
    seen = {name: len(looked_at(variants, name)) for name in ARCHITECTURES}
    assert seen == {name: 20 if name == "sm_90a" else 0 for name in ARCHITECTURES}


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
        ({"shared_bytes": 10**6}, f"{10**6 + 49152} bytes of shared memory, of 101376"),
    ],
)
def test_every_limit_is_noticed(changes: dict[str, Any], rule: str) -> None:
    name = "conv_float32_3d_128x128x16_uniform"
    assert beyond_limits(name, "sm_86", GOOD) == []
    assert beyond_limits(name, "sm_86", replace(GOOD, **changes)) == [f"{name} for sm_86: {rule}"]


@needs_nvrtc
def test_ptx_is_kept_with_the_machine_code_that_is_made_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = VARIANTS["pack_weights_float32_3d"]
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
