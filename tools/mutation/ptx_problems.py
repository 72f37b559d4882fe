"""The problems on which `ptx` runs mutants: those of the kernel families, and further ones derived from them.

For each problem, the behaviour of the right kernels is recorded: their texts, and which instructions they execute.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import chain, islice, product
from typing import Any, NamedTuple
from unittest import mock

from emulated_cuda import control
from emulated_cuda.emulator import ptx
from emulated_cuda.emulator.counters import FIELDS
from gpuconv import GpuconvError
from gpuconv.cuda.build.variant import Variant
from gpuconv.cuda.plan.numbers import whole
from tests.emulator import EmulatorError
from tests.emulator.device import EmulatedCuda
from tests.kernels import fused, gradients, passes, registry
from tests.kernels.convolutions import CONVOLUTIONS
from tests.kernels.gradients import (
    AveragePoolGrad,
    BiasGrad,
    Complex,
    Copy,
    MaxPoolGrad,
    Plane,
    Unpool,
    WeightGrad,
)
from tests.kernels.specimen import Forward
from tests.oracle.strategies import Problem
from tools.mutation.ptx_draws import DRAWN, KINDS, alike, deeper, drawn

Trial = Callable[..., Any]  # called with an architecture and the emulator's options
MOST = 45  # most derived problems per mutant
STEPS = tuple(3 * 10**power for power in range(3, 9))  # instruction limits to try for a warp of a right kernel
MORE = 4  # a mutant may execute this multiple of the limit
CHAINED_ON = "sm_90a"
ORDERS: tuple[dict[str, Any], ...] = (  # orders of warps and of asynchronous copies
    {"seed": 5},
    {"seed": 6, "async_order": "random"},
    {"seed": 7, "late_async": False},
)


@cache
def trials(family: str) -> tuple[Trial, ...]:
    """Return the problems of a family, by its kernel source."""
    return registry.by_source()[family]


@cache
def chained(trial: Trial) -> Trial:
    """Return a problem with overlapping launches; its kernels are compiled for an architecture that has them."""

    def run(architecture: str | None, **options: Any) -> Any:
        with mock.patch.dict(os.environ, GPUCONV_CHAINED_LAUNCHES="1"):
            return trial(CHAINED_ON, **options)

    return run


# ---------------------------------------------------------------- the behaviour of right kernels


class Right(NamedTuple):
    """What the right kernels of a family do on a problem.

    Attributes
    ----------
    texts : their PTX by name
    ran : by text, the lines (from 0) of the executed instructions
    steps : the instruction limit for a mutant
    traffic : global-memory sectors and shared-memory wavefronts
    followers : names of kernels whose launches overlap the kernel before
    """

    texts: dict[str, str]
    ran: dict[str, frozenset[int]]
    steps: int
    traffic: tuple[int, ...] = ()
    followers: frozenset[str] = frozenset()

    def runs(self, text: str, line: int) -> bool:
        return line in self.ran.get(text, ())


@cache
def right(family: str, trial: Trial) -> Right:
    """Run a problem with the right kernels."""
    for steps in STEPS:
        try:
            return _launched(family, trial, steps)
        except EmulatorError as error:
            if "instruction limit" not in str(error):
                raise
    raise AssertionError(f"{trial} of {family} takes more than {STEPS[-1]} steps")


@cache
def tried(family: str, trial: Trial) -> Right:
    """Like `right`, for a derived problem; empty if planners have no such candidate for it.

    An assertion with a message is a wrong result, and is raised.
    """
    try:
        return right(family, trial)
    except AssertionError as error:
        if str(error):
            raise
    except (StopIteration, GpuconvError, ValueError, IndexError):
        pass
    return Right({}, {}, 0)


def _launched(family: str, trial: Trial, steps: int) -> Right:
    texts: dict[str, str] = {}
    launches: list[control.Launch] = []
    usual, usual_see = EmulatedCuda.ptx, EmulatedCuda.see

    def seen(emulated: EmulatedCuda, variant: Variant, architecture: str) -> bytes:
        text = usual(emulated, variant, architecture)
        if variant.source == family:
            texts[variant.name] = text.decode()
        return text

    def see(emulated: EmulatedCuda, launch: control.Launch) -> None:
        usual_see(emulated, launch)
        if launch.name in texts:
            launches.append(launch)

    with mock.patch.multiple(EmulatedCuda, ptx=seen, see=see):
        trial(None, max_steps=steps, counters=True, **ORDERS[0])
    ran: dict[str, set[int]] = {text: set() for text in texts.values()}
    for launch in launches:
        assert launch.counts is not None
        counts = zip(_lines(texts[launch.name]), launch.counts[:, 0].tolist(), strict=True)
        ran[texts[launch.name]].update(line for line, count in counts if count)
    lines_run = {text: frozenset(lines) for text, lines in ran.items()}
    followers = frozenset(launch.name for launch in launches if launch.chained)
    return Right(texts, lines_run, MORE * steps, traffic(launches), followers)


_MOVED = [FIELDS.index(field) for field in ("global_sectors", "shared_wavefronts")]


def traffic(launches: Iterable[control.Launch]) -> tuple[int, ...]:
    """Return the numbers of sectors and wavefronts of launches."""
    counted = [launch.counts[:, _MOVED].sum(axis=0) for launch in launches if launch.counts is not None]
    return tuple(int(sum(each)) for each in zip(*counted, strict=True))


@cache
def _lines(text: str) -> tuple[int, ...]:
    """Return the text line of each of a kernel's instructions; -1 for those that the emulator adds."""
    (kernel,) = ptx.Module(text).kernels.values()
    lines = [_packed(line.split("//")[0]) for line in text.split("\n")]
    found, at = [], 0
    for instruction in kernel.instructions:
        words = _packed(instruction.text)
        place = next((line for line in range(at, len(lines)) if lines[line] == words), -1) if words else -1
        found.append(place)
        at = max(at, place + 1)
    return tuple(found)


