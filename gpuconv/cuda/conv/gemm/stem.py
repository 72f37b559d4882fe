"""Conv with up to 15 input channels, typically a network's first layer (``conv/gemm/stem.cu``).

With so few channels, slices of K cross taps, and looking up a tap for each row of K costs more than the products. Here
a block stages all inputs of its outputs, with halo, in shared memory once. K enumerates (channel, taps): channels act
as the outermost of four spatial axes.

Two launches: pack the weights, then compute. FFMA for float32, mma.sync for 16-bit types and TF32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

from gpuconv.cuda.build import params
from gpuconv.cuda.build.variant import Kernel, Variant
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import fragments, stem_tile
from gpuconv.cuda.conv.gemm.stem_tile import KERNELS, WORDS, StemBox, StemKernel
from gpuconv.cuda.conv.problem import Axis, Problem, step_between
from gpuconv.cuda.plan import (
    RANK,
    RESERVED_BYTES,
    Candidate,
    Launch,
    Limits,
    Offer,
    Plan,
    Refusal,
    Space,
    nonempty,
    numbers,
)
from gpuconv.cuda.plan.numbers import empty_rows
from gpuconv.rules.geometry import Ints

NAME = "stem"


# ---------------------------------------------------------------- accepted problems


CHANNELS = range(1, 16)  # channels per group; with 16, other families have one tap per slice of K
_ROWS = 4096  # limit on K, which keeps the table of steps small


def _refusal(problem: Problem) -> Refusal | None:
    """Return why this family does not accept the problem; None if it does, provided its band fits shared memory."""
    if problem.operator != "conv":
        return Refusal("it is no Conv", plain=True)
    if problem.channels not in CHANNELS:
        return Refusal(f"{problem.channels} channels of a group; it takes 1 to {CHANNELS[-1]}", plain=True)
    if problem.rank > RANK:
        return Refusal(f"{problem.rank} spatial axes; it has three")
    if problem.dtype == "float64":
        return Refusal("elements of 64 bits")
    if problem.itemsize == 2 and problem.dilations[-1] > 1:
        return Refusal("taps of a row that are no neighbours, which 16-bit elements must be")
    if problem.rows > _ROWS or problem.rows == 0:
        return Refusal(f"{problem.rows} rows of K; it takes 1 to {_ROWS}")
    if problem.far():
        return Refusal("offsets or coordinates need 64-bit indices")
    return None


def _with_channels_as_axis(problem: Problem) -> Problem:
    """Return a three-axis problem with its channels as a fourth, outermost axis whose taps cover all channels."""
    (batch, channel, *spatial), (w_group, w_filter, w_channel, *w_spatial) = problem.x_strides, problem.w_strides
    channels = Axis(taps=problem.channels, x=problem.channels, x_stride=channel, w_stride=w_channel)
    single = replace(
        problem,
        channels=1,
        x_shape=(problem.batch, problem.group, *problem.x_shape[2:]),
        x_strides=(batch, step_between(problem.group, problem.channels * channel), *spatial),
        w_strides=(w_group, w_filter, 0, *w_spatial),
    )
    return single.with_axes((channels, *problem.axes))


# ---------------------------------------------------------------- offers


def offers(problem: Problem, limits: Limits) -> Iterator[Offer]:
    """Yield, for each accepting kernel, its fastest box of outputs that fits shared memory."""
    if refusal := _refusal(problem):
        yield refusal
        return
    made = [_candidate(problem, kernel, limits) for kernel in stem_tile.kernels(problem.lifted)]
    yield from filter(None, made)
    if not any(made):
        yield Refusal("the inputs of a block leave no room for a second one in shared memory")


def _candidate(problem: Problem, kernel: StemKernel, limits: Limits) -> Candidate | None:
    """Return a kernel with its fastest box and number of passes; None if no box fits."""
    lifted = problem.lifted
    # At least two blocks must fit an SM.
    room = min(limits.shared_bytes_per_block, limits.shared_bytes_per_multiprocessor // 2 - RESERVED_BYTES)
    fitting = (box for box in stem_tile.boxes(lifted) if stem_tile.shared_bytes(lifted, kernel, box) <= room)
    options = [
        (stem_tile.seconds(lifted, kernel, box, passes, limits), box, passes)
        for box, passes in product(fitting, stem_tile.passes(lifted, kernel))
    ]
    if not options or problem.wide(_packed_bytes(lifted, kernel)):
        return None
    seconds, box, passes = min(options, key=lambda option: option[0])
    return Candidate(
        variant(kernel).name, seconds, partial(_plan, lifted, kernel, box, passes), _order(problem, kernel)
    )


def _order(problem: Problem, kernel: StemKernel) -> str:
    """Return the name of the order in which an output's products are summed."""
    if kernel.arithmetic is None:
        return "FFMA over channels, taps in a band"
    return f"{kernel.arithmetic.instruction} over channels, taps, those of a row in {kernel.chunk}s"


# ---------------------------------------------------------------- launch


