"""How tests run the CUDA backend: device, limits, index width and choice of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from gpuconv.cuda.build import params
from gpuconv.cuda.call import device
from gpuconv.cuda.plan import offers
from gpuconv.cuda.plan.offers import Candidate
from gpuconv.cuda.pool.grad import base, scatter
from tests.emulator import emulated_cuda
from tests.emulator.compile import ARCHITECTURES
from tests.emulator.moving import moved_to_device
from tests.harness import cuda_device

_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8")


def architecture(dtype: Any, rank: int) -> str:
    """Return an architecture that depends on dtype and rank, so that planners see the limits of all of them."""
    return ARCHITECTURES[(_DTYPES.index(np.dtype(dtype).name) + rank) % len(ARCHITECTURES)]


@contextmanager
def indices(wide: bool) -> Iterator[None]:
    """Use 64-bit indices even for small arrays, if ``wide``."""
    before = params.INDEX_LIMIT
    params.INDEX_LIMIT = 0 if wide else before
    try:
        yield
    finally:
        params.INDEX_LIMIT = before


@contextmanager
def long_walks(wanted: bool) -> Iterator[None]:
    """Let threads of pool-gradient kernels walk as far as possible, also on small arrays."""
    most = slice(1 if wanted else None)  # lengths are sorted, the longest first
    of_base, of_scatter = base._WALKS[most], scatter._WALKS[most]
    with mock.patch.object(base, "_WALKS", of_base), mock.patch.object(scatter, "_WALKS", of_scatter):
        yield


@contextmanager
def boxes(columns: int, slices: int, walk: int) -> Iterator[None]:
    """Give threads of the scatter kernels boxes of this size, and walks over ``walk`` rows of windows."""
    with mock.patch.multiple(scatter, _COLUMNS=(columns,), _SLICES=(slices,), _WALKS=(walk,)):
        yield


@contextmanager
def preferred(text: str) -> Iterator[None]:
    """Make planners pick the candidate with this name, or the fastest whose name contains ``text``, if there is one."""

    def pick(candidates: Sequence[Candidate]) -> Candidate:
        exact = [one for one in candidates if one.name == text]
        found = exact or [one for one in candidates if text in one.name] or candidates
        return min(found, key=lambda one: one.seconds)

    with offers.picking(pick):
        yield


def every_candidate(names: list[str]) -> Iterator[AbstractContextManager[None]]:
    """Yield the contexts of :func:`offers.every_candidate`, and store the names of all candidates in ``names``."""
    for turn in offers.every_candidate():
        with turn:
            of_turn = offers.picked()
        assert of_turn is not None

        def pick(candidates: Sequence[Candidate], of_turn: offers.Pick = of_turn) -> Candidate:
            names[:] = [one.name for one in candidates]
            return of_turn(candidates)

        yield offers.picking(pick)


@contextmanager
def some_candidate(number: int) -> Iterator[None]:
    """Make planners pick candidate number ``number``, modulo the number of candidates."""
    with offers.picking(lambda candidates: candidates[number % len(candidates)]):
        yield


class _Unseen:
    """The record of a real device, which does not observe launches."""

    def __init__(self) -> None:
        self.launches: list[Any] = []

    def findings_raised(self) -> AbstractContextManager[None]:
        return nullcontext()


@contextmanager
def any_cuda(**options: Any) -> Iterator[Any]:
    """Run gpuconv's operators on NumPy arrays on a real device, or by `emulated_cuda` if there is none.

    The options are those of `emulated_cuda`; on a real device they are ignored, and no launches are recorded.
    """
    if cuda_device.hardware():
        unseen = _Unseen()
        with mock.patch.object(device, "prepared", {}), moved_to_device(unseen):
            yield unseen
    else:
        with emulated_cuda(**options) as emulated:
            yield emulated


@contextmanager
def varied_cuda(dtype: Any, rank: int, seed: int) -> Iterator[Any]:
    """Like `any_cuda`, with index width, kernel, schedule and completion time of async copies chosen by the seed.

    The number of multiprocessors is chosen, too: with few of them, split tiles follow whole ones.
    """
    random = Random(seed)
    with (
        indices(wide=random.random() < 0.3),
        long_walks(seed % 2 == 0),
        some_candidate(random.randrange(2520)),
        any_cuda(
            limits_of=architecture(dtype, rank),
            seed=seed,
            late_async=random.random() < 0.7,
            multiprocessors=random.choice((None, None, 2, 3)),
        ) as emulated,
    ):
        yield emulated