def _packed(statement: str) -> str:
    return re.sub(r"\s+", "", statement).rstrip(";")


# ---------------------------------------------------------------- further problems


def others(
    family: str, number: int, kernel: str, text: str, line: int, overlaps: bool = False
) -> Iterator[tuple[Trial, Right]]:
    """Yield further problems on which the right kernel executes an instruction, with its behaviour.

    First come the family's other problems and those derived from the mutant's own, at most `MOST`; then random
    variants. With ``overlaps`` all of them run with overlapping launches.
    """
    theirs = (
        trial for other, trial in enumerate(trials(family)) if other != number and _may_launch(family, other, kernel)
    )
    like, unlike = chain(theirs, made(family, number)), drawn(family, number)
    for trials_, most in ((like, MOST), (unlike, DRAWN)):
        ones = (chained(trial) if overlaps else trial for trial in trials_)
        those = ((one, tried(family, one)) for one in ones)
        yield from islice(((one, found) for one, found in those if found.runs(text, line)), most)


def _may_launch(family: str, number: int, kernel: str) -> bool:
    """Return whether a problem may launch a kernel, by the name of its main kernel."""
    return family in registry.OF_OTHERS or registry.by_source()[family][number].variant in kernel


@cache
def made(family: str, number: int) -> tuple[Trial, ...]:
    """Return problems derived from a family's problem; planners may pick other kernels for them."""
    mine, theirs = alike(family, number)
    if isinstance(mine, Forward):
        return tuple(_of_wgmma(mine, theirs) if mine.is_wgmma else _of_blocks(mine, theirs))
    if isinstance(mine, passes.Moved):
        return tuple(_of_passes(mine, theirs))
    return tuple(_of_gradients(mine, theirs))


# ---------------------------------------------------------------- derived from convolutions and pools


