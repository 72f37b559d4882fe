"""The table of what every kernel uses on every architecture, and the tool that makes it:

    python -m tests.harness.kernel_table --write

Whoever makes it anew says in the commit why the numbers are others.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from gpuconv.cpu import _threads
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.conv import families as conv_families
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.direct import bands, few, transpose
from gpuconv.cuda.conv.direct import channels as channels_plan
from gpuconv.cuda.conv.gemm import fragments, grouped, matrix, pointwise, stem, stem_tile
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.conv.wgmma import family as wgmma
from gpuconv.cuda.plan.launch import Launch, Plan
from gpuconv.cuda.plan.limits import representative
from gpuconv.cuda.pool import families as pool_families
from gpuconv.cuda.pool import problem as pool_problem
from gpuconv.cuda.pool import vectors
from gpuconv.cuda.variants import all_variants
from gpuconv.rules import dtypes
from gpuconv.rules import geometry as geometries
from gpuconv.rules.precision import PRECISIONS
from tests.emulator.compile import ARCHITECTURES, own, turn
from tests.harness import direct_forms, gradient_plans, machine_code, records
from tests.harness.offered import candidates

PATH = Path(__file__).with_suffix(".json")
TOOL = "-m tests.harness.kernel_table"
COLUMNS = "per architecture: registers of a thread, bytes of static shared memory; spilled bytes and stack, if any"
_RANKS = (1, 2, 3, 4)
_CHANNELS = (16, 17, 24)  # of a group: one tap per slice of K, one for every row, one for every 16 bytes
_BAND_KERNELS = ((2, 2), (3, 3), (5, 5), (3, 4))
_LIMITS = representative("sm_90a").limits
_FAR = 2**31  # elements from one image to the next that ask for 64-bit indices

# ---------------------------------------------------------------- the planner's kernels


@cache
def launches() -> dict[str, Launch]:
    """Return a launch of every kernel that a plan of one to four spatial axes can name, by that name.

    It takes seconds: call it inside of tests, not where they are collected.
    """
    plans = [
        *(*_gemm_plans(), *_wgmma_plans(), *_unpacked_plans(), *_matrix_plans(), *_grouped_plans(), *_stem_plans()),
        *(*_direct_plans(), *_channel_plans(), *_depthwise_transposed_plans()),
        *(*_pool_plans(), *gradient_plans.plans()),
    ]
    return {launch.variant.name: launch for plan in plans for launch in plan.launches}


def _gemm_plans() -> Iterator[Plan]:
    operators = (("conv", 1), ("conv_transpose", 1), ("conv_transpose", 2))
    for (operator, stride), dtype, rank, wide, channels in product(
        operators, dtypes.CONV_DTYPES, _RANKS, (False, True), _CHANNELS
    ):
        for precision in PRECISIONS if dtype == "float32" else ("ieee",):
            for channels_last in (False, True):
                problem = _problem(operator, stride, dtype, rank, wide, channels, precision, channels_last)
                for candidate in candidates(conv_families, problem, _LIMITS):
                    yield candidate.make()


def _wgmma_plans() -> Iterator[Plan]:
    """Of every type that they multiply, with x in both orders."""
    cases = product(("conv", "conv_transpose"), fragments.operands(), (64, 32), (_strides, _channels_last))
    for operator, (dtype, precision), channels, order in cases:  # in whole slices, and in a half of one
        x_shape, w_shape = (2, channels, 6, 8), (64, channels, 3, 3)
        if operator == "conv_transpose":
            w_shape = (channels, 64, 3, 3)
        geometry = getattr(geometries, operator)(x_shape, w_shape)
        make = correlation.of_conv if operator == "conv" else correlation.of_conv_transpose
        w_strides, y_strides = map(contiguous_strides, (w_shape, geometry.y_shape))
        problem = make(geometry, dtype, order(x_shape), w_strides, None, y_strides, precision)
        yield from (candidate.make() for candidate in candidates(wgmma, problem, _LIMITS))


def _unpacked_plans() -> Iterator[Plan]:
    """Of few output channels, or of one tap."""
    shapes = [((2, 5, 3, 3), (filters, 5, 2, 2)) for filters in few._FILTERS]
    shapes += [((2, 5, 9, 9), (filters, 5, *kernel)) for filters in (1, 3, 4) for kernel in _BAND_KERNELS]
    for dtype, (x_shape, w_shape) in product(dtypes.CONV_DTYPES, [*shapes, ((2, 17, 3, 3), (17, 17, 1, 1))]):
        geometry = geometries.conv(x_shape, w_shape)
        strides = map(contiguous_strides, (x_shape, w_shape, geometry.y_shape))
        x_strides, w_strides, y_strides = strides
        problem = correlation.of_conv(geometry, dtype, x_strides, w_strides, None, y_strides)
        for family in (few, bands, pointwise):
            yield from (candidate.make() for candidate in candidates(family, problem, _LIMITS))


def _matrix_plans() -> Iterator[Plan]:
    """Of one tap, or of a kernel that is the stride, on tensor cores."""
    x_shape, w_shape = (2, 16, 4, 4), (16, 16, 1, 1)
    conv = geometries.conv(x_shape, w_shape)
    transposed = geometries.conv_transpose(x_shape, (16, 16, 2, 2), strides=[2, 2])
    for (dtype, precision), strides in product(fragments.operands(), (_strides, _channels_last)):
        arrays = strides(x_shape), contiguous_strides(w_shape), None, _strides(conv.y_shape)
        problem = correlation.of_conv(conv, dtype, *arrays, precision)
        yield from (candidate.make() for candidate in candidates(matrix, problem, _LIMITS))
        arrays = strides(x_shape), contiguous_strides((16, 16, 2, 2)), None, _strides(transposed.y_shape)
        problem = correlation.of_conv_transpose(transposed, dtype, *arrays, precision)
        yield from (candidate.make() for candidate in candidates(matrix, problem, _LIMITS))


def _grouped_plans() -> Iterator[Plan]:
    for operator, (dtype, precision) in product(("conv", "conv_transpose"), grouped.FACTORS):
        x_shape, w_shape = (2, 8, 9, 9), (8, 4, 3, 3)
        geometry = getattr(geometries, operator)(x_shape, w_shape, group=2)
        make = correlation.of_conv if operator == "conv" else correlation.of_conv_transpose
        x_strides, w_strides, y_strides = map(contiguous_strides, (x_shape, w_shape, geometry.y_shape))
        problem = make(geometry, dtype, x_strides, w_strides, None, y_strides, precision)
        yield from (candidate.make() for candidate in candidates(grouped, problem, _LIMITS))


def _stem_plans() -> Iterator[Plan]:
    """Of few input channels: as many taps in a row as a kernel takes at once."""
    for kernel in stem_tile.KERNELS:
        x_shape, w_shape = (2, 3, 4, 40), (70, 3, 2, kernel.chunk)
        geometry = geometries.conv(x_shape, w_shape)
        x_strides, w_strides, y_strides = map(contiguous_strides, (x_shape, w_shape, geometry.y_shape))
        problem = correlation.of_conv(geometry, kernel.dtype, x_strides, w_strides, None, y_strides, kernel.precision)
        yield from (candidate.make() for candidate in candidates(stem, problem, _LIMITS))


def _direct_plans() -> Iterator[Plan]:
    for dtype, form in product(dtypes.CONV_DTYPES, direct_forms.FORMS):
        x_shape, w_shape, attributes = direct_forms.usual(form)
        geometry = geometries.conv(x_shape, w_shape, None, **attributes)
        x_strides, w_strides, y_strides = map(contiguous_strides, (x_shape, w_shape, geometry.y_shape))
        problem = correlation.of_conv(geometry, dtype, x_strides, w_strides, None, y_strides)
        name = direct_forms.name(form, dtype)
        yield from (one.make() for one in candidates(conv_families, problem, _LIMITS) if one.name == name)


def _channel_plans() -> Iterator[Plan]:
    x_shape, w_shape = (2, 8, 9, 9), (8, 1, 3, 3)
    for dtype, stride in product(dtypes.CONV_DTYPES, (1, 2)):
        geometry = geometries.conv(x_shape, w_shape, group=8, strides=[stride] * 2)
        x_strides, y_strides = map(_channels_last, (x_shape, geometry.y_shape))
        problem = correlation.of_conv(geometry, dtype, x_strides, contiguous_strides(w_shape), None, y_strides)
        yield from (one.make() for one in candidates(channels_plan, problem, _LIMITS))


def _depthwise_transposed_plans() -> Iterator[Plan]:
    x_shape, w_shape = (2, 3, 9, 9), (3, 1, 4, 4)
    geometry = geometries.conv_transpose(x_shape, w_shape, group=3, strides=[2, 2])
    strides = [*map(contiguous_strides, (x_shape, w_shape, geometry.y_shape))]
    for dtype in dtypes.CONV_DTYPES:
        problem = correlation.of_conv_transpose(geometry, dtype, *strides[:2], None, strides[2])
        yield from (one.make() for one in candidates(transpose, problem, _LIMITS))


def _problem(
    operator: str, stride: int, dtype: str, rank: int, wide: bool, channels: int, precision: str, channels_last: bool
) -> Problem:
    """With stride 2, ConvTranspose has phases, and its outputs do not overlap."""
    x_shape, w_shape = (2, channels, *[3] * rank), (channels, channels, *[2] * rank)
    geometry = getattr(geometries, operator)(x_shape, w_shape, None, strides=[stride] * rank)
    make = correlation.of_conv if operator == "conv" else correlation.of_conv_transpose
    x_strides = _channels_last(x_shape, wide) if channels_last else _strides(x_shape, wide)
    arrays = x_strides, contiguous_strides(w_shape), None, _strides(geometry.y_shape)
    return make(geometry, dtype, *arrays, precision)


def _pool_plans() -> Iterator[Plan]:
    for dtype, rank, wide, indices in product(dtypes.MAX_POOL_DTYPES, _RANKS, (False, True), (False, True)):
        yield from _pools((2, 3, *[4] * rank), 2, 1, dtype, wide, indices)
        if not wide:
            yield from _pools((2, 16, *[4] * rank), 2, 1, dtype, wide, indices, channels_last=True)
    for dtype, indices, (size, stride) in product(dtypes.MAX_POOL_DTYPES, (False, True), vectors.STRIPS):
        yield from _pools((2, 3, 8, 32), size, stride, dtype, False, indices)


def _pools(
    x_shape: tuple[int, ...], size: int, stride: int, dtype: str, wide: bool, indices: bool, channels_last: bool = False
) -> Iterator[Plan]:
    rank = len(x_shape) - 2
    geometry = geometries.max_pool(x_shape, kernel_shape=[size] * rank, strides=[stride] * rank)
    strides = _channels_last if channels_last else _strides
    y_strides = strides(geometry.y_shape)
    places = y_strides if indices else None
    problem = pool_problem.PoolProblem(geometry, dtype, strides(x_shape, wide), y_strides, places)
    for candidate in candidates(pool_families, problem, _LIMITS):
        yield candidate.make()


def _strides(shape: tuple[int, ...], wide: bool = False) -> tuple[int, ...]:
    first, *rest = contiguous_strides(shape)
    return (_FAR if wide else first, *rest)


def _channels_last(shape: tuple[int, ...], wide: bool = False) -> tuple[int, ...]:
    batch, *spatial, channel = _strides((shape[0], *shape[2:], shape[1]), wide)
    return batch, channel, *spatial


# ---------------------------------------------------------------- the table


def groups() -> dict[str, list[Variant]]:
    """Return all variants by operator, dtype and spatial rank, as their names have them: ``conv_float32_3d``."""
    found: dict[str, list[Variant]] = {}
    for variant in all_variants():
        found.setdefault(re.match(r".+?_\dd", variant.name)[0], []).append(variant)
    return found


def looked_at(variants: Iterable[Variant], architecture: str) -> list[Variant]:
    """Return those that every run of the tests compiles for an architecture: each for one of its own."""
    return [one for one in variants if architecture == turn(one)]


def left(variants: Iterable[Variant], architecture: str) -> list[Variant]:
    """Return those that only thorough tests compile for an architecture."""
    return [one for one in variants if architecture in own(one) and architecture != turn(one)]


def reports(variants: list[Variant], architecture: str, threads: int, keep: bool) -> dict[str, compiler.Report]:
    """Compile variants, and keep them or not; return what the assembler says of each."""
    with ThreadPoolExecutor(threads) as pool:
        built = pool.map(lambda variant: machine_code.build(variant, architecture, keep), variants)
        return {variant.name: _report(one.log) for variant, one in zip(variants, built, strict=True)}


def _report(log: str) -> compiler.Report:
    found = compiler.read(log)
    assert found is not None, log
    return found


def cell(report: compiler.Report) -> list[int]:
    """Return what the table has of one kernel on one architecture."""
    spilled = report.spill_stores + report.spill_loads
    unwanted = [spilled, report.stack_bytes] if spilled or report.stack_bytes else []
    return [report.registers, report.shared_bytes, *unwanted]


def heads() -> dict[str, dict[str, Any]]:
    """Return of every kernel what needs no compiler: its launch bounds and its dynamic shared memory."""
    return {
        name: {
            "threads": launch.variant.threads,
            "blocks_per_sm": launch.variant.blocks_per_sm,
            "dynamic_shared": launch.shared_bytes,
        }
        for name, launch in launches().items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", required=True, help=f"compile every kernel, write {PATH.name}")
    parser.parse_args()
    first = heads()
    rows = {variant.name: first[variant.name] for variant in all_variants()}
    for architecture in ARCHITECTURES:
        chosen = [variant for variant in all_variants() if architecture in own(variant)]
        for name, report in reports(chosen, architecture, _threads.count(), keep=False).items():
            rows[name][architecture] = cell(report)
    records.write(PATH, {"columns": COLUMNS}, rows)
    print(f"{len(rows)} kernels for {len(ARCHITECTURES)} architectures: {PATH}")


if __name__ == "__main__":
    main()
