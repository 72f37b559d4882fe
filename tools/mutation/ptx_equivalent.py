"""PTX mutants that are as right as the kernels, by reason; `ptx` need not notice them.

They are listed by name, or recognised by a rule about the code around the changed instruction.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpuconv.cuda.build import kernel_files
from tools.mutation.ptx_changes import Mutant, _source_line

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "The remaining groups contain no copies.": (
        "conv/gemm/implicit_gemm.cuh: copy_async_wait<0>();  [cp.async.wait_group removed]",
        "conv/gemm/implicit_gemm.cuh: copy_async_wait<0>();  [cp.async.wait_group 0 -> 1]",
    ),
    "One more vector of the same run is copied, to memory that is never read.": (
        "passes/channels_last.cu: if (vector * kVector - shift < pixels) copy_async<16>(target, source - shift, 16);  [setp.ge.s32 -> setp.gt.s32]",  # noqa: E501
    ),
    "The loop has at least one iteration, so the compiler's guard never skips it.": (
        "conv/wgmma/ring.cuh: for (int i = 0; i < count(); ++i) {  [setp.lt.s32 -> setp.le.s32]",
        "pool/channels.cu: for (int slice = walk.slices.first; slice < walk.slices.end; ++slice) {  [setp.ge.s32 -> setp.gt.s32]",  # noqa: E501
        "pool/channels.cu: for (int row = walk.rows.first; row < walk.rows.end; row += ROWS) {  [setp.ge.s32 -> setp.gt.s32]",  # noqa: E501
        "pool/channels.cu: for (int q = walk.column; q < walk.end; ++q) {  [setp.ge.s32 -> setp.gt.s32]",
    ),
    "One more part of a row, or row of a walk, without windows; nothing of it is written.": (
        "pool/grad/scatter.cu: for (int left = walk.along.count; left > 0; left -= kPart) {  [setp.gt.s32 -> setp.ge.s32]",  # noqa: E501
        "pool/grad/scatter.cu: while (walk.row < walk.end) {  [setp.ge.s32 -> setp.gt.s32]",
    ),
    "Either of the two fences makes the mbarriers visible to TMA.": (
        "conv/wgmma/ring.cuh: barrier_fence();  [fence.proxy.async.shared::cta removed]",
        "conv/wgmma/ring.cuh: barrier_fence();  [fence.mbarrier_init.release.cluster removed]",
    ),
    "All threads of the block pass this barrier before any reaches one with another number.": (
        "conv/wgmma/run.cuh: __syncthreads();  [bar.sync: number +1]",
    ),
    "The two warpgroups exchange roles: each computes the other's tiles.": (
        "conv/wgmma/run.cuh: if (!Order::mine(turn)) {  [bra: predicate negated]",
    ),
    "Products of the last two steps may still run: both read the current stage, and the previous one is released.": (
        "conv/wgmma/pixels.cuh: products_wait<1>();  [wgmma.wait_group.sync.aligned removed]",
        "conv/wgmma/pixels.cuh: products_wait<1>();  [wgmma.wait_group.sync.aligned 1 -> 2]",
    ),
}


def _joins_the_next_group(one: Mutant, whole: str) -> bool:
    """Return whether wgmma products only move into the next step's group of the same stage.

    Every wait leaves one group in flight, so the group before both is complete as soon as the next step's group is
    closed. Only that group may hold products of the stage that is released.
    """
    if one.source_words != "conv/wgmma/pixels.cuh: products_commit();":
        return False
    following = re.split(r"\n\$\w+:|\bbra\b", "\n".join(whole.split("\n")[one.line + 1 :]), maxsplit=1)[0]
    return one.change.words == "wgmma.commit_group.sync.aligned removed" and "wgmma.commit_group" in following


def _has_a_column(one: Mutant, whole: str) -> bool:
    """Return whether a walk is accepted with zero columns or more, instead of one or more."""
    found = one.source_words.startswith("pool/grad/columns.cuh: return p.vectors && columns >= COLUMNS")
    return found and one.change.words == "setp.gt.s32 -> setp.ge.s32" and one.old.rstrip(" ;").endswith(", 0")


def _guards_a_window(one: Mutant, whole: str) -> bool:
    """Return whether only the guard is weakened of a loop over the elements in a window of MaxPool, which is never
    empty."""
    of_window = one.source_words.startswith("pool/channels.cu: return {start, max(start, 0)")
    return of_window and one.change.words == "setp.ge.s32 -> setp.gt.s32" and one.kernel.startswith("max_pool")


def _guards_a_box(one: Mutant, whole: str) -> bool:
    """Return whether a load is only for the guard of a loop over a box's slices or columns, of which there is at least
    one."""
    found = re.match(r"\s*ld\.param\.u32\s+(%r\d+),", one.old)
    if found is None or not re.match(r"pool/grad/scatter\.cu: for .* < p\.box_", one.source_words):
        return False
    users = [line for line in whole.split("\n") if re.search(rf"{found[1]}\b", line) and "ld.param" not in line]
    return all(re.match(rf"\s*setp\.lt\.s32\s+%p\d+, {found[1]}, 1;", line) for line in users)


def _counts_nothing_that_is_given(one: Mutant, whole: str) -> bool:
    """Return whether only the count changes for a walk's window without taps, which has no element, as its row has
    none."""
    none = one.source_words.startswith("pool/average.cuh: if (last < 0) return 0;") and "lt" not in one.change.words
    return none and "walks" in one.kernel


def _compares_again(one: Mutant, whole: str) -> bool:
    """Return whether the change affects only a copy of a walk's comparison with the rows that are left, in its first
    turn.

    The loads of the row use the first comparison. The copy computes the number of rows for the next turn, which uses
    zero instead if two rows are left.
    """
    if one.source_words != "weight_grad/rows.cu: if (--left <= 0) walk.x_bits = walk.rows = 0;":
        return False
    lines = whole.split("\n")
    found = re.match(r"\s*setp\.lt\.s32\s+(%p\d+), (%r\d+), 2;", one.old)
    if found is None or one.change.words != "setp.lt.s32 -> setp.le.s32":
        return False
    predicate, left = found.groups()
    is_copy = any(re.match(rf"\s*setp\.lt\.s32\s+%p\d+, {left}, 2;", line) for line in lines[: one.line])
    users = [line for line in lines if re.search(rf"{predicate}\b", line)]
    return is_copy and len(users) == 2 and re.match(r"\s*selp\.b32\s+%r\d+, 0, ", users[1]) is not None


def _column_of_a_walk(one: Mutant, whole: str) -> bool:
    """Return whether the first column of dy of a walk along rows, never negative, is only compared with -1 instead of
    0."""
    if one.source_words != "weight_grad/rows.cu: if (first >= 0 && first + (COUNT - 1) * step < extent) return bits;":
        return False
    places = re.findall(r"\.loc\s+\d+ \d+ \d+.*inlined_at \d+ (\d+) ", "\n".join(whole.split("\n")[: one.line]))
    of_dy = _source_line("weight_grad/rows.cu", int(places[-1])).startswith("walk.dy_bits = existing")
    return of_dy and one.change.words == "setp.gt.s32 -> setp.ge.s32"


def _sums_for_nobody(one: Mutant, whole: str) -> bool:
    """Return whether a thread of a depthwise kernel only adds up sums for a group or filter that does not exist.

    A block stages existing weights and inputs in whole tiles; before it writes, the thread checks again.
    """
    if not one.source_words.startswith("conv/direct/rows.cu: DEVICE bool works()"):
        return False
    places = re.findall(r"\.loc\s+\d+ \d+ \d+.*inlined_at \d+ (\d+) ", "\n".join(whole.split("\n")[: one.line]))
    adds_up = "accumulate" in _source_line("conv/direct/rows.cu", int(places[-1]))
    return adds_up and one.change.words == "setp.ge.s32 -> setp.gt.s32"


# Barriers that are redundant because of others, by kernel name and source line.
_NEEDLESS = (
    ("conv_weight_grad_", "free for the epilogue"),  # theirs needs no shared memory
    ("conv_few_", "have left the table"),  # before the barriers of the channels' loop, which has a turn
)


def _is_needless(one: Mutant, whole: str) -> bool:
    """Return whether a removed barrier is redundant: threads meet at other barriers, or share nothing after it."""
    path, _, line = one.source.partition(":")
    if one.source_words != f"{path}: __syncthreads();" or one.change.words != "bar.sync removed":
        return False
    text = kernel_files.folder().joinpath(path).read_text(encoding="utf-8").split("\n")[int(line) - 1]
    return any(one.kernel.startswith(kernel) and comment in text for kernel, comment in _NEEDLESS)


def _copies_all(one: Mutant, whole: str) -> bool:
    """Return whether a copy only lacks its size, which is always the whole size."""
    found = re.search(r"(4|8|16), (%r\d+);", one.old)
    if found is None or not one.change.words.endswith("size removed"):
        return False
    size, register = found.groups()
    written = [line for line in whole.split("\n") if re.match(rf"\s*\S+\s+{register},", line)]
    return len(written) == 1 and re.match(rf"\s*mov\.u32\s+{register}, {size};", written[0]) is not None


def _meets_alone(one: Mutant, whole: str) -> bool:
    """Return whether a barrier of all consumers only has another number, at which no other threads wait before.

    Where consumers take turns, the other consumers use that number.
    """
    found = re.match(r"\s*bar\.sync (%r\d+), (%r\d+);", one.old)
    if found is None or not one.source_words.startswith("conv/wgmma/split.cuh: static DEVICE void wait()"):
        return False
    count = re.search(rf"\smov\.u32\s+{found[2]}, (\d+);", whole)
    return one.change.words == "bar.sync: number +1" and count is not None and count[1] == "256"


RULES: dict[str, Callable[[Mutant, str], bool]] = {
    "Products of a step complete with those of the next step, which reads the same stage.": _joins_the_next_group,
    "Every walk has at least one column.": _has_a_column,
    "Every window of MaxPool has an element of x.": _guards_a_window,
    "Every box has slices and columns.": _guards_a_box,
    "No element is in a window without counted elements.": _counts_nothing_that_is_given,
    "Rows of dy after a walk's last row are skipped anyway.": _compares_again,
    "Columns of dy are 0 or more.": _column_of_a_walk,
    "Sums for groups or filters that do not exist are never written.": _sums_for_nobody,
    "Another barrier comes before any write to memory that other threads read.": _is_needless,
    "All bytes of the copy exist.": _copies_all,
    "All consumers pass this barrier before any reaches one with another number.": _meets_alone,
}


def is_equivalent(one: Mutant, whole: str) -> bool:
    """Return whether a mutant of a kernel's whole text is known to be as right as the kernel."""
    return any(one.name in names for names in EQUIVALENT.values()) or any(rule(one, whole) for rule in RULES.values())
