"""Mutation testing of compiled kernels: what is changed, drawn and listed, and how mutants of small kernels fail."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from random import Random

import numpy as np
import pytest

from gpuconv import ArgumentError, DeviceError
from gpuconv.cuda.build import kernel_files
from tests.emulator import Array, EmulatorError, module
from tests.kernels import convolutions, pools
from tests.oracle.strategies import Problem
from tools.mutation import ptx, ptx_draws, ptx_problems
from tools.mutation.ptx_changes import FOLLOWS, changes, mutants
from tools.mutation.ptx_equivalent import EQUIVALENT, is_equivalent

# Each of 64 threads writes its number, and then the first `count` of them the number of the thread across.
SWAP = """
.version 9.0
.target sm_80
.address_size 64
.visible .entry swap(.param .u64 to, .param .u32 count)
.maxntid 64
{
.reg .pred %p<2>;
.reg .b32 %r<9>;
.reg .b64 %rd<4>;
.shared .align 4 .b8 row[256];
.loc 1 10 5
mov.u32 %r1, %tid.x;
mov.u32 %r2, row;
mad.lo.s32 %r3, %r1, 4, %r2;
.loc 1 20 5, function_name $L__info_string0, inlined_at 2 70 5
st.shared.u32 [%r3], %r1;
bar.sync 0;
.loc 2 30 5
ld.param.u32 %r4, [count];
setp.ge.s32 %p1, %r1, %r4;
@%p1 bra DONE;
sub.s32 %r5, 63, %r1;
mad.lo.s32 %r6, %r5, 4, %r2;
ld.shared.u32 %r7, [%r6];
ld.param.u64 %rd1, [to];
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
st.global.u32 [%rd3], %r7;
DONE:
ret;
}
.file 1 "/somewhere/kernels_cu/base/ptx.cuh"
.file 2 "/somewhere/kernels_cu/tiny.cu"
"""
COUNT = 40


def swap(text: str) -> None:
    written, expected = np.zeros(COUNT, np.uint32), np.arange(63, 63 - COUNT, -1)
    module(text)["swap"](1, 64, [Array(written, "to"), COUNT], max_steps=5000)
    np.testing.assert_array_equal(written, expected)


@pytest.mark.emulator
def test_mutants_of_a_small_kernel_are_noticed() -> None:
    assert ptx.outcome(partial(swap, SWAP)) is None
    fates = {one.change.words: ptx.outcome(partial(swap, one.text(SWAP))) for one in mutants("swap", SWAP)}
    assert len(fates) > 8
    assert None not in fates.values()
    assert fates["bar.sync removed"] == "report: shared memory race"
    assert fates["setp.ge.s32 -> setp.gt.s32"] == "report: global memory out of bounds"
    assert fates["bra: predicate removed"] == "wrong result"


def test_mutants_of_a_small_kernel() -> None:
    found = mutants("swap", SWAP)
    kinds = Counter(one.change.kind for one in found)
    assert kinds == {"offset": 6, "parameter": 2, "predicate": 2, "barrier": 1, "comparison": 1}
    texts = [one.text(SWAP) for one in found]
    assert len({SWAP, *texts}) == len(found) + 1
    for text in texts:
        assert len(set(text.split("\n")) ^ set(SWAP.split("\n"))) <= 2
    (barrier,) = [one for one in found if one.change.kind == "barrier"]
    assert barrier.source == "tiny.cu:70", "of what is in the wrappers of PTX the caller's line says more"
    assert {one.source for one in found if one.change.kind == "comparison"} == {"tiny.cu:30"}


def test_the_number_of_a_barrier_matters_where_there_are_others() -> None:
    named = SWAP.replace("bar.sync 0;", "bar.sync 0;\nbar.sync \t1, 64;")
    words = [one.change.words for one in mutants("swap", named) if one.change.kind == "barrier"]
    assert words == [
        *("bar.sync removed", "bar.sync: number +1"),
        *("bar.sync removed", "bar.sync: number +1", "bar.sync: threads +32"),
    ]


def test_a_line_that_the_compiler_names_0_is_the_following_one() -> None:
    (before,) = [one.source for one in mutants("swap", SWAP) if one.change.kind == "comparison"]
    moved = SWAP.replace(".loc 2 30 5", ".loc 2 0 5").replace("@%p1 bra", ".loc 2 30 9\n@%p1 bra")
    (after,) = [one.source for one in mutants("swap", moved) if one.change.kind == "comparison"]
    assert before == after == "tiny.cu:30"


DIVISION = """
or.b64 %rd3, %rd1, %rd2;
and.b64 %rd4, %rd3, -4294967296;
setp.eq.s64 %p2, %rd4, 0;
@%p2 bra SHORT;
div.s64 %rd5, %rd1, %rd2;
bra.uni BOTH;
"""


def test_how_64_bit_numbers_are_divided_is_left_alone() -> None:
    assert not mutants("divide", DIVISION)
    assert not mutants("divide", DIVISION.replace("@%p2", ".loc 4 28 9\nmul.lo.s64 %rd6, %rd1, %rd2;\n@%p2"))
    assert len(mutants("divide", DIVISION.replace("-4294967296", "-8"))) == 3
    assert len(mutants("divide", DIVISION.replace("@%p2", "@%p1"))) == 2


def test_groups_matter_where_there_are_copies() -> None:
    waits = SWAP.replace("bar.sync 0;", "cp.async.commit_group;\ncp.async.wait_group 0;")
    copies = waits.replace(
        "cp.async.commit_group;", "cp.async.ca.shared.global [%r3], [%rd1], 4;\ncp.async.commit_group;"
    )
    for text, expected in ((waits, {"group": 0, "wait": 0}), (copies, {"group": 1, "wait": 2})):
        kinds = Counter(one.change.kind for one in mutants("swap", text))
        assert {kind: kinds[kind] for kind in expected} == expected


def test_lines_of_instructions() -> None:
    lines = SWAP.split("\n")
    *places, last = ptx_problems._lines(SWAP)
    assert [lines[at] for at in places] == [line for line in lines if re.match(r"[a-z@].*;", line)]
    assert last == -1, "the emulator adds one"


def test_problems_that_are_made_of_a_convolution_differ() -> None:
    (one,) = convolutions.POINTWISE[:1]
    deep, padded, grouped = (
        ptx_draws.deeper(one.problem),
        ptx_problems._padded(one.problem, 1),
        ptx_problems._of_groups(one.problem, 4, 2),
    )
    assert (deep.x_shape, deep.w_shape, deep.attributes["pads"]) == (
        *((3, 35, 3, 13, 11), (300, 35, 1, 1, 1)),
        [1, 0, 0, 1, 0, 0],
    )
    assert padded.attributes["pads"] == [0, 1, 0, 1]
    assert (grouped.x_shape, grouped.w_shape, grouped.b_shape) == ((3, 4, 13, 11), (8, 1, 1, 1), (8,))


def test_drawn_problems_have_results_and_are_always_the_same() -> None:
    for one in (convolutions.CONVS[0], convolutions.DISJOINT[1], pools.AVERAGES[0]):
        problems = [[ptx_draws._varied(one.problem, Random(seed)) for seed in range(40)] for _ in range(2)]
        assert problems[0] == problems[1]
        assert len({str(problem) for problem in problems[0]}) > 30
        assert all(0 < ptx_draws._products(problem) <= ptx_draws._MOST_PRODUCTS for problem in problems[0])
        assert len({problem.rank for problem in problems[0]}) > 1


def test_flattened_problems_keep_their_other_axes() -> None:
    problem = Problem(
        "conv", (2, 3, 5, 6, 7), (4, 3, 1, 2, 3), None, {"pads": [1, 2, 3, 4, 5, 6], "strides": [1, 2, 3]}
    )
    flat = ptx_draws._shallow(problem)
    assert (flat.x_shape, flat.w_shape) == ((2, 3, 6, 7), (4, 3, 2, 3))
    assert flat.attributes == {"pads": [2, 3, 5, 6], "strides": [2, 3]}


def test_another_axis_keeps_what_a_kernel_needs() -> None:
    disjoint, wide, pool = convolutions.DISJOINT[1], convolutions.CONVS[5], pools.CHANNEL_POOLS[0]
    deep = ptx_problems._deepest(disjoint.problem, disjoint.kernel)
    assert tuple(deep.attributes["strides"]) == (deep.w_shape or ())[2:]
    assert deep.rank == 3
    assert ptx_problems._deepest(wide.problem, wide.kernel).rank == 4
    deep = ptx_problems._deepest(pool.problem, pool.kernel)
    assert deep.rank == 3
    pads, kernel = deep.attributes["pads"], deep.attributes["kernel_shape"]
    assert all(pad < extent for pad, extent in zip(pads, [*kernel, *kernel], strict=True)), "no window misses x"


REGISTER = "\t{ .reg .b32 other;"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("bar.warp.sync \t-1;", [("warp barrier", "")]),
        ("membar.gl;", [("fence", "")]),
        ("fence.proxy.async.shared::cta;", [("fence", "")]),
        ("@!%p2 bra $L__BB0_1;", [("predicate", "@%p2 bra $L__BB0_1;"), ("predicate", " bra $L__BB0_1;")]),
        ("setp.ltu.f32 \t%p1, %f1, %f2;", [("comparison", "setp.leu.f32 \t%p1, %f1, %f2;")]),
        ("setp.ne.s32 \t%p1, %r1, 0;", [("comparison", "setp.eq.s32 \t%p1, %r1, 0;")]),
        (
            "ld.global.v2.f16 \t{%rs1, %rs2}, [%rd1+8];",
            [("offset", f"ld.global.v2.f16 \t{{%rs1, %rs2}}, [%rd1+{offset}];") for offset in (12, 4)],
        ),
        ("ld.param.u64 \t%rd1, [p];", [("parameter", "ld.param.u64 \t%rd1, [p+8];")]),
        (
            "cp.async.cg.shared.global [%r1], [%rd2], 16, %r3;",
            [
                ("offset", "cp.async.cg.shared.global [%r1+16], [%rd2], 16, %r3;"),
                ("offset", "cp.async.cg.shared.global [%r1+-16], [%rd2], 16, %r3;"),
                ("offset", "cp.async.cg.shared.global [%r1], [%rd2+16], 16, %r3;"),
                ("offset", "cp.async.cg.shared.global [%r1], [%rd2+-16], 16, %r3;"),
                ("predicate", "\tcp.async.cg.shared.global [%r1], [%rd2], 16;"),
            ],
        ),
        ("cp.async.wait_group 1;", [("wait", ""), ("wait", "\tcp.async.wait_group 2;")]),
        ("wgmma.wait_group.sync.aligned 0;", [("wait", ""), ("wait", "\twgmma.wait_group.sync.aligned 1;")]),
        ("cp.async.commit_group;", [("group", "")]),
        ("wgmma.fence.sync.aligned;", [("group", "")]),
        ("griddepcontrol.wait;", [("launch wait", "")]),
        (
            "mbarrier.init.shared::cta.b64 [%r1], %r2;",
            [
                ("arrival", f"{REGISTER} add.s32 other, %r2, {step}; mbarrier.init.shared::cta.b64 [%r1], other; }}")
                for step in (1, -1)
            ],
        ),
        (
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%r1], %r2;",
            [
                ("wait", "\tsetp.eq.u32 done, 0, 0;"),
                ("wait", f"{REGISTER} xor.b32 other, %r2, 1; "
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%r1], other; }"),
            ],
        ),
        ("add.s32 \t%r1, %r2, 1;", []),
        ("// bar.sync 0;", []),
        ("$L__BB0_1:", []),
    ],
)  # fmt: skip
def test_what_is_changed(statement: str, expected: list[tuple[str, str]]) -> None:
    assert [(change.kind, change.text) for change in changes(statement)] == expected


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (EmulatorError("swap: deadlock: 3 warps"), "report: deadlock"),
        (EmulatorError("swap: 2 of 9 elements of y, of shape (9,), were never written"), "report: never written"),
        (AssertionError("a value"), "wrong result"),
        (pytest.fail.Exception("DID NOT RAISE"), "wrong result"),
        (ArgumentError("indices hold -1"), "error: ArgumentError"),
        (DeviceError("the emulator does not know this PTX: ld"), ptx.NO_PROGRAM),
    ],
)
def test_how_a_mutant_fails(error: BaseException, fate: str) -> None:
    def fail() -> None:
        raise error

    assert ptx.outcome(fail) == fate


def test_the_list_of_equivalent_mutants_names_lines_of_the_kernels() -> None:
    listed = [name for group in EQUIVALENT.values() for name in group]
    assert len(set(listed)) == len(listed)
    for name in listed:
        path, _, rest = name.partition(": ")
        text = kernel_files.folder().joinpath(*path.split("/")).read_text(encoding="utf-8")
        lines = {" ".join(line.split("//")[0].split()) for line in text.split("\n")}
        assert rest.rpartition("  [")[0] in lines, name


@pytest.mark.emulator
def test_more_traffic_than_the_kernel_has_is_noticed() -> None:
    """Vectors of channels are written element by element: the result is the same."""
    family, number = "pool/channels.cu", 2
    right = ptx_problems.right(family, ptx_problems.trials(family)[number])
    kernel = "max_pool_float32_3d_channels"
    text = right.texts[kernel]
    chosen = [
        one
        for one in mutants(kernel, text)
        if one.change.kind == "comparison" and "% (COUNT * sizeof(T)) == 0" in one.source_words
        if right.runs(text, one.line)
    ]
    assert chosen
    fates = {ptx.verdict(ptx.Drawn(family, number, one, text), with_others=False) for one in chosen}
    assert fates == {ptx.TRAFFIC}


# ---------------------------------------------------------------- launches that overlap, and each line once


@pytest.mark.emulator
def test_a_kernel_that_does_not_wait_for_the_one_before_is_noticed() -> None:
    """In the product after a launch that packs its weights; the packing comes first, so its own wait has no effect."""
    family, number = "conv/gemm/conv.cu", 0
    trial = ptx.problem(family, number, overlaps=True)
    right = ptx_problems.right(family, trial)
    (kernel,) = right.texts
    assert "griddepcontrol.wait" in right.texts[kernel]
    (wait,) = [one for one in ptx.candidates(family, trial, kernel) if one.change.kind == FOLLOWS]
    fate = ptx.verdict(ptx.Drawn(family, number, wait, right.texts[kernel], True), with_others=False)
    assert fate.startswith("report: ")


@pytest.mark.emulator
def test_the_first_launch_of_a_call_need_not_wait() -> None:
    family = "conv/gemm/pack_weights.cu"
    trial = ptx.problem(family, 0, overlaps=True)
    for kernel, text in ptx_problems.right(family, trial).texts.items():
        assert "griddepcontrol.wait" in text
        assert FOLLOWS not in {one.change.kind for one in ptx.candidates(family, trial, kernel)}


@pytest.mark.emulator
def test_each_line_is_taken_once() -> None:
    found = list(ptx.each(1, ["passes/add_up.cu"], ["barrier", "comparison", FOLLOWS]))
    sites = [(one.mutant.source, one.mutant.change.words) for one in found]
    assert len(set(sites)) == len(sites) > 3
    assert {one.mutant.change.kind for one in found} == {"comparison", FOLLOWS}
    assert all(one.overlaps == (one.mutant.change.kind == FOLLOWS) for one in found)


# ---------------------------------------------------------------- rules of what is as right

GROUPS = """
.loc 1 6 9
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 1;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 1;
@%p1 bra $L__AGAIN;
wgmma.commit_group.sync.aligned;
"""


def test_products_may_join_the_next_group_of_the_same_turn() -> None:
    path = kernel_files.folder() / "conv" / "wgmma" / "pixels.cuh"
    number = 1 + [line.strip() for line in path.read_text(encoding="utf-8").split("\n")].index("products_commit();")
    text = GROUPS.replace(".loc 1 6", f".loc 1 {number}") + '.file 1 "/somewhere/kernels_cu/conv/wgmma/pixels.cuh"\n'
    commits = [one for one in mutants("multiply", text) if one.change.kind == "group"]
    assert [is_equivalent(one, text) for one in commits] == [True, False, False]