_TURNS = (0, 1, 2, 4)  # pairs of fused calls
# Additional channels and filters per group, rows and columns.
_GROWTHS = (
    *((0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 1, 2), (1, 2, 0, 3), (2, 3, 3, 5), (3, 5, 2, 7)),
    *((0, 16, 0, 8), (16, 0, 1, 4), (8, 8, 0, 0), (64, 0, 0, 0)),
)
# One less than a fragment; enough slices of K for every pipeline stage, with a partial last one.
_CHANNELS = (3, 5, 15, 20, 33, 201, 200)
_IMAGES = ((4, 8), (3, 4), (3, 2), (3, 3))  # extents whose channels are aligned to 16 bytes, and to less
# Outputs of disjoint windows, for stores of two outputs along W: the other numbers are odd, then even.
_PAIRS = (
    Problem("conv_transpose", (2, 36, 9, 18), (36, 50, 3, 2), (50,), {"strides": [3, 2], "pads": [2, 0, 1, 1]}),
    Problem(
        *("conv_transpose", (2, 20, 3, 5, 9), (20, 36, 2, 3, 2), None),
        {"strides": [2, 3, 2], "pads": [1, 0, 0, 0, 0, 0]},
    ),
)
_PAIRS_OF_SEVERAL_TAPS = (
    Problem("conv_transpose", (2, 36, 9, 18), (36, 10, 5, 4), (10,), {"strides": [3, 2], "pads": [2, 0, 1, 2]}),
    Problem(
        "conv_transpose", (1, 20, 3, 5, 9), (20, 7, 2, 3, 5), None, {"strides": [1, 3, 2], "pads": [0, 1, 2, 0, 0, 1]}
    ),
    Problem("conv_transpose", (1, 20, 5, 9), (20, 11, 3, 4), None, {"strides": [1, 2], "pads": [1, 0, 0, 0]}),
)
_FILTERS = (4, 6, 7, 9, 10, 11, 12)  # additional filters, so that the last tile ends at various rows


def _grown(problem: Problem, channels: int, filters: int, rows: int, columns: int) -> Problem:
    batch, all_channels, *extents = problem.x_shape
    extents[-1] += columns
    extents[0] += rows if len(extents) > 1 else 0
    if problem.w_shape is None:
        return replace(problem, x_shape=(batch, all_channels + filters, *extents))
    group, (first, second, *taps) = problem.attributes.get("group", 1), problem.w_shape
    if problem.operator == "conv":
        first, second = first + filters * group, second + channels
        b_shape = (first,)
    else:
        first, second = first + channels * group, second + filters
        b_shape = (second * group,)
    shapes = {"x_shape": (batch, all_channels + channels * group, *extents), "w_shape": (first, second, *taps)}
    return replace(problem, **shapes, b_shape=None if problem.b_shape is None else b_shape)  # type: ignore[arg-type]


def _in_vectors(problem: Problem) -> Problem:
    """Return the problem with channels that are whole 16-byte vectors in any dtype."""
    channels = whole(problem.x_shape[1], 16)
    return replace(problem, x_shape=(problem.x_shape[0], channels, *problem.x_shape[2:]))


def _padded(problem: Problem, more: int) -> Problem:
    """Return the problem with ``more`` added to every second pad and subtracted from the others."""
    pads = problem.attributes.get("pads", [0] * 2 * problem.rank)
    pads = [max(0, pad + (more if number % 2 else -more)) for number, pad in enumerate(pads)]
    return replace(problem, attributes={**problem.attributes, "pads": pads})


def _of_channels(problem: Problem, channels: int) -> Problem:
    """Return the problem with this many channels per group."""
    group, (first, second, *taps) = problem.attributes.get("group", 1), problem.w_shape or (0, 0)
    shape = (first, channels, *taps) if problem.operator == "conv" else (channels * group, second, *taps)
    return replace(problem, x_shape=(problem.x_shape[0], channels * group, *problem.x_shape[2:]), w_shape=shape)


def _of_extents(problem: Problem, rows: int, columns: int) -> Problem:
    """Return the problem with these numbers of rows and columns."""
    batch, channels, *extents = problem.x_shape
    return replace(problem, x_shape=(batch, channels, *[*extents[:-2], rows, columns][-len(extents) :]))


def _of_filters(problem: Problem, filters: int) -> Problem:
    """Return the problem with this many filters per group."""
    group, (first, second, *taps) = problem.attributes.get("group", 1), problem.w_shape or (0, 0)
    shape = (filters * group, second, *taps) if problem.operator == "conv" else (first, filters, *taps)
    return replace(problem, w_shape=shape, b_shape=(filters * group,))


