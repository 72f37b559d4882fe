"""The command ``gpuconv compile``: compiles kernels ahead of time for given architectures, without a device."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import gpuconv
from gpuconv._environment import chained_launches
from gpuconv._errors import CompileError, printable
from gpuconv.cli.terminal import CommandError, Progress, table
from gpuconv.cpu import _threads
from gpuconv.cuda.build import cache, nvrtc, pack
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call import device

_EVERYWHERE = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
_FAILURES_SHOWN = 20
_SECONDS = 1.5  # mean core seconds to compile a kernel, measured on 2 cores of a server


@dataclass(slots=True)
class ArchitectureTally:
    """The outcomes of compiling all variants for one architecture."""

    architecture: str
    built: int = 0
    present: int = 0
    spilling: int = 0
    spilled_bytes: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def count(self, built: compiler.Built) -> None:
        """Record a variant that compiled or was cached, and its register spills."""
        if built.seconds is None:
            self.present += 1
        else:
            self.built += 1
        report = compiler.read(built.log)
        spilled = report.spill_stores + report.spill_loads if report is not None else 0
        self.spilling += spilled > 0
        self.spilled_bytes += spilled

    def row(self) -> list[str]:
        """Return the cells of this architecture's row in the table."""
        counts = [self.built + self.present + len(self.failures), self.built, self.present, len(self.failures)]
        spills = f"{self.spilling} ({self.spilled_bytes} bytes)" if self.spilling else "0"
        return [self.architecture, *map(str, counts), f"{self.seconds:.1f}", spills]


def command(arguments: argparse.Namespace) -> int:
    """Compile the kernels that ``--arch`` and ``--filter`` select, and print the table; return 1 if one fails."""
    folder, for_others = _folder(arguments.output_dir), bool(arguments.output_dir)
    packed = _pack_path(arguments.pack)
    nvrtc.version()  # raises at once if there is no compiler
    architectures = _architectures(arguments.arch)
    variants = _variants(arguments.filter)
    jobs = arguments.jobs or _threads.count()
    print(_work(sum(len(_for(name, variants)) for name in architectures), architectures, jobs), flush=True)
    with Progress() as progress:
        tallies = [_build_all(_for(name, variants), name, folder, for_others, jobs, progress) for name in architectures]
    code = _print(tallies, folder)
    if packed is not None and code == 0:
        _pack(packed, [(variant, name) for name in architectures for variant in _for(name, variants)], folder, jobs)
    elif packed is not None:
        print(f"nothing is packed into {packed}, since not all kernels compile")
    return code


def _work(count: int, architectures: Sequence[str], jobs: int) -> str:
    """Return the line that announces the number of kernels and the longest time to expect."""
    longest = _duration(count * _SECONDS / jobs)
    return f"{count} kernels for {', '.join(architectures)}, {jobs} at a time: at most about {longest} if all are new"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _folder(wanted: str | None) -> Path:
    folder = Path(wanted).absolute() if wanted else cache.folder()
    if folder is None:
        raise CommandError("compile: there is no cache folder; name one with --output-dir or GPUCONV_CACHE_DIR")
    reason = cache.distrust(folder)
    if reason is not None:
        raise CommandError(f"compile: {reason}; --output-dir names another folder")
    return folder


def _pack_path(wanted: str | None) -> Path | None:
    """Return the path for packed kernels; raise CommandError early if it cannot be written."""
    if not wanted:
        return None
    path = Path(wanted).absolute()
    if path.is_dir():
        raise CommandError(f"compile: --pack names a file to write, and {path} is a folder")
    try:
        cache.make(path.parent, 0o755)
    except OSError as error:
        raise CommandError(f"compile: {path} cannot be written ({error}); --pack names another file") from error
    if not cache.can_be_written(path.parent):
        raise CommandError(f"compile: {path} cannot be written ({path.parent} is closed); --pack names another file")
    return path


def _variants(wanted: str) -> list[Variant]:
    from gpuconv.cuda.variants import all_variants  # imported late: loads the planners of all operators

    variants = [variant for variant in all_variants() if wanted in variant.name]
    if not variants:
        raise CommandError(f"compile: no kernel's name contains {wanted!r}")
    return variants


