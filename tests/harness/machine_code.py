"""Compile kernels to machine code, together with the PTX that the emulator runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks import sass
from benchmarks.sass import Instruction
from gpuconv import CompileError
from gpuconv.cuda.build import cache, nvrtc, sources
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.variants import all_variants
from tests.emulator.compile import READ, own, turn

_OPTIONS = (*compiler._OPTIONS, compiler._LINE_INFO)  # line info does not change instructions


def of_kernels(*sources: str) -> Any:
    """Mark a test of only the machine code of these files' kernels as thorough: its result changes only with them.

    If one of the files has changed, whole runs include the test nevertheless.
    """

    def mark(test: Any) -> Any:
        return pytest.mark.thorough(pytest.mark.kernels(*sources)(test))

    return mark


def groups() -> dict[str, list[Variant]]:
    """Return all variants by operator, dtype and spatial rank, as ``conv_float32_3d``."""
    found: dict[str, list[Variant]] = {}
    for variant in all_variants():
        found.setdefault(re.match(r".+?_\dd", variant.name)[0], []).append(variant)
    return found


def of_sources() -> dict[str, list[Variant]]:
    """Return all variants by source and the start of their names, as ``conv-gemm-conv-conv_float32``."""
    found: dict[str, list[Variant]] = {}
    for variant in all_variants():
        name = re.match(r".+?(?=_\dd)", variant.name)[0]
        found.setdefault(f"{variant.source.removesuffix('.cu').replace('/', '-')}-{name}", []).append(variant)
    return found


def looked_at(variants: Iterable[Variant], architecture: str) -> list[Variant]:
    """Return the variants that every run compiles for this architecture; each variant has one such architecture."""
    return [one for one in variants if architecture == turn(one)]


def left(variants: Iterable[Variant], architecture: str) -> list[Variant]:
    """Return the variants that only thorough tests compile for this architecture."""
    return [one for one in variants if architecture in own(one) and architecture != turn(one)]


def reports(variants: list[Variant], architecture: str, threads: int, keep: bool) -> dict[str, compiler.Report]:
    """Compile variants, storing them in the cache if ``keep``; return ptxas' report of each."""
    with ThreadPoolExecutor(threads) as pool:
        built = pool.map(lambda variant: build(variant, architecture, keep), variants)
        return {variant.name: _report(one.log) for variant, one in zip(variants, built, strict=True)}


def _report(log: str) -> compiler.Report:
    found = compiler.read(log)
    assert found is not None, log
    return found


def build(variant: Variant, architecture: str, keep: bool = True) -> cache.Entry:
    """Compile for ``sm_…`` unless cached, so that a run compiles each kernel once.

    The PTX is cached as well, where `gpuconv.cuda.build.compile.ptx` finds it. Without ``keep`` nothing is stored.
    """
    source = sources.source(variant)
    names = (architecture, architecture.replace("sm_", "compute_"))
    titles = [f"{variant.name}.{name}" for name in names]
    keys = [cache.key(source, name, *_OPTIONS, nvrtc.identity()) for name in names]
    for place in compiler._places(None):
        entry = cache.find(place, titles[0], keys[0])
        if entry is not None:
            return entry
    cubin, ptx, log = _compiled(f"{variant.name}.cu", source, architecture)
    if not keep:
        return cache.Entry(Path(), log, cubin)
    compiler._store_somewhere(titles[1], keys[1], ".ptx", ptx, log)
    return compiler._store_somewhere(titles[0], keys[0], ".cubin", cubin, log)


@lru_cache(maxsize=128)
def code(variant: Variant, architecture: str = READ) -> list[Instruction]:
    """Return a kernel's SASS, by default for the architecture that tests compile it for anyway.

    Raises AssertionError if the kernel uses local memory.
    """
    assert architecture != READ or turn(variant) == READ, (
        f"{variant.name} would be compiled for {turn(variant)} as well"
    )
    body = sass.disassemble(build(variant, architecture).path)
    assert sass.names(body, range(len(body)), "EXIT"), f"nothing was read of {variant.name}"
    assert not sass.names(body, range(len(body)), "LDL", "STL"), variant.name
    return body


def _compiled(name: str, source: str, architecture: str) -> tuple[bytes, bytes, str]:
    """Return the cubin, the PTX and the compiler's log."""
    binding, checked = nvrtc._binding(), nvrtc._checked
    (program,) = checked(binding.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        words = [f"--gpu-architecture={architecture}".encode(), f"-I{nvrtc.headers()}".encode()]
        words += map(str.encode, _OPTIONS)
        (result,) = binding.nvrtcCompileProgram(program, len(words), words)
        log = nvrtc._bytes(program, binding.nvrtcGetProgramLogSize, binding.nvrtcGetProgramLog)
        text = log.rstrip(b"\0").decode(errors="replace")
        if int(result) != 0:
            raise CompileError(text)
        cubin = nvrtc._bytes(program, binding.nvrtcGetCUBINSize, binding.nvrtcGetCUBIN)
        ptx = nvrtc._bytes(program, binding.nvrtcGetPTXSize, binding.nvrtcGetPTX)
        return cubin, ptx.rstrip(b"\0"), text
    finally:
        binding.nvrtcDestroyProgram(program)
