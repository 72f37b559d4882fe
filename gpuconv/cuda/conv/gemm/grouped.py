"""Grouped Conv and ConvTranspose with few channels per group, on tensor cores (``conv/gemm/grouped.cu``).

A single group has too few channels to fill an mma's K. So several groups are joined into one whose weight matrix is
block-diagonal, with zeros between groups. One launch; w is read in place, and x is staged with its halo in shared
memory. Ungrouped problems with up to 64 channels are accepted too. Three spatial axes, 32-bit indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import fragments, grouped_tile
from gpuconv.cuda.conv.gemm.grouped_tile import GroupedForm, GroupedTile, GroupedWork
from gpuconv.cuda.conv.problem import Problem
from gpuconv.cuda.plan import RANK, Candidate, Launch, Limits, Offer, Plan, Refusal, model, numbers

NAME = "packed groups"
FACTORS = (("float16", "ieee"), ("bfloat16", "ieee"), ("float32", "tf32"), ("float32", "3xtf32"))


# ---------------------------------------------------------------- accepted problems


_MOST_CHANNELS = 64  # most channels per block


def _refusal(problem: Problem) -> Refusal | None:
    """Return why this family does not accept the problem; None if it does."""
    tensor_cores = fragments.refusal(problem)
    if problem.dtype == "float64":
        return Refusal("products of float64", plain=problem.group == 1)
    if problem.channels > _MOST_CHANNELS:
        why = f"{problem.channels} channels in a group; it takes up to {_MOST_CHANNELS}"
        return Refusal(why, plain=problem.group == 1 or tensor_cores is not None)
    return None if tensor_cores is None else Refusal(tensor_cores, plain=problem.group == 1)


def works(problem: Problem, arithmetic: fragments.Arithmetic) -> Iterator[GroupedWork]:
    """Yield, for each form, the problem with the number of joined groups that needs the fewest fragments per group.

    Axes with a single column and tap are moved innermost.
    """
    lifted = problem.lifted
    turned = lifted.with_axes(sorted(lifted.axes, key=lambda axis: axis.columns == 1 and axis.taps == 1))
    most = min(problem.group, _MOST_CHANNELS // problem.channels)
    shares = [share for share in range(1, most + 1) if problem.group % share == 0]
    for form in grouped_tile.forms(arithmetic):
        divisions = (GroupedWork(turned, arithmetic, form, share) for share in shares)
        yield min(divisions, key=lambda work: (work.fragments, -work.joined_groups))


# ---------------------------------------------------------------- shared memory


def _more_bytes(problem: Problem) -> int:
    """Return the bytes of shared memory for one phase's taps; 0 for Conv."""
    return numbers.whole(gemm_base.taps_bytes(RANK), 16) if problem.phases else 0


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield the best tile of each kernel form that fits the device's shared memory."""
    if refusal := _refusal(problem):
        yield refusal
        return
    options = [
        (work, best)
        for work in works(problem, fragments.arithmetic(problem))
        if (best := grouped_tile.best(work, limits, _more_bytes(problem)))
    ]
    if not options:
        yield Refusal(f"{limits.shared_bytes_per_block} bytes of shared memory have no room for a tile")
    for work, (seconds, tile) in options:
        name = variant(problem.operator, problem.dtype, problem.precision, work.form).name
        modelled = model.overlapped(seconds, model.memory(problem.bytes_by_phase, limits))
        how = f" of {work.joined_groups} groups" if problem.group > 1 else ""
        order = fragments.order(work.arithmetic, work.channels, 32 // work.itemsize, how)
        yield Candidate(name, modelled, partial(_plan, tile), order)


# ---------------------------------------------------------------- launch


_OUTPUTS = ("single", "pairs", "chunks")  # index = the kernel's constant in ``conv/wide_outputs.cuh``


def _plan(tile: GroupedTile) -> Plan:
    """Return the plan of this candidate."""
    work = tile.work
    problem = work.problem
    chosen = variant(problem.operator, problem.dtype, problem.precision, work.form)
    place = "common" if problem.operator == "conv" else "all.common"
    roles = {member: role for member, role in gemm_base.roles(problem, place).items() if role != "packed"}
    shared = tile.shared_bytes + _more_bytes(problem)
    launch = Launch.of_blocks(problem.operator, chosen, tile.blocks, _fields(tile), roles | {"weights.w": "w"}, shared)
    columns = " x ".join(map(str, tile.tile))
    reason = f"{work.joined_groups} groups of {problem.channels} channels make one"
    if problem.group == 1:
        reason = f"all {problem.channels} channels of a pixel are read at once"
    return Plan(problem.operator, (launch,), (f"{reason}; tiles of {columns} columns",))


def _fields(tile: GroupedTile) -> Mapping[str, Any]:
    """Return the fields of the kernel's parameter struct."""
    work = tile.work
    problem = work.problem
    packed = gemm_base.PackedWeights(0, problem.rows, problem.channels)
    operands = dict(gemm_base.operands(problem, (work.m_tiles, tile.tile_blocks), packed))
    operands["common"] = {**operands["common"], "filters": work.filters}
    bands_and_weights = {"bands": _bands_fields(tile), "weights": _weights_fields(tile)}
    return {**operands, **bands_and_weights} if problem.operator == "conv" else {"all": operands, **bands_and_weights}


def _bands_fields(tile: GroupedTile) -> Mapping[str, Any]:
    """Return the fields of the struct that describes bands."""
    work = tile.work
    return {
        "images": work.problem.batch,
        **params.members(work, "channels", "depths", "image_inputs"),
        **params.members(tile, "tile", "box"),
        "box_pitch": tile.pitches[:2],
        "pixels": prod(tile.box),
        "tiles": tile.counts,
        "image_columns": work.problem.columns[0],
    }


def _weights_fields(tile: GroupedTile) -> Mapping[str, Any]:
    """Return the fields of the struct that describes weights and outputs."""
    problem = tile.work.problem
    return {
        **problem.w_steps,
        "w_stride": problem.w_strides[3:],
        "kernel": problem.taps,
        "filters": problem.filters,
        "groups": problem.group // tile.work.joined_groups,
        "outputs": _OUTPUTS.index(tile.outputs),
    }


_KERNELS = {
    "conv": Kernel("conv/gemm/grouped.cu", "conv_grouped", "ConvGroupedParams"),
    "conv_transpose": Kernel("conv/gemm/grouped.cu", "conv_transpose_grouped", "ConvTransposeGroupedParams"),
}


def variant(operator: str, dtype: str, precision: str, form: GroupedForm) -> Variant:
    """Return the kernel variant with these template arguments."""
    arithmetic = fragments.ARITHMETICS[dtype, precision]
    return _KERNELS[operator].over(
        *(dtype, RANK, arithmetic.label, str(form)),
        types=(arithmetic.cuda,),
        sizes=(form.block_m, form.warp_n, form.warps),
        threads=form.threads,
        blocks_per_sm=form.blocks_per_sm,
    )


def forms() -> Iterator[tuple[str, str, GroupedForm]]:
    """Yield (dtype, precision, form) of every kernel variant."""
    for dtype, precision in FACTORS:
        for form in grouped_tile.forms(fragments.ARITHMETICS[dtype, precision]):
            yield dtype, precision, form


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    for dtype, precision, form in forms():
        for operator in ("conv", "conv_transpose"):
            yield variant(operator, dtype, precision, form)