def _deepest(problem: Problem, kernel: str) -> Problem:
    """Return the problem with as many axes as the kernel supports; with four axes, only one image."""
    axes = 4 if "_4d" in kernel else 3
    while problem.rank < axes:
        problem = deeper(problem)
    return replace(problem, x_shape=(1, *problem.x_shape[1:])) if axes > 3 else problem


def _of_groups(problem: Problem, groups: int, filters: int) -> Problem:
    """Return the problem with ``groups`` groups of one channel and ``filters`` filters each."""
    first, second = (groups * filters, 1) if problem.operator == "conv" else (groups, filters)
    return Problem(
        problem.operator,
        (problem.x_shape[0], groups, *problem.x_shape[2:]),
        (first, second, *(problem.w_shape or ())[2:]),
        None if problem.b_shape is None else (groups * filters,),
        {**problem.attributes, "group": groups},
    )


def _of_blocks(mine: Forward, theirs: Iterable[Any]) -> Iterator[Trial]:
    if mine.problem.w_shape is None:
        yield from _of_pools(mine, theirs)
        for one in (mine, *(replace(one, kernel=mine.kernel) for one in theirs)):
            yield partial(one, multiprocessors=1)
        return
    lies = tuple(dict.fromkeys((mine.out or "contiguous", "contiguous", "channels last")))
    yield from (fused.whole(replace(mine, out=out)) for out in lies)
    yield from (fused.zeros(replace(mine, out=out)) for out in lies)
    if mine.precision != "ieee":
        yield partial(fused.beyond_tf32(mine).check, mine.precision)
    spoilt = replace(mine, out="channels last", kinds=KINDS[1])  # NaN from padding is recomputed by other lanes
    yield from (spoilt, fused.whole(spoilt))
    if mine.problem.attributes.get("group", 1) == mine.problem.x_shape[1]:
        vectors = replace(mine, problem=_of_groups(mine.problem, 16, 1))
        yield from (fused.whole(vectors), fused.zeros(vectors))
    else:
        yield from _of_parts(mine)
    more = replace(mine, problem=_grown(mine.problem, 0, 1, 1, 5))
    yield from (fused.whole(more), fused.zeros(more))
    if mine in CONVOLUTIONS:
        yield from (fused.two_calls(mine, turn) for turn in _TURNS)
    yield from (partial(replace(one, kernel=mine.kernel), multiprocessors=1) for one in theirs)
    for packed, multiprocessors in ((True, None), (True, 3), (False, 1), (False, 7)):
        yield partial(replace(mine, packed=packed), multiprocessors=multiprocessors)
    yield from _plain(mine, theirs)


def _of_parts(mine: Forward) -> Iterator[Trial]:
    """Yield fused calls whose filters end within each part of a tile, with images that fill all columns of a tile."""
    further = (20, 50) if any(word in mine.kernel for word in ("_stem_", "_grouped_")) else (0, 0)
    for filters, out in ((56, "channels last"), (56, "strided"), (40, "channels last"), (24, "channels last")):
        problem = _grown(_of_filters(mine.problem, filters), 0, 0, *further)
        yield fused.whole(replace(mine, problem=problem, out=out))


