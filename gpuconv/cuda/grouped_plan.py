"""Conv and ConvTranspose of few channels a group on tensor cores (``conv_grouped.cu``): one launch, w as it is.

Several groups make one whose weights have zeros where a filter would meet another group's channels. The kernels have
three spatial axes and 32-bit indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from gpuconv.cuda import fragments, gemm_fields, gemm_structs, grouped_tile, grouped_work, launching, mma_plan, params
from gpuconv.cuda import model as models
from gpuconv.cuda.correlation import RANK, Problem
from gpuconv.cuda.gemm_fields import PackedWeights
from gpuconv.cuda.grouped_tile import Tile
from gpuconv.cuda.grouped_work import MOST_CHANNELS, Form
from gpuconv.cuda.offers import Candidate, Offer, Refusal
from gpuconv.cuda.plan import Limits, Plan, Variant

NAME = "groups packed for tensor cores"
_OUTPUTS = ("single", "pairs", "chunks")  # as in ``include/wide_outputs.cuh``
FACTORS = (("float16", "ieee"), ("bfloat16", "ieee"), ("float32", "tf32"), ("float32", "3xtf32"))


# ---------------------------------------------------------------- plans


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield a candidate for every kernel that has room for a tile."""
    refusal = _refusal(problem)
    if refusal is not None:
        yield refusal
        return
    arithmetic = fragments.arithmetic(problem)
    for work in grouped_work.works(problem, arithmetic):
        found = grouped_tile.best(work, limits, _more_bytes(problem))
        if found is not None:
            seconds, tile = found
            name = variant(problem.operator, problem.dtype, problem.precision, work.form).name
            modelled = models.overlapped(seconds, models.memory(problem.bytes_by_phase, limits))
            yield Candidate(name, modelled, partial(_plan, tile))


def _refusal(problem: Problem) -> Refusal | None:
    tensor_cores = mma_plan.refusal(problem)
    if problem.dtype == "float64":
        return Refusal("products of float64", plain=problem.group == 1)
    if problem.group == 1 or problem.channels > MOST_CHANNELS:
        why = f"{problem.group} groups of {problem.channels} channels; it takes several, of up to {MOST_CHANNELS}"
        return Refusal(why, plain=problem.group == 1 or tensor_cores is not None)
    return None if tensor_cores is None else Refusal(tensor_cores)


def _more_bytes(problem: Problem) -> int:
    """Of shared memory for the taps of a phase."""
    return -(-gemm_structs.taps(False, RANK).itemsize // 16) * 16 if problem.phases else 0


def _plan(tile: Tile) -> Plan:
    work = tile.work
    problem = work.problem
    chosen = variant(problem.operator, problem.dtype, problem.precision, work.form)
    roles = gemm_fields.roles(problem)
    roles.pop("weights", None)
    pointers = params.pointers(gemm_structs.correlation(False, RANK), roles)
    pointers += params.pointers(_weights(), {"w": "w"}, params.offset(chosen.layout, "weights"))
    shared = tile.shared_bytes + _more_bytes(problem)
    launch = launching.of_blocks(problem.operator, chosen, tile.blocks, _fields(tile), pointers, shared)
    columns = " x ".join(map(str, tile.tile))
    reason = f"{work.together} groups of {problem.channels} channels make one; tiles of {columns} columns"
    return Plan(problem.operator, (launch,), 0, "", (reason,))


def _fields(tile: Tile) -> Mapping[str, Any]:
    work = tile.work
    problem = work.problem
    packed = PackedWeights(0, problem.rows, problem.channels)
    operands = dict(gemm_fields.operands(problem, (work.m_tiles, tile.turns), packed, False))
    operands["common"] = {**operands["common"], "filters": work.filters}
    own = {"bands": _bands_fields(tile), "weights": _weights_fields(tile)}
    return {**operands, **own} if problem.operator == "conv" else {"all": operands, **own}


def _bands_fields(tile: Tile) -> Mapping[str, Any]:
    work = tile.work
    return {
        "images": work.problem.batch,
        "channels": work.channels,
        "depths": work.depths,
        "tile": params.divisions(tile.tile, False),
        "box": params.divisions(tile.box, False),
        "box_pitch": tile.pitches[:2],
        "pixels": params.division(prod(tile.box), False),
        "tiles": params.divisions(tile.counts, False),
        "image_columns": params.division(work.problem.columns[0], False),
        "image_inputs": params.division(work.image_inputs, False),
    }


def _weights_fields(tile: Tile) -> Mapping[str, Any]:
    problem = tile.work.problem
    return {
        **problem.w_steps,
        "w_stride": problem.w_strides[3:],
        "kernel": params.divisions(problem.taps, False),
        "filters": params.division(problem.filters, False),
        "groups": params.division(problem.group // tile.work.together, False),
        "outputs": _OUTPUTS.index(tile.outputs),
    }


# ---------------------------------------------------------------- variants


def variant(operator: str, dtype: str, precision: str, form: Form) -> Variant:
    """Return the kernel of one operator."""
    arithmetic = fragments.arithmetic_of(dtype, precision)
    struct = "ConvGroupedParams" if operator == "conv" else "ConvTransposeGroupedParams"
    return Variant(
        name=f"{operator}_grouped_{dtype}_{RANK}d_{arithmetic.label}_{form}",
        source="conv_grouped.cu",
        function=f"{operator}_grouped",
        arguments=(arithmetic.cuda, str(form.block_m), str(form.warp_n), str(form.warps)),
        parameter=struct,
        layout=_layout(operator),
        threads=form.threads,
        blocks_per_sm=form.blocks_per_sm,
    )


@cache
def _weights() -> np.dtype[Any]:
    """Return the layout of ``GroupedWeights``."""
    divider = params.divider(False)
    steps = [*((name, "<i4") for name in ("w_group", "w_filter", "w_channel")), ("w_stride", "<i4", (RANK,))]
    return params.layout(
        [
            ("w", params.POINTER),
            *steps,
            ("kernel", divider, (RANK,)),
            ("filters", divider),
            ("groups", divider),
            ("outputs", "<i4"),
        ]
    )


@cache
def _bands() -> np.dtype[Any]:
    """Return the layout of ``Bands``."""
    axes, divider = (RANK,), params.divider(False)
    return params.layout(
        [
            *((name, "<i4") for name in ("images", "channels", "depths")),
            ("box_pitch", "<i4", (2,)),
            ("tile", divider, axes),
            ("box", divider, axes),
            ("pixels", divider),
            ("tiles", divider, axes),
            ("image_columns", divider),
            ("image_inputs", divider),
        ]
    )


@cache
def _layout(operator: str) -> np.dtype[Any]:
    """Return the layout of ``ConvGroupedParams`` or ``ConvTransposeGroupedParams``."""
    own = [("bands", _bands()), ("weights", _weights())]
    if operator == "conv":
        first = [("common", gemm_structs.correlation(False, RANK)), ("taps", gemm_structs.taps(False, RANK))]
        return params.layout([*first, *own])
    return params.layout([("all", gemm_structs.operands(operator, False, RANK)), *own])


def forms() -> Iterator[tuple[str, str, Form]]:
    """Yield dtype, precision and form of every kernel."""
    for dtype, precision in FACTORS:
        for form in grouped_work.forms(fragments.arithmetic_of(dtype, precision)):
            yield dtype, precision, form


def variants() -> Iterator[Variant]:
    """Yield every variant that a plan can name."""
    for dtype, precision, form in forms():
        for operator in ("conv", "conv_transpose"):
            yield variant(operator, dtype, precision, form)