def _for(architecture: str, variants: list[Variant]) -> list[Variant]:
    """Return the variants that compile for an architecture; if launches may overlap, also their chained forms."""
    found = [variant for variant in variants if variant.compiles_for(architecture)]
    forms = [variant.chained_on(architecture) for variant in found] if chained_launches() else []
    return list(dict.fromkeys([*found, *forms]))


def _architectures(text: str) -> list[str]:
    if text:
        return list(dict.fromkeys(compiler.checked(name.strip()) for name in text.split(",")))
    if device.unavailable_reason() is None:
        return [device.limits(device.current_device()).architecture]
    return list(_EVERYWHERE)


def _build_all(
    variants: list[Variant], architecture: str, folder: Path, for_others: bool, jobs: int, progress: Progress
) -> ArchitectureTally:
    tally, start = ArchitectureTally(architecture), time.perf_counter()
    pool = ThreadPoolExecutor(jobs)
    build = partial(compiler.build, architecture=architecture, folder=folder, for_others=for_others)
    try:
        running = {pool.submit(build, variant): variant for variant in variants}
        failed: dict[str, str] = {}
        for number, future in enumerate(as_completed(running), 1):
            name = running.pop(future).name  # drop the result, so that its memory is freed
            left = (time.perf_counter() - start) / number * (len(variants) - number)
            progress.show(f"{architecture} {number}/{len(variants)}, about {_duration(left)} left: {name}")
            try:
                tally.count(future.result())
            except CompileError as error:
                failed[name] = str(error)
            except OSError as error:  # read-only, full, not a folder
                raise CommandError(
                    f"compile: kernels cannot be written to {folder} ({error}); --output-dir names another folder"
                ) from error
        tally.failures += [failed[variant.name] for variant in variants if variant.name in failed]
    finally:  # after an error or Ctrl-C, do not start the remaining ones
        pool.shutdown(cancel_futures=True)
    tally.seconds = time.perf_counter() - start
    return tally


def _pack(path: Path, chosen: list[tuple[Variant, str]], folder: Path, jobs: int) -> None:
    """Write kernels from the folder to one file, with similar ones adjacent, as they compress better together."""
    chosen = sorted(chosen, key=lambda pair: (pair[0].source, pair[0].name, pair[1]))
    chunks = [chosen[start : start + pack.TOGETHER] for start in range(0, len(chosen), pack.TOGETHER)]
    with ThreadPoolExecutor(jobs) as pool:
        groups = list(pool.map(partial(_group, folder), chunks))
    try:
        count = pack.store(path, nvrtc.identity(), groups)
    except OSError as error:
        raise CommandError(f"compile: {path} cannot be written ({error}); --pack names another file") from error
    print(f"packed into {count} bytes, found by {pack.VARIABLE}={path}")


def _group(folder: Path, chosen: Sequence[tuple[Variant, str]]) -> pack.Group:
    kernels = []
    for variant, architecture in chosen:
        built = compiler.build(variant, architecture, folder)
        key = compiler.packed_key(variant, architecture)
        kernels.append(pack.Kernel(variant.name, architecture, key, built.content, built.log))
    return pack.together(kernels)


def _print(tallies: Sequence[ArchitectureTally], folder: Path) -> int:
    header = ["architecture", "kernels", "built", "there already", "failed", "seconds", "spilling"]
    print(table(header, [tally.row() for tally in tallies]))
    failures = [failure for tally in tallies for failure in tally.failures]
    for failure in failures[:_FAILURES_SHOWN]:
        print(f"FAILED {printable(failure.partition(chr(10))[0])}")
    if len(failures) > _FAILURES_SHOWN:
        print(f"… and {len(failures) - _FAILURES_SHOWN} more failures; --filter shows them by name")
    total = sum(tally.built + tally.present for tally in tallies)
    if failures:
        logs = [log for failure in failures if (log := failure.partition("\n")[2].rstrip())]
        print("\n".join(logs[:1]))
        print(f"gpuconv {gpuconv.__version__}: {len(failures)} of {total + len(failures)} kernels do NOT compile")
        return 1
    print(f"gpuconv {gpuconv.__version__}: all {total} kernels are there, found by GPUCONV_CACHE_DIR={folder}")
    return 0