def _plain(mine: Forward, theirs: Iterable[Any]) -> Iterator[Forward]:
    yield from (replace(mine, kinds=kinds) for kinds in KINDS)
    yield from (replace(mine, problem=_of_channels(mine.problem, channels), kinds=KINDS[0]) for channels in _CHANNELS)
    yield from (replace(mine, layout=lies) for lies in ("contiguous", "channels last", "off the vectors", "reversed"))
    if "depth_to_space" in mine.kernel or "transpose_matrix" in mine.kernel:
        yield from (replace(mine, problem=one, out=None) for one in _PAIRS)
    if "_rows_" in mine.kernel:
        yield replace(mine, layout="pixels off the vectors")
    if "phase_rows" in mine.kernel:
        yield from (replace(mine, problem=one, layout="contiguous", out=None) for one in _PAIRS_OF_SEVERAL_TAPS)
    if "_matrix_" in mine.kernel:  # it copies rows in units that depend on the images' alignment
        deep = _of_channels(mine.problem, _CHANNELS[-1])
        yield from (replace(mine, problem=_of_extents(deep, *extents), kinds=KINDS[2]) for extents in _IMAGES)
    deep = _deepest(mine.problem, mine.kernel)
    yield from (replace(mine, problem=deep, kinds=kinds) for kinds in (mine.kinds, *KINDS[:2]))
    for number, growth in enumerate(_GROWTHS):
        yield replace(mine, problem=_grown(mine.problem, *growth), kinds=KINDS[number % 3])
    if mine.problem.attributes.get("group", 1) == mine.problem.x_shape[1]:
        groups = [_of_groups(mine.problem, *one) for one in ((16, 1), (40, 1), (9, 1), (3, 4))]
        yield replace(mine, problem=_deepest(groups[0], mine.kernel))
        yield from (
            replace(mine, problem=one, out=out) for one in groups for out in (mine.out, "pixels off the vectors")
        )
        yield from (replace(mine, problem=groups[0], layout=lies) for lies in ("pixels off the vectors", "reversed"))
    yield from (replace(mine, problem=_padded(mine.problem, more)) for more in (-2, -1, 1, 2))
    yield from (replace(mine, problem=_grown(mine.problem, 0, more, 0, 0)) for more in _FILTERS)
    yield from (replace(one, kernel=mine.kernel) for one in theirs)
    yield from (replace(mine, out=out) for out in ("contiguous", "channels last", "strided", "pixels off the vectors"))


_POOL_VALUES = {"f": ("nonfinite", "ties", "lowest"), "i": ("any integer", "the ends")}
_POOL_LAYOUTS = ("contiguous", "channels last", "off the vectors", "pixels off the vectors")


def _beyond(problem: Problem) -> Problem:
    """Return the problem with windows before and after the first axis that have no valid element."""
    attributes, rank = dict(problem.attributes), problem.rank
    pads = list(attributes.get("pads", [0] * 2 * rank))
    pads[0] = pads[rank] = attributes["kernel_shape"][0]
    return replace(problem, attributes={**attributes, "pads": pads})


def _of_pools(mine: Forward, theirs: Iterable[Any]) -> Iterator[Forward]:
    for one in theirs:
        yield replace(one, kernel=mine.kernel, kinds=mine.kinds)
        if one.problem.x_shape[1] % 16:
            yield replace(one, kernel=mine.kernel, kinds=mine.kinds, problem=_in_vectors(one.problem))
    yield from (replace(mine, problem=_padded(mine.problem, more)) for more in (-2, -1, 1, 2))
    deep = _deepest(mine.problem, mine.kernel)
    yield replace(mine, problem=deep)
    if mine.problem.operator == "average_pool":
        yield from (replace(mine, problem=_beyond(one)) for one in (deep, mine.problem))
    for kind in _POOL_VALUES["i" if mine.dtype.name in ("int8", "uint8") else "f"]:
        yield replace(mine, kinds=(kind,))
    for lies in (*_POOL_LAYOUTS, "strided rows", "strided pixels", "strided"):
        yield replace(mine, out=lies)
    for lies, out in product(_POOL_LAYOUTS, (None, "off the vectors", "pixels off the vectors")):
        yield replace(mine, layout=lies, out=out)
    for number, growth in enumerate(_GROWTHS):
        out = (None, *_POOL_LAYOUTS)[number % 5]
        yield replace(mine, problem=_grown(mine.problem, *growth), out=out)


def _of_wgmma(mine: Forward, theirs: Iterable[Any]) -> Iterator[Trial]:
    lies = ("contiguous", "channels last", "strided")
    yield from (
        replace(mine, out=out, activation=act) for act, out in product((("leaky_relu", -2), ("clip", -1.5, 6)), lies)
    )
    for activation in (("leaky_relu", -2), None):
        yield replace(_in_chunks(mine), out="channels last", activation=activation)
    yield from (fused.zeros(replace(mine, out=out)) for out in lies)
    yield from (replace(mine, out=out) for out in lies)
    same = {"kernel": mine.kernel, "factors": mine.factors, "kinds": mine.kinds}
    yield from (replace(one, **same, activation=end) for one in theirs for end in (None, "relu"))
    batch = replace(mine, problem=replace(mine.problem, x_shape=(1, *mine.problem.x_shape[1:])))
    whole = mine.kernel.removesuffix("_split")
    for one, kernel, packed in product((batch, mine), (f"{whole}_split", whole), (True, False)):
        yield replace(one, kernel=kernel, multiprocessors=5, packed=packed)
    yield from (replace(mine, kinds=kinds) for kinds in KINDS)


