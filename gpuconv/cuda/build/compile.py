"""Compiles kernel variants with NVRTC, through the packed kernels and the cache on disk."""

from __future__ import annotations

import os
import re
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuconv._errors import ArgumentError, CompileError, DeviceError
from gpuconv.cuda.build import cache, nvrtc, pack, sources
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.turns import turn

_OLDEST = (8, 0)
_FIRST_WITH_FEATURES = (9, 0)  # from here on, suffix "a" enables the features of exactly one capability
_OPTIONS = ("--std=c++17", "--ptxas-options=-v")  # never -ftz or -use_fast_math, which would change results
_LINE_INFO = "--generate-line-info"
_REGISTERS_AT_ONCE = 8  # granularity of registers per thread

_EXPECTED = re.compile(  # log lines without a remark
    r"ptxas info +: (\d+ bytes gmem|Compiling entry|Function properties|Used \d+ reg|Compile time)"
    r"|ptxas +\. +\d+ bytes stack frame"
)

_locks: dict[tuple[int, str], threading.Lock] = {}
_LONGEST = 120.0  # seconds that a compilation may take; whoever waits longer for another thread's compiles by itself
_warned = threading.Lock()  # acquired by the first warning, and never released


@dataclass(frozen=True, slots=True)
class Report:
    """Resource usage of a kernel, as ptxas reports it."""

    registers: int  # per thread
    stack_bytes: int  # per thread, in local memory
    spill_stores: int  # bytes per thread
    spill_loads: int  # bytes per thread
    shared_bytes: int  # static shared memory per block
    barriers: int
    remarks: tuple[str, ...]  # warnings and other messages


@dataclass(frozen=True, slots=True)
class Built:
    """One variant compiled for one architecture, on disk."""

    path: Path  # a cubin or PTX file
    log: str  # the compiler's log
    content: bytes = field(repr=False)  # the file's verified content
    seconds: float | None  # seconds of compilation; None for a cache hit


def architecture(capability: tuple[int, int]) -> str:
    """Return the architecture to compile for, so that a device with this compute capability can run the result.

    Usually the capability's own: ``sm_80``, ``sm_90a``; NVRTC is not consulted if packed kernels cover it. For a device
    newer than NVRTC, PTX for the newest architecture it knows (``compute_120``), which the driver compiles, with one
    RuntimeWarning.

    Raises DeviceError if the device is too old, CompileError if there is neither NVRTC nor a pack for the device.
    """
    text = _dotted(capability)
    if capability < _OLDEST:
        raise DeviceError(f"gpuconv needs compute capability {_dotted(_OLDEST)} or newer, this device has {text}")
    packed, specific = pack.in_use(), _names(capability)[-1]
    if packed is not None and specific in packed.architectures:
        return specific
    known = [number for number in nvrtc.capabilities() if _OLDEST <= number <= capability]
    if not known:
        raise DeviceError(
            f"NVRTC {nvrtc.version()} does not compile for compute capability {text} any more; install an older one"
        )
    if known[-1] == capability:
        return _names(capability)[-1]
    newest = "compute_{}{}".format(*known[-1])
    if _warned.acquire(blocking=False):
        warnings.warn(
            f"NVRTC {nvrtc.version()} does not know compute capability {text}: kernels are compiled to PTX for "
            f"{newest}, and by the driver from there; a newer NVRTC does better (pip install -U nvidia-cuda-nvrtc)",
            RuntimeWarning,
            stacklevel=2,
        )
    return newest


def checked(name: str) -> str:
    """Return an architecture that the user named; ArgumentError unless NVRTC and gpuconv support it."""
    names = [name for number in nvrtc.capabilities() if number >= _OLDEST for name in _names(number)]
    if name not in names:
        raise ArgumentError(f"unknown architecture {name!r}; NVRTC {nvrtc.version()} compiles for {', '.join(names)}")
    return name


def _names(capability: tuple[int, int]) -> list[str]:
    """Return the architecture names of a compute capability, the most specific last."""
    plain = "sm_{}{}".format(*capability)
    return [plain, plain + "a"] if capability >= _FIRST_WITH_FEATURES else [plain]


def _dotted(capability: tuple[int, int]) -> str:
    """Return a compute capability as ``9.0``."""
    return "{}.{}".format(*capability)


def cubin(variant: Variant, architecture: str) -> bytes:
    """Return the code to load: a cubin for ``sm_…``, PTX for ``compute_…``; from the pack, the cache, or the compiler.

    Raises CompileError, with the log, if the variant does not compile or would wait forever for registers, or if the
    compiler is not installed.
    """
    content, log, compiler = _packed(variant, architecture) or _built(variant, architecture)
    reason = _starved(variant, log)
    if reason is not None:
        raise CompileError(f"{variant.name} for {architecture}, by {compiler}, would not run: {reason}")
    return content


def _packed(variant: Variant, architecture: str) -> tuple[bytes, str, str] | None:
    """Return (content, log, compiler) of a variant from the pack in use; None if it is not there."""
    packed = pack.in_use()
    kernel = None if packed is None else packed.find(packed_key(variant, architecture))
    return None if packed is None or kernel is None else (*kernel, packed.compiler)


