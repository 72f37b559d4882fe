"""Kernels as machine code, compiled together with the PTX that the emulator runs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from benchmarks import sass
from benchmarks.sass import Instruction
from gpuconv import CompileError
from gpuconv.cuda.build import cache, nvrtc, sources
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from tests.emulator.compile import READ, turn

_OPTIONS = (*compiler._OPTIONS, compiler._LINE_INFO)  # lines change no instruction


def build(variant: Variant, architecture: str, keep: bool = True) -> cache.Entry:
    """Compile for ``sm_…`` unless it is in the cache, so that a run of the tests compiles each kernel once.

    PTX is made on the way, and goes into the cache where `gpuconv.cuda.build.compile.ptx` finds it. Unless it is to be
    kept, what is compiled has no file.
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
    """Return the instructions of a kernel, by default for the architecture that tests compile it for anyway.

    AssertionError where it keeps anything in local memory.
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