def _in_chunks(mine: Forward) -> Forward:
    """Return the problem with a multiple of 16 filters per group, so that a warp has all or none of a vector."""
    problem = mine.problem
    group = problem.attributes.get("group", 1)
    filters = (problem.b_shape or (0,))[0] // group
    return replace(mine, problem=_of_filters(problem, whole(filters, 16)))


# ---------------------------------------------------------------- derived from passes and gradients

_MORE = (1, 2, 3, 5, 7)


def _of_passes(mine: passes.Moved, theirs: Iterable[Any]) -> Iterator[Trial]:
    yield from (replace(mine, shape=(*mine.shape[:-1], mine.shape[-1] + more)) for more in _MORE)
    yield from (
        replace(mine, shape=(mine.shape[0], mine.shape[1] + more * mine.group, *mine.shape[2:])) for more in _MORE
    )
    yield from (replace(mine, tickets=tickets) for tickets in (0, 3, 5000))
    for one in theirs:
        yield replace(one, kernel=mine.kernel, element=mine.element, factors=mine.factors, operator=mine.operator)


def _of_gradients(mine: Any, theirs: Iterable[Any]) -> Iterator[Trial]:
    further = _FURTHER.get(type(mine))
    return iter(()) if further is None else further(mine, theirs)


def _of_weights(mine: WeightGrad, theirs: Iterable[Any]) -> Iterator[Trial]:
    if mine in gradients.LARGE_WEIGHTS:
        yield from _of_tiles(mine, theirs)
        return
    problems = [_grown(mine.problem, *growth) for growth in _GROWTHS]
    problems += [_padded(mine.problem, more) for more in (-2, -1, 1, 2)]
    problems += [_deepest(mine.problem, mine.kernel)]
    problems += [one.problem for one in (*gradients.LARGE_WEIGHTS, *gradients.WEIGHTS)]
    for multiprocessors in (1, None, 3):
        yield replace(mine, multiprocessors=multiprocessors or mine.multiprocessors, both=True)
    yield from (replace(mine, problem=other, both=True) for other in problems)


def _of_tiles(mine: WeightGrad, theirs: Iterable[Any]) -> Iterator[Trial]:
    same = [
        *(_grown(mine.problem, *growth) for growth in _GROWTHS),
        *(_padded(mine.problem, more) for more in (-2, -1, 1, 2)),
        *([_deepest(mine.problem, mine.kernel)] if mine.problem.rank < 3 else []),
    ]
    pairs = [(mine.problem, lies) for lies in ("pixels off the vectors", "strided pixels", "off the vectors")]
    pairs += [*((one, mine.layout) for one in same), *((one.problem, one.layout) for one in theirs)]
    yield from (replace(mine, problem=other, layout=lies) for other, lies in pairs)


def _of_max_pools(mine: MaxPoolGrad, theirs: Iterable[Any]) -> Iterator[Trial]:
    if mine in gradients.GENERAL_POOLS:
        yield from _of_pool_gradients(mine)
        return
    for layout in ("off the vectors", "reversed", "channels last", "contiguous"):
        yield replace(mine, layout=layout)
    yield from (replace(one, kernel=mine.kernel) for one in theirs)


def _of_sums(mine: BiasGrad, _: Iterable[Any]) -> Iterator[Trial]:
    batch, *shape = mine.shape
    for lies in ("strided pixels", "strided rows", "reversed"):
        yield replace(mine, layout=lies)
    for more, part in product((1, 2, 3, 4, 5), (3, 5, 7)):
        yield replace(mine, shape=(batch * more, *shape[:-1], shape[-1] + part))


