"""A problem as ``conv/gemm/grouped.cu`` makes it, groups cut into blocks, and the forms of the kernel.

Axes are those of the kernel: three, those with anything to slide along first, the outermost through all images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod

from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.gemm.fragments import FRAGMENT_BYTES, Arithmetic
from gpuconv.cuda.conv.problem import Problem
from gpuconv.rules.geometry import Ints

MOST_CHANNELS = 64  # of a block
_GAP = 16  # bytes between pixels of a band, and between the weights of taps
_TAP_BYTES = 8  # of an entry of the table
_TAPS_AT_ONCE = 9  # that a thread waits for together


@dataclass(frozen=True, slots=True)
class Form:
    """One kernel: the filters of a block, the columns of a warp, its warps, the blocks its registers leave room for."""

    block_m: int
    warp_n: int
    warps: int
    blocks_per_sm: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def columns(self) -> int:
        """Columns of a tile, at most."""
        return self.warps * self.warp_n

    def __str__(self) -> str:
        return f"{self.block_m}x{self.columns}"


_FORMS = (Form(16, 64, 8, 2), Form(32, 64, 8, 2))


def forms(arithmetic: Arithmetic) -> tuple[Form, ...]:
    """Return the kernels of one way to multiply: weights in parts leave less room in registers."""
    return _FORMS if arithmetic.parts == 1 else _FORMS[:1]


@dataclass(frozen=True)
class Work:
    """A problem with three axes in the kernel's order.

    Attributes
    ----------
    problem : Problem
    arithmetic : Arithmetic
    form : Form
    together : int
        Groups of a block.
    """

    problem: Problem
    arithmetic: Arithmetic
    form: Form
    together: int

    @cached_property
    def itemsize(self) -> int:
        """Bytes of an element of x, w and y."""
        return self.problem.itemsize

    @property
    def channels(self) -> int:
        """Channels of a block."""
        return self.together * self.problem.channels

    @cached_property
    def filters(self) -> int:
        """Filters of a block's groups."""
        return self.together * self.problem.filters

    @cached_property
    def depths(self) -> int:
        """Fragments along K of one tap."""
        return -(-self.channels * self.itemsize // 32)

    @cached_property
    def chunks(self) -> bool:
        """Whether 16 bytes of channels lie side by side wherever a pixel stands, if x itself begins on 16 bytes."""
        batch, channel, *spatial = self.problem.x_strides
        return channel == 1 and all(step * self.itemsize % 16 == 0 for step in (batch, *spatial, self.channels))

    @cached_property
    def m_tiles(self) -> int:
        """Blocks that share the groups."""
        return -(-self.filters // self.form.block_m)

    @cached_property
    def blocks_by_turn(self) -> int:
        """Blocks of a launch for each of those that share the tiles."""
        return self.m_tiles * prod(self.problem.phases) * (self.problem.group // self.together)

    @cached_property
    def pitch(self) -> int:
        """Bytes from one pixel of a band to the next."""
        return self.depths * 32 + _GAP

    @cached_property
    def reaches(self) -> Ints:
        """Inputs from the first to the last that a column meets, axis by axis, in the phase that has the most taps."""
        problem = self.problem
        if not problem.phases:
            return tuple((k - 1) * d for k, d in zip(problem.taps, problem.dilations, strict=True))
        axes = zip(problem.taps, problem.strides, problem.dilations, strict=True)
        return tuple((-(-k // (s // gcd(s, d))) - 1) * (d // gcd(s, d)) for k, s, d in axes)

    @cached_property
    def image_inputs(self) -> int:
        """Inputs of one image along the outermost axis, with the padding that they meet."""
        return (self.problem.columns[0] - 1) * self.problem.column_strides[0] + self.reaches[0] + 1

    @cached_property
    def weight_bytes(self) -> int:
        """Of the fragments, and of the table of taps."""
        taps = prod(self.problem.taps)
        fragments = self.depths * self.form.block_m // 16 * FRAGMENT_BYTES * self.arithmetic.parts + _GAP
        return -(-taps * _TAP_BYTES // 16) * 16 + taps * fragments

    @cached_property
    def taps_of_phase(self) -> float:
        """Taps of a phase, on the average."""
        return prod(self.problem.taps) / prod(self.problem.phases)

    @cached_property
    def products(self) -> int:
        """Multiplications of a step of the main loop."""
        return self.form.block_m * self.form.warp_n * (32 // self.itemsize) * self.arithmetic.products

    @cached_property
    def weight_waits(self) -> int:
        """Times that a thread waits for weights."""
        pairs = min(self.form.block_m, self.filters) * self.problem.channels
        return -(-pairs // (2 * self.form.threads)) * -(-prod(self.problem.taps) // _TAPS_AT_ONCE)

    @cached_property
    def written_in_chunks(self) -> bool:
        """Whether 16 bytes of channels lie side by side wherever a pixel of y stands, if y begins on 16 bytes."""
        problem = self.problem
        batch, channel, *spatial = problem.y_strides
        steps = [batch, *(step for step, n in zip(spatial, problem.y_shape[2:], strict=True) if n > 1)]
        return channel == 1 and self.filters % 16 == 0 and all(step * self.itemsize % 16 == 0 for step in steps)

    @cached_property
    def written_in_pairs(self) -> tuple[bool, ...]:
        """Whether pairs of columns along each axis lie side by side in y, of tiles with an even number of them."""
        problem = self.problem
        batch, channel, *spatial = problem.y_strides

        def paired(axis: int) -> bool:
            others = (problem.columns[axis], channel, batch, *spatial[:axis], *spatial[axis + 1 :])
            return spatial[axis] == 1 and prod(problem.strides) == 1 and not any(number % 2 for number in others)

        return tuple(map(paired, range(len(spatial))))

    @property
    def fragments(self) -> float:
        """Fragments of weights for each tap of a group."""
        return self.depths * self.m_tiles * self.form.block_m / 16 / self.together


def works(problem: Problem, arithmetic: Arithmetic) -> Iterator[Work]:
    """Yield for each form the problem with as many groups to a block as leave the fewest fragments."""
    turned = _turned(correlation.in_three_axes(problem))
    shares = [
        n for n in range(1, problem.group + 1) if problem.group % n == 0 and n * problem.channels <= MOST_CHANNELS
    ]
    for form in forms(arithmetic):
        found = (Work(turned, arithmetic, form, share) for share in shares)
        best = min(found, key=lambda work: (work.fragments, -work.together), default=None)
        if best is not None:
            yield best


def _turned(problem: Problem) -> Problem:
    """Return the problem with axes of a single column and tap behind the others."""
    single = [q == 1 and k == 1 for q, k in zip(problem.columns, problem.taps, strict=True)]
    order = sorted(range(problem.rank), key=lambda axis: single[axis])

    def turned(values: Ints, before: int = 0) -> Ints:
        axes = values[before:]
        return (*values[:before], *(axes[axis] for axis in order)) if axes else values

    return replace(
        problem,
        taps=turned(problem.taps),
        x_shape=turned(problem.x_shape, 2),
        y_shape=turned(problem.y_shape, 2),
        x_strides=turned(problem.x_strides, 2),
        y_strides=turned(problem.y_strides, 2),
        w_strides=turned(problem.w_strides, 3),
        columns=turned(problem.columns),
        column_strides=turned(problem.column_strides),
        dilations=turned(problem.dilations),
        pads=turned(problem.pads),
        phases=turned(problem.phases),
        strides=turned(problem.strides),
    )
