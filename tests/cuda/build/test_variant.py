"""Variants of kernels: their names, and the arguments of their templates."""

from __future__ import annotations

from gpuconv.cuda.build.variant import Kernel, Variant, index_name, types

COPY = Kernel("passes/copy.cu", "copy", "CopyParams<{index}, {rank}>")
PLAIN = Kernel("plain.cu", "plain", "Plain", 128, 2, name="stem", architectures=("sm_90a",), least_registers=40)


def test_the_types_come_first_then_the_index_and_the_rank_then_sizes_and_flags() -> None:
    assert COPY.over("16bit", 4, types=("short",), sizes=(8, True, False, "Slices"), wide=True) == Variant(
        name="copy_16bit_4d_wide",
        source="passes/copy.cu",
        function="copy",
        arguments=("short", "long long", "4", "8", "true", "false", "Slices"),
        parameter="CopyParams<long long, 4>",
        threads=256,
        blocks_per_sm=4,
    )


def test_a_kernel_that_is_no_template_on_the_index_gets_none() -> None:
    assert PLAIN.over("", 1, "form", "") == Variant(
        "stem_1d_form", "plain.cu", "plain", (), "Plain", 128, 2, ("sm_90a",), 40
    )
    of_rank = Kernel("plain.cu", "plain", "Plain<{rank}>").over("float32", 3, sizes=(7,))
    assert (of_rank.arguments, of_rank.parameter) == (("3", "7"), "Plain<3>")


def test_a_variant_may_have_threads_and_blocks_of_its_own() -> None:
    one = PLAIN.over("float32", 2, threads=64, blocks_per_sm=5)
    assert (one.name, one.threads, one.blocks_per_sm) == ("stem_float32_2d", 64, 5)


def test_types_by_their_names_in_cuda() -> None:
    assert types("float16") == ("__half", "float")
    assert types("float64") == ("double", "double")
    assert (index_name(False), index_name(True)) == ("int", "long long")