def _of_pool_gradients(mine: Any) -> Iterator[Trial]:
    deep = {"shape": (2, 2, 3, 4, 5, 7), "attributes": {**mine.attributes, **_POOLED_DEEP}}
    for lies, more in product(("contiguous", "channels last", "strided", "reversed"), (deep, {})):
        yield replace(mine, layout=lies, **more)


_POOLED_DEEP = {
    "kernel_shape": [2, 3, 2, 4], "strides": [2, 1, 2, 3], "dilations": [1, 2, 1, 2], "pads": [1, 1, 0, 3, 0, 2, 1, 1],
}  # fmt: skip
# Windows by form of walk: kernel, strides, pads.
_AVERAGED: dict[str, tuple[tuple[tuple[int, ...], ...], ...]] = {
    "1x1": (((3, 4, 2), (3, 5, 2), (1, 2, 1, 1, 3, 1)), ((2, 2, 3), (4, 2, 5), (1, 0, 2, 0, 1, 1))),
    "5xany": (((2, 8, 5), (1, 2, 2), (1, 5, 4, 1, 7, 3)), ((3, 4, 9), (3, 1, 2), (2, 3, 8, 1, 3, 7))),
    "13xany": (((2, 12, 3), (2, 1, 1), (1, 9, 2, 1, 8, 2)),),
}


def _of_strips(kernel: int, stride: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return windows for threads with several columns, by width and stride of the windows."""
    most = kernel - 1
    return (
        ((2, 4, kernel), (2, 3, stride), (1, 2, most, 1, 3, most)),
        ((3, 3, kernel), (1, 2, stride), (2, 1, 0, 1, 2, most // 2)),
    )


def _of_averages(mine: AveragePoolGrad, theirs: Iterable[Any]) -> Iterator[Trial]:
    """Yield windows of the same form, with equal numbers of counting taps everywhere, or not."""
    if mine in gradients.GENERAL_POOLS:
        yield from _of_pool_gradients(mine)
        return
    form = mine.kernel.rpartition("_")[2]
    known = [(one.shape, one.attributes) for one in theirs if one.kernel.endswith(f"_{form}")]
    for sizes in _AVERAGED.get(form) or _of_strips(*map(int, form.split("s"))):
        extents = (4, 14, 5) if form == "13xany" else (7, 8, 9)
        known.append(((2, 11, *extents), dict(zip(("kernel_shape", "strides", "pads"), sizes, strict=True))))
    for counted, lies, (shape, given) in product((0, 1), ("contiguous", "channels last"), known):
        yield replace(mine, shape=shape, layout=lies, attributes={**given, "count_include_pad": counted})


def _of_planes(mine: Plane, theirs: Iterable[Any]) -> Iterator[Trial]:
    """Yield global windows in one part and in several, with extents that threads divide evenly, or not."""
    batch, channels, *extents = mine.shape
    for lies, times in product((mine.layout, "contiguous", "strided rows", "channels last"), (1, 2, 3)):
        shape = (batch, channels, *[extent * times + times - 1 for extent in extents])
        for multiprocessors in (None, 1):
            yield replace(mine, shape=shape, layout=lies, multiprocessors=multiprocessors)
    yield from (replace(mine, shape=one.shape, multiprocessors=None) for one in theirs)


def _of_unpools(mine: Unpool, theirs: Iterable[Any]) -> Iterator[Trial]:
    for one in theirs:
        yield replace(mine, extents=one.extents)
        yield replace(mine, layout=one.layout)


def _of_copies(mine: Copy, _: Iterable[Any]) -> Iterator[Trial]:
    for lies, out in product(("contiguous", "channels last", "reversed", "strided"), repeat=2):
        yield replace(mine, layout=lies, out=out)


def _of_complex(mine: Complex, _: Iterable[Any]) -> Iterator[Trial]:
    yield replace(mine, extents=(60, 60) if mine.wide else (120, 110))


_FURTHER: dict[type, Callable[[Any, Iterable[Any]], Iterator[Trial]]] = {
    WeightGrad: _of_weights,
    BiasGrad: _of_sums,
    MaxPoolGrad: _of_max_pools,
    AveragePoolGrad: _of_averages,
    Plane: _of_planes,
    Unpool: _of_unpools,
    Copy: _of_copies,
    Complex: _of_complex,
}
