"""Prebuilt kernels are those that plans of up to four axes name, and their names are unique."""

from __future__ import annotations

import re

from gpuconv.cuda.build import sources
from gpuconv.cuda.variants import all_variants
from gpuconv.cuda.weight_grad import tiles
from tests.kernels.gradients import LARGE_WEIGHTS


def test_kernels_are_told_apart_by_their_names() -> None:
    variants = all_variants()
    assert len({variant.name for variant in variants}) == len(set(variants)) == len(variants)


def test_a_multiprocessor_has_room_for_the_threads_of_its_blocks() -> None:
    """From compute capability 7.0 to 9.0, the limits are 64 warps and 32 blocks."""
    for variant in all_variants():
        assert variant.threads % 32 == 0, variant.name
        assert 1 <= variant.blocks_per_sm <= 32, variant.name
        assert variant.threads * variant.blocks_per_sm <= 2048, variant.name


def test_the_sources_declare_every_kernel_that_is_named() -> None:
    ones = {(variant.source, variant.function): variant for variant in all_variants()}
    assert len(ones) > 40
    for (_, function), variant in ones.items():
        text, _, _ = sources.source(variant).partition(f'#line 1 "{variant.name}"')
        assert re.search(rf"\b{function}\(", text), variant


def test_the_tiles_of_weights_gradients_are_those_of_the_problems() -> None:
    shapes = {tile.shape for _, _, tile in tiles.kernels()}
    assert shapes == {"_".join(one.kernel.split("_")[-2:]) for one in LARGE_WEIGHTS}