def _built(variant: Variant, architecture: str) -> tuple[bytes, str, str]:
    """Return (content, log, compiler) of a variant from the cache or the compiler."""
    try:
        built = build(variant, architecture)
    except CompileError as error:
        packed = pack.in_use()
        if packed is None:
            raise
        name = f"{variant.name} for {architecture}"
        raise CompileError(
            f"the packed kernels {packed.path} lack {name} as its source is here, and {error}"
        ) from error
    return built.content, built.log, f"NVRTC {nvrtc.version()}"


def packed_key(variant: Variant, architecture: str) -> str:
    """Return a variant's key in a pack: everything that determines it, except the compiler."""
    return cache.key(sources.source(variant), architecture, *_OPTIONS)


def _starved(variant: Variant, log: str) -> str | None:
    """Return why setmaxnreg would find too few registers, so that the kernel would hang; None if it works."""
    ignored = re.search(r"^.*setmaxnreg.*ignored.*$", log, re.MULTILINE)
    if ignored is not None:
        return ignored[0].strip()
    reported = read(log)
    given = None if reported is None else -(-reported.registers // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
    if given is None or given >= variant.least_registers:
        return None
    return f"its threads begin with {given} registers, and need {variant.least_registers} to share"


def ptx(variant: Variant, architecture: str, line_info: bool = True) -> str:
    """Return the PTX from which NVRTC makes the cubin for ``sm_…``, by default with line information."""
    virtual = architecture.replace("sm_", "compute_")
    return build(variant, virtual, options=(_LINE_INFO,) if line_info else ()).content.decode()


def report(variant: Variant, architecture: str) -> Report:
    """Return ptxas's report of a variant, which is compiled if needed; CompileError also for PTX targets."""
    reported = read(build(variant, architecture).log)
    if reported is None:
        raise CompileError(f"{variant.name} for {architecture}: the compiler does not report registers")
    return reported


def read(log: str) -> Report | None:
    """Return the report in a compiler's log; None if ptxas did not run."""
    used = re.search(r"Used (\d+) registers(.*)", log)
    if used is None:
        return None
    return Report(
        registers=int(used[1]),
        stack_bytes=_total(r"(\d+) bytes stack frame", log),
        spill_stores=_total(r"(\d+) bytes spill stores", log),
        spill_loads=_total(r"(\d+) bytes spill loads", log),
        shared_bytes=_total(r"(\d+) bytes smem", used[2]),
        barriers=_total(r"used (\d+) barriers", used[2]),
        remarks=tuple(line.strip() for line in log.splitlines() if line.strip() and not _EXPECTED.match(line)),
    )


def _total(pattern: str, text: str) -> int:
    """Return the sum of the numbers that a pattern matches."""
    return sum(map(int, re.findall(pattern, text)))


def build(
    variant: Variant,
    architecture: str,
    folder: Path | None = None,
    options: tuple[str, ...] = (),
    for_others: bool = False,
) -> Built:
    """Compile a variant unless it is cached; threads that want the same one wait for the first.

    With ``folder``, only that cache is used, and with ``for_others`` other users may read what is written. By default
    it is the user's cache, or a temporary one if that cannot be written. CompileError as :func:`cubin`; OSError if
    ``folder`` cannot be written or others can write to it.
    """
    source, options = sources.source(variant), (*_OPTIONS, *options)
    key = cache.key(source, architecture, *options, nvrtc.identity())
    title = f"{variant.name}.{architecture}"
    lock = _locks.setdefault((os.getpid(), key), threading.Lock())  # a forked child does not wait for its parent's lock
    with turn(lock, _LONGEST):
        for place in _places(folder):
            entry = cache.find(place, title, key)
            if entry is not None:
                return Built(*entry, seconds=None)
        start = time.perf_counter()
        content, log = nvrtc.build(variant.name, source, architecture, options)
        seconds = time.perf_counter() - start
        suffix = ".ptx" if architecture.startswith("compute_") else ".cubin"
        if folder is not None:
            return Built(*cache.store(folder, title, key, suffix, content, log, for_others=for_others), seconds)
        return Built(*_store_somewhere(title, key, suffix, content, log), seconds)


def _places(folder: Path | None) -> Iterator[Path]:
    """Yield the cache folders to search."""
    for place in (folder,) if folder is not None else (cache.folder(), cache.private.existing()):
        if place is not None:
            yield place


def _store_somewhere(title: str, key: str, suffix: str, content: bytes, log: str) -> cache.Entry:
    """Store an entry in the user's cache, or with a warning in this process's temporary folder."""
    usual = cache.folder()
    reason: OSError | None = None
    if usual is not None:
        try:
            return cache.store(usual, title, key, suffix, content, log)
        except OSError as error:  # read-only, full, not a folder, or writable by others
            reason = error
    try:
        entry = cache.store(cache.private.make(), title, key, suffix, content, log)
    except OSError as error:
        failures = "; ".join(str(failure) for failure in (reason, error) if failure is not None)
        raise CompileError(
            f"{title} cannot be stored ({failures}); set GPUCONV_CACHE_DIR to a folder with space"
        ) from error
    cache.warn_unwritable(usual, reason)
    return entry