def _plan(problem: Problem, kernel: StemKernel, box: StemBox, passes: int) -> Plan:
    """Return the plan of this candidate."""
    flat = _with_channels_as_axis(problem)
    parts = stem_tile.parts(problem, kernel, passes)
    tiles = problem.batch * prod(box.tiles)
    chosen = variant(kernel)
    operands = gemm_base.operands(flat, (parts, tiles), _weights(problem, kernel))
    fields = {
        "common": operands["common"],
        "taps": {**operands["taps"], "row": _tap_rows(problem, kernel)},
        **_fields(problem, kernel, box),
        "passes": passes,
    }
    roles = gemm_base.roles(flat)
    shared = stem_tile.shared_bytes(problem, kernel, box)
    launch = Launch.of_blocks(problem.operator, chosen, problem.group * parts * tiles, fields, roles, shared)
    packing = gemm_base.packing(flat, False) if kernel.arithmetic is None else _packing(problem, kernel)
    extents = "x".join(str(1 << bits) for bits in box.bits)
    reason = f"{box.band_bytes} bytes of inputs for {extents} outputs in shared memory; {kernel.chunk} taps at a time"
    reasons = (reason, *empty_rows(problem.filters, kernel.block_m, tiles=parts * passes))
    return Plan(problem.operator, (packing, launch), reasons, nonempty(Space.packed(_packed_bytes(problem, kernel))))


def _weights(problem: Problem, kernel: StemKernel) -> gemm_base.PackedWeights:
    """Return the layout of packed weights: rows of K for FFMA; slices of fragments, in bytes, for tensor cores."""
    if kernel.arithmetic is None:
        return gemm_base.PackedWeights(gemm_base.pitch(problem), problem.rows, 1)
    in_row = _columns(problem, kernel) * kernel.arithmetic.parts * (kernel.slice_steps // WORDS)
    return gemm_base.PackedWeights(in_row * fragments.FRAGMENT_BYTES, stem_tile.slices(problem, kernel), 1)


def _packed_bytes(problem: Problem, kernel: StemKernel) -> int:
    """Return the bytes of the packed weights, over all groups."""
    weights = _weights(problem, kernel)
    return problem.group * weights.all_rows * weights.pitch * (problem.itemsize if kernel.arithmetic is None else 1)


def _columns(problem: Problem, kernel: StemKernel) -> int:
    """Return the fragments along M, in whole passes."""
    return numbers.whole(problem.filters, kernel.block_m) // 16


def _tap_rows(problem: Problem, kernel: StemKernel) -> Ints:
    """Return the distance in rows of K between adjacent channels, and between adjacent taps of each axis."""
    row = problem.taps[-1] if kernel.arithmetic is None else numbers.whole(problem.taps[-1], kernel.chunk)
    return problem.taps[0] * problem.taps[1] * row, problem.taps[1] * row, row, 1


def _packing(problem: Problem, kernel: StemKernel) -> Launch:
    """Return the launch that packs weights as fragments, with taps along W in the role of channels."""
    group, filters, channel, *along = problem.w_strides
    exchanged = replace(
        problem,
        channels=problem.taps[-1],
        taps=(problem.channels, *problem.taps[:2]),
        w_strides=(group, filters, along[-1], channel, *along[:2]),
    )
    weights = replace(_weights(problem, kernel), channels=numbers.whole(problem.taps[-1], kernel.chunk))
    return fragments.packing(exchanged, weights, _columns(problem, kernel), kernel.slice_steps // WORDS, 1)


def _fields(problem: Problem, kernel: StemKernel, box: StemBox) -> dict[str, Any]:
    """Return the fields of the kernel's parameter struct."""
    return {
        **params.members(
            box, "tiles", "runs", "lead", "chunks", "pitch", "shift", "copies", "copy_bytes", "band_bytes"
        ),
        "row_bits": box.bits[1],
        "column_bits": box.bits[2],
        "band_rows": box.band[1],
        "band_depths": box.band[0],
        "band_columns": box.band[2],
        "units": box.chunks * box.rows,
        "steps_of_row": -(-problem.taps[-1] // kernel.chunk),
        "steps": stem_tile.steps(problem, kernel),
        "step_bytes": kernel.chunk * problem.dilations[-1] * problem.itemsize,
        "channel_vectors": stem_tile.channels_are_vectors(problem),
        "pixel_vectors": stem_tile.pixels_are_vectors(problem),
    }


_KERNEL = Kernel("conv/gemm/stem.cu", "conv_stem", "StemParams")
_MMA = replace(_KERNEL, function="conv_stem_mma", name="conv_stem")


def variant(kernel: StemKernel) -> Variant:
    """Return the kernel variant with these template arguments."""
    return (_KERNEL if kernel.arithmetic is None else _MMA).over(
        *(kernel.dtype, RANK, kernel.label),
        types=kernel.arguments,
        threads=kernel.threads,
        blocks_per_sm=kernel.blocks_per_sm,
    )


def variants() -> Iterator[Variant]:
    """Yield every kernel variant of this family."""
    yield from map(variant, KERNELS)
