"""Tiles of all GEMM families: whole fragments or threads; and the reason for a kernel's loads of inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import interleaved, matrix, mma, mma_tile, pointwise
from gpuconv.cuda.conv.gemm.mma_tile import MmaForm
from gpuconv.cuda.conv.gemm.runs import Runs as Pieces
from gpuconv.cuda.weight_grad import tiles as weight_grad_tiles
from tests.harness.plans import problem


def test_tiles_on_tensor_cores_are_whole_fragments_of_whole_warps() -> None:
    tiles: list[Any] = [tile for group in mma_tile.TILES.values() for tile in group]
    tiles += [tile for ways in matrix.TILES.values() for group in ways.values() for tile in group]
    tiles += [tile for group in weight_grad_tiles.TILES.values() for tile in group]
    assert len(tiles) > 30
    for tile in tiles:
        assert (tile.block_m % tile.warp_m, tile.block_n % tile.warp_n) == (0, 0), tile
        assert (tile.warp_m % 16, tile.warp_n % 8) == (0, 0), tile  # mma.sync computes 16 x 8 sums
        assert tile.warp_m * tile.warp_n // 32 <= 128, tile  # sums of a thread, of its 255 registers
        pipelined: Any = getattr(tile, "forms", (tile,))
        assert min(one.stages for one in pipelined) >= 2, tile  # one is loaded while another is multiplied


def test_tiles_of_ffma_are_whole_threads_of_whole_warps() -> None:
    found = [tile for group in gemm_base.TILES.values() for tile in group]
    found += [tile for ways in pointwise.TILES.values() for group in ways.values() for tile in group]
    found += [tile for group in interleaved._TILES.values() for tile in group]
    assert len(found) > 15
    for tile in found:
        assert (tile.block_m % tile.thread_m, tile.block_n % tile.thread_n) == (0, 0), tile
        assert (tile.threads % 32, tile.block_k % 8) == (0, 0), tile
        assert tile.thread_m * tile.thread_n <= 64, tile  # sums of a thread, of its 255 registers


def test_slices_have_one_tap_each_where_they_divide_the_channels() -> None:
    taken = [channels for channels in range(50) if gemm_base.MIDDLE.form_of(channels)]
    assert taken == [16, 32, 48]  # without channels there is no slice
    assert not replace(gemm_base.MIDDLE, uniform=False).form_of(16)


def test_why_a_kernel_on_tensor_cores_reads_as_it_does() -> None:
    one = problem("conv", (3, 5, 5, 6, 12), (7, 5, 2, 3, 4))
    seen, pieces = Pieces(one, one), Pieces(replace(one, channels=4, taps=(5, 3, 2)), one)
    assert mma._reason(seen, MmaForm("rowwise", 32, 4, 1.0)) == (
        "taps found row by row: 5 channels per group, slices of 32"
    )
    assert mma._reason(seen, MmaForm("chunks", 64, 3, 1.0)) == (
        "a tap for every 16 bytes of K: 5 channels per group, slices of 64"
    )
    assert mma._reason(pieces, MmaForm("halves", 64, 3, 1.0)) == (
        "a tap for every 8 bytes of K: runs of 8 elements of x for the taps along W, slices of 64"
    )
    assert mma._reason(seen, MmaForm("scalar", 32, 4, 1.0)) == (
        "one tap per slice of K: 5 channels of a group, filled up to 32, of which 16 are multiplied; "
        "one element of x a copy"
    )
    assert mma._reason(Pieces(replace(one, channels=50), one), MmaForm("vector", 64, 3, 1.0)).endswith(
        "50 channels of a group, filled up to 64; 16 bytes of x a copy"
    )
