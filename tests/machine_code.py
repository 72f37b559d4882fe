"""Kernels as machine code, compiled together with the PTX that the emulator runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from emulator.compile import READ, turn

from benchmarks import sass
from benchmarks.sass import Instruction
from gpuconv import CompileError
from gpuconv.cuda import cache, nvrtc, sources
from gpuconv.cuda import compile as compiler
from gpuconv.cuda.variant import Variant

_OPTIONS = (*compiler._OPTIONS, compiler._LINE_INFO)  # lines change no instruction


def build(variant: Variant, architecture: str, folder: Path | None = None) -> cache.Entry:
    """Compile for ``sm_…`` unless it is in the cache, by default the user's.

    PTX is made on the way; it goes into the cache as well, where `gpuconv.cuda.compile.ptx` finds it.
    """
    place = folder or cache.folder() or cache.private.make()
    source = sources.source(variant)
    names = (architecture, architecture.replace("sm_", "compute_"))
    titles = [f"{variant.name}.{name}" for name in names]
    keys = [cache.key(source, name, *_OPTIONS, nvrtc.identity()) for name in names]
    entry = cache.find(place, titles[0], keys[0])
    if entry is None:
        cubin, ptx, log = _compiled(f"{variant.name}.cu", source, architecture)
        cache.store(place, titles[1], keys[1], ".ptx", ptx, log)
        entry = cache.store(place, titles[0], keys[0], ".cubin", cubin, log)
    return entry


@contextmanager
def built(variant: Variant, architecture: str) -> Iterator[cache.Entry]:
    """What `build` makes, in the cache that all tests share if they have one."""
    with TemporaryDirectory() as temporary:
        yield build(variant, architecture, None if os.environ.get("GPUCONV_CACHE_DIR") else Path(temporary))


@lru_cache(maxsize=128)
def code(variant: Variant, architecture: str = READ) -> list[Instruction]:
    """Return the instructions of a kernel, by default for the architecture that tests compile it for anyway.

    AssertionError where it keeps anything in local memory.
    """
    assert architecture != READ or turn(variant) == READ, (
        f"{variant.name} would be compiled for {turn(variant)} as well"
    )
    with built(variant, architecture) as found:
        body = sass.disassemble(found.path)
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
