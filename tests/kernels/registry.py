"""The registry of specimens: those of every kernel, and which specimens a file of kernels_cu takes part in."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from gpuconv.cuda.build import kernel_files, sources
from gpuconv.cuda.variants import all_variants
from tests.kernels import gradients
from tests.kernels.convolutions import CONVOLUTIONS, GEMMS, TENSOR
from tests.kernels.fused import FUSED
from tests.kernels.gradients import GRADIENTS
from tests.kernels.passes import PASSES
from tests.kernels.pools import FORWARD_POOLS
from tests.kernels.specimen import Specimen
from tests.kernels.wgmma import WGMMA

ALL: tuple[Specimen, ...] = (*WGMMA, *CONVOLUTIONS, *FORWARD_POOLS, *PASSES, *GRADIENTS)

# Specimens of sources whose kernels do not compute a forward convolution or pool, or not by themselves.
OF_OTHERS: dict[str, tuple[Specimen, ...]] = {
    "conv/gemm/pack_weights.cu": GEMMS,
    "conv/gemm/pack_fragments.cu": TENSOR,
    "passes/channels_last.cu": PASSES,
    "weight_grad/plain.cu": gradients.WEIGHTS,
    "weight_grad/few.cu": gradients.FEW_WEIGHTS,
    "weight_grad/rows.cu": gradients.ROW_WEIGHTS,
    "weight_grad/tiles.cu": gradients.LARGE_WEIGHTS,
    "passes/add_up.cu": (*gradients.WEIGHTS, *gradients.SUMS, *gradients.COMPLEX),
    "passes/channel_sums.cu": gradients.SUMS,
    "passes/copy.cu": gradients.COPIES,
    "pool/grad/general.cu": gradients.GENERAL_POOLS,
    "pool/grad/averages.cu": gradients.AVERAGE_WALKS,
    "pool/grad/walks.cu": gradients.WALKS,
    "pool/grad/scatter.cu": gradients.SCATTERS,
    "pool/planes.cu": gradients.PLANES,
    "pool/unpool.cu": gradients.UNPOOLS,
    "pool/indices.cu": (*gradients.UNPOOLS, *gradients.CHECKS),
    "complex.cu": gradients.COMPLEX,
}


@cache
def by_source() -> dict[str, tuple[Specimen, ...]]:
    """Return the specimens by kernel source; seeds of mutation testing depend on their order."""
    known = {variant.name: variant.source for variant in all_variants()}
    found = dict(OF_OTHERS)
    for one in (*WGMMA, *CONVOLUTIONS, *FORWARD_POOLS):
        source = known[one.variant]
        found[source] = (*found.get(source, ()), one)
    return found


_PACKING = ("conv/gemm/pack_weights.cu", "conv/gemm/pack_fragments.cu")
# Sources whose kernels are launched before or after a source's kernels.
_BESIDES = {
    **dict.fromkeys(("conv/gemm/conv.cu", "conv/gemm/conv_transpose.cu", "conv/gemm/split.cu"), _PACKING),
    **dict.fromkeys(("conv/gemm/split_transpose.cu", "conv/gemm/interleaved.cu", "conv/gemm/stem.cu"), _PACKING),
    **dict.fromkeys(("conv/gemm/depth_to_space.cu", "conv/gemm/phase_rows.cu", "conv/gemm/tap_rows.cu"), _PACKING),
    **{f"conv/wgmma/{name}.cu": ("passes/channels_last.cu",) for name in ("slices", "strips", "pixels")},
    **{f"weight_grad/{name}.cu": ("passes/add_up.cu",) for name in ("plain", "few", "rows", "tiles")},
    "passes/channel_sums.cu": ("passes/add_up.cu",),
    "pool/axis.cu": ("pool/general.cu",),
    "pool/unpool.cu": ("pool/indices.cu",),
}


@cache
def _sources() -> dict[Specimen, tuple[str, ...]]:
    found: dict[Specimen, tuple[str, ...]] = {}
    for source, those in by_source().items():
        for one in those:
            found[one] = tuple(dict.fromkeys((*found.get(one, ()), source, *_BESIDES.get(source, ()))))
    for number, one in enumerate(FUSED):
        found[one] = (*found[CONVOLUTIONS[number]], "passes/copy.cu")
    return found


def sources_of(one: Specimen) -> tuple[str, ...]:
    """Return the sources, relative to kernels_cu, of a specimen's kernels and of those launched with them."""
    return _sources()[one]


def params(those: Iterable[Specimen]) -> list[Any]:
    """Return specimens as test parameters, with ids and with marks of their kernels' sources."""
    names: dict[str, int] = {}
    found = []
    for one in those:
        number = names[one.kernel] = names.get(one.kernel, -1) + 1
        mark = pytest.mark.kernels(*sources_of(one))
        found.append(pytest.param(one, marks=mark, id=f"{one.kernel}-{number}"))
    return found


def files() -> list[str]:
    """Return the files of kernels_cu that kernels are compiled from, relative to that folder."""
    root = kernel_files.folder()
    found = {path.relative_to(root).as_posix() for path in root.rglob("*.cu*")}
    return sorted(found - {"base/chained.cuh"})  # no source includes it; tests/cuda/call/test_chained.py has its faults


def problems_of(path: str) -> tuple[Specimen, ...]:
    """Return the specimens that use a file: its own, or those of all sources that include it."""
    if path == "conv/finish.cuh":  # without an epilogue it does nothing
        return FUSED[::8]
    found = (one for source, those in by_source().items() if path in _included(source) for one in those)
    return tuple(dict.fromkeys(found))


def including(path: str) -> tuple[str, ...]:
    """Return the .cu files that include a file, or the file itself."""
    return tuple(source for source in sorted(by_source()) if path in _included(source))


@cache
def _included(source: str) -> frozenset[str]:
    """Return a source with all headers that it includes, directly or not."""
    seen: set[str] = set()
    list(sources._inlined(kernel_files.folder(), source, seen))
    return frozenset(seen)
