"""Decode PTX instructions into the engine's form: a key, registers and attributes.

There is one handler per group of opcodes. The key names a C++ function in the engine's table. The attributes of each
kind have the order of the C++ struct by which the engine reads them (`Instr::as` in state.hpp).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import Any

from .operands import (
    Instruction,
    Memory,
    Negated,
    Operand,
    Register,
    Second,
    Symbol,
    UnsupportedPtx,
    Vector,
)
from .tokens import WIDTH

# Modifiers that do not change the result in this model, and so are left out of keys: default rounding and the like, ...
NOISE = {"rn", "approx", "full", "noftz", "uni", "aligned", "noinc"}
NOISE |= {"nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt"}  # ... cache operators, ...
NOISE |= {"volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio"}  # ... memory order ...
NOISE |= {"gpu", "sys", "cta", "cluster"}  # ... and scope
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"}
COMPARISONS |= {"equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"}
SPACES = ("global", "shared", "local", "param", "const")
ROUNDINGS = ("rni", "rzi", "rmi", "rpi", "rz", "rm", "rp", "rna")
Context = Any  # a ptx.KernelReader; importing it would be circular
Words = tuple[str, ...]  # the opcode, split at its dots: ("ld", "global", "v4", "f32")


def decode(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """Decode one instruction; raise UnsupportedPtx if it, a modifier or an operand is not supported."""
    handler = HANDLERS.get(words[0])
    if handler is None:
        raise UnsupportedPtx(".".join(words))
    try:
        return handler(context, words, operands)
    except (IndexError, KeyError) as error:
        raise UnsupportedPtx(f"{'.'.join(words)} with these operands or of this type") from error


@cache
def _types(words: Words) -> list[str]:
    """Return the words of an opcode that are types."""
    return [word for word in words[1:] if word in WIDTH]


@cache
def _key(words: Words) -> str:
    """Return the engine's key of an opcode: its words without those that have no effect."""
    return ".".join(word for word in words if word not in NOISE)


@cache
def _space(words: Words) -> str:
    """Return the state space that an opcode names, or "generic"."""
    names = [word.split("::")[0] for word in words[1:]]
    return next((name for name in names if name in SPACES), "generic")


def _without_negation(operand: Operand) -> tuple[Operand, bool]:
    """Return an operand without its negation, and whether it was negated."""
    return (operand.operand, True) if isinstance(operand, Negated) else (operand, False)


def _without_second(context: Context, operands: list[Operand]) -> tuple[list[Operand], int]:
    """Return the operands without q of ``p|q``, and the register of q, or -1."""
    second = [context.register(operand.operand) for operand in operands if isinstance(operand, Second)]
    return [operand for operand in operands if not isinstance(operand, Second)], (second or [-1])[0]


# ---------------------------------------------------------------- lanewise instructions


def _plain(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """Arithmetic and logic: each operand is a register of the instruction's type."""
    width = WIDTH[_types(words)[-1]]
    return Instruction(_key(words), [context.register(operand, width) for operand in operands], [])


def _move(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`mov`: between registers, from a clock, or packing and unpacking a vector."""
    kind = _types(words)[-1]
    to, source = operands
    if isinstance(source, Symbol) and source.name.startswith("%"):
        return Instruction(f"clock.b{8 * WIDTH[kind]}", [context.register(to)], [])
    if isinstance(to, Vector):
        registers = [*context.registers(to), context.register(source)]
        return Instruction("mov.unpack", registers, [len(to.items), WIDTH[kind] // len(to.items)])
    if isinstance(source, Vector):
        registers = [context.register(to), *context.registers(source)]
        return Instruction("mov.pack", registers, [len(source.items), WIDTH[kind] // len(source.items)])
    key = "mov.pred" if kind == "pred" else f"mov.b{8 * WIDTH[kind]}"
    return Instruction(key, [context.register(to), context.register(source, WIDTH[kind])], [])


def _convert_address(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`cvta`: convert an address to or from the generic address space."""
    direction = "to." if "to" in words else ""
    return Instruction(
        f"cvta.{direction}{_space(words)}", [context.register(operands[0]), context.register(operands[1], 8)], []
    )


def _set_predicate(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`setp`: compare, and optionally combine the result with a third predicate."""
    operands, second = _without_second(context, operands)
    kind = _types(words)[-1]
    comparison = next(word for word in words if word in COMPARISONS)
    combine = next((1 + ("and", "or", "xor").index(word) for word in words if word in ("and", "or", "xor")), 0)
    third, negated = -1, False
    if combine:
        operand, negated = _without_negation(operands[3])
        third = context.register(operand)
    key = f"setp.{comparison}.{kind}" + (".ftz" if "ftz" in words else "")
    values = [context.register(operand, WIDTH[kind]) for operand in operands[1:3]]
    return Instruction(key, [context.register(operands[0]), second, *values, third], [combine, int(negated)])


def _set_value(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`set`: compare, and store the result as 1.0 (float) or all ones (integer)."""
    to, source = _types(words)
    comparison = next(word for word in words if word in COMPARISONS)
    if len(operands) > 3 or to not in ("f32", "u32", "s32"):
        raise UnsupportedPtx(".".join(words))
    key = f"set.{comparison}.{source}" + (".ftz" if "ftz" in words else "")
    return Instruction(key, [context.register(operand, WIDTH[source]) for operand in operands], [int(to == "f32")])


def _select(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`selp`: select one of two values by a predicate."""
    width = WIDTH[_types(words)[-1]]
    values = [context.register(operand, width) for operand in operands[:3]]
    return Instruction(f"selp.b{8 * width}", [*values, context.register(operands[3])], [])


def _convert(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`cvt`: the attributes are the widths of the two registers, which may be wider than the types."""
    to, source = _types(words)[:2]
    rounding = [word for word in words if word in ROUNDINGS]
    suffix = [word for word in ("ftz", "sat", "relu") if word in words]
    key = ".".join(["cvt", *rounding, to, source, *suffix])
    if "satfinite" in words:
        raise UnsupportedPtx(".".join(words))
    registers = [context.register(operand, WIDTH[source]) for operand in operands]
    widths = [operand.width if isinstance(operand, Register) else WIDTH[source] for operand in operands[:2]]
    return Instruction(key, registers, widths)


def _test(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`testp`: test a property of a float, such as finite."""
    key = f"testp.{words[1]}.{_types(words)[-1]}"
    return Instruction(key, [context.register(operands[0]), context.register(operands[1], WIDTH[words[-1]])], [])


def _is_in_space(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`isspacep`: test whether a generic address is in a state space."""
    return Instruction(
        f"isspacep.{_space(words)}", [context.register(operands[0]), context.register(operands[1], 8)], []
    )


def _nothing(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """An instruction without an effect in this model."""
    return Instruction("nop", [], [])


def _dependency(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`griddepcontrol.wait` and `griddepcontrol.launch_dependents` (programmatic dependent launch)."""
    return Instruction(".".join(words), [], [])


# ---------------------------------------------------------------- memory


def _load_store(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`ld` and `st`; the attributes are those of struct Access in memory.hpp."""
    store = words[0] == "st"
    space, kind = _space(words), _types(words)[-1]
    vector = next((int(word[1:]) for word in words if word in ("v2", "v4", "v8")), 1)
    memory, data = operands[:2] if store else (operands[1], operands[0])
    if space == "param" and isinstance(memory.base, Symbol) and memory.base.name in context.kernel.local:
        space = "local"  # an argument or result of an inlined function: see KernelReader._place_argument
    base, offset, base_width = context.address(memory)
    first = data.items[0] if isinstance(data, Vector) else data
    register_width = first.width if isinstance(first, Register) and first.width else WIDTH[kind]
    if space in ("shared", "generic"):
        context.kernel.note_shared_access(WIDTH[kind] * vector)
    attributes = [offset, base_width, WIDTH[kind], register_width, vector, int(kind[0] == "s")]
    return Instruction(f"{'st' if store else 'ld'}.{space}", [base, *context.registers(data, WIDTH[kind])], attributes)


def _atomic(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`atom` and `red`, in global or shared memory."""
    space, kind = _space(words), _types(words)[-1]
    operation = next(word for word in words[1:] if word in ("add", "min", "max", "and", "or", "xor", "exch", "cas"))
    result = -1
    if words[0] == "atom":
        result = context.register(operands[0])
        operands = operands[1:]
    base, offset, base_width = context.address(operands[0])
    values = [context.register(operand, WIDTH[kind]) for operand in operands[1:]]
    if space in ("shared", "generic"):
        context.kernel.note_shared_access(WIDTH[kind])
    attributes = [offset, base_width, ("global", "shared", "generic").index(space)]
    return Instruction(f"atom.{operation}.{kind}", [base, result, *values], attributes)


# ---------------------------------------------------------------- control and barriers


def _branch(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`bra`."""
    return context.branch(operands[0].name)


def _exit(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`exit`, and `ret` of a kernel."""
    return Instruction("exit", [], [])


def _trap(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`trap` and `brkpt`: the kernel fails."""
    return Instruction("trap", [], [])


def _barrier(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`bar` and `barrier`, of a warp or of threads of a block; cluster barriers do nothing: clusters have one block."""
    if words[1] == "cluster":
        return _nothing(context, words, operands)
    if words[1] == "warp":
        return Instruction("bar.warp.sync", [context.register(operands[0])], [])
    action = words[2] if words[1] == "cta" else words[1]
    if action == "red":
        operation = next(("popc", "and", "or").index(word) for word in words if word in ("popc", "and", "or"))
        last, negated = _without_negation(operands[-1])
        count = context.register(operands[2]) if len(operands) > 3 else -1
        registers = [context.register(operands[0]), context.register(operands[1]), count, context.register(last)]
        return Instruction("bar.red", registers, [operation, int(negated)])
    count = context.register(operands[1]) if len(operands) > 1 else -1
    return Instruction(f"bar.{action}", [context.register(operands[0]), count], [])


def _fence(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`fence` and `membar`: only those that can order shared memory, proxies or other blocks have an effect."""
    if "mbarrier_init" in words:
        return Instruction("fence.mbarrier_init", [], [])
    if "proxy" in words:  # proxy fences for global memory alone, or for tensor maps, have no effect here
        of_shared = words[2].startswith("async") and "global" not in words
        return Instruction("fence.proxy" if of_shared else "nop", [], [])
    return Instruction("fence.device" if {"gl", "gpu", "sys"} & set(words) else "nop", [], [])


# ---------------------------------------------------------------- warps


def _shuffle(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`shfl.sync`."""
    operands, second = _without_second(context, operands)
    result, *sources = [context.register(operand) for operand in operands]
    return Instruction("shfl.sync", [result, second, *sources], [("up", "down", "bfly", "idx").index(words[2])])


def _vote(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`vote.sync`."""
    predicate, negated = _without_negation(operands[1])
    registers = [context.register(operand) for operand in (operands[0], predicate, operands[2])]
    return Instruction(f"vote.{words[2]}", registers, [int(negated)])


def _active_mask(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`activemask`."""
    return Instruction("activemask", [context.register(operands[0])], [])


def _reduce(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`redux.sync`: reduce a value over the lanes of a warp."""
    return Instruction(f"redux.{words[2]}.{_types(words)[-1]}", [context.register(operand) for operand in operands], [])


def _elect(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`elect.sync`: elect one lane of a warp."""
    (result, mask), second = _without_second(context, operands)
    return Instruction("elect.sync", [context.register(result), second, context.register(mask)], [])


# ---------------------------------------------------------------- tensor cores


def _shape(words: Words) -> str:
    """Return the shape of a matrix instruction, such as ``m16n8k16``."""
    return next(word for word in words if re.fullmatch(r"m\d+n\d+k\d+", word))


def _matrix_access(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`ldmatrix` and `stmatrix`, of one, two or four 8x8 matrices of 16-bit elements."""
    if "m8n8" not in words:
        raise UnsupportedPtx(".".join(words))
    data, memory = operands if words[0] == "ldmatrix" else operands[::-1]
    count = next(int(word[1:]) for word in words if word in ("x1", "x2", "x4"))
    base, offset, base_width = context.address(memory)
    return Instruction(words[0], [base, *context.registers(data)], [offset, base_width, count, int("trans" in words)])


def _mma(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`mma.sync`: the operands are the registers of D, A, B and C, the attributes their numbers."""
    if "row" not in words or "col" not in words:
        raise UnsupportedPtx(".".join(words))
    parts = [context.registers(operand) for operand in operands[:4]]
    key = ".".join(["mma", _shape(words), *_types(words)])
    return Instruction(key, list(chain(*parts)), [len(part) for part in parts])


def _wgmma(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`wgmma`; the attributes of mma_async are those of struct Wgmma in tensor.hpp."""
    if words[1] != "mma_async":
        return Instruction(f"wgmma.{words[1]}", [context.register(operand) for operand in operands], [])
    d, a = context.registers(operands[0]), context.registers(operands[1])
    rest = [context.register(operand) for operand in operands[2:]]
    n = int(re.split("[mnk]", _shape(words))[2])
    attributes = [len(d), len(a), n, len(rest) - 2, int(isinstance(operands[1], Vector))]
    return Instruction(".".join(["wgmma", *_types(words)[:2]]), [*d, *a, *rest], attributes)


def _set_registers(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`setmaxnreg`."""
    attributes = [int(words[1] == "inc"), context.kernel.launch_registers]
    return Instruction("setmaxnreg", [context.register(operands[0])], attributes)


# ---------------------------------------------------------------- asynchronous copies


def _copy(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`cp.async`, its groups, and the bulk copies of `_bulk_copy`."""
    if words[:3] == ("cp", "async", "bulk"):
        return _bulk_copy(context, words, operands)
    if "commit_group" in words:
        return Instruction("cp.async.commit", [], [])
    if "wait_group" in words:
        return Instruction("cp.async.wait", [context.register(operands[0])], [])
    if "wait_all" in words:
        return Instruction("cp.async.wait_all", [], [])
    if words[:2] != ("cp", "async") or "mbarrier" in words:
        raise UnsupportedPtx(".".join(words))
    to, to_offset, to_width = context.address(operands[0])
    source, source_offset, source_width = context.address(operands[1])
    context.kernel.note_shared_access(4)
    size, ignore = -1, -1
    if len(operands) > 3:
        is_predicate = isinstance(operands[3], Register) and operands[3].width == 0
        if is_predicate:
            ignore = context.register(operands[3])
        else:
            size = context.register(operands[3])
    registers = [to, source, context.register(operands[2]), size, ignore]
    return Instruction("cp.async", registers, [to_offset, source_offset, to_width, source_width])


def _bulk_copy(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`cp.async.bulk.tensor` (TMA) and its groups; bulk copies without a tensor map are not supported."""
    if "commit_group" in words:
        return Instruction("cp.async.bulk.commit", [], [])
    if "wait_group" in words:
        return Instruction("cp.async.bulk.wait", [context.register(operands[0])], [])
    if "prefetch" in words:
        return Instruction("nop", [], [])
    if "tensor" not in words:
        raise UnsupportedPtx(".".join(words))
    rank = next(int(word[0]) for word in words if re.fullmatch("[1-5]d", word))
    im2col = int("im2col" in words or "im2col_no_offs" in words)
    first_shared = next(position for position, word in enumerate(words) if word.startswith("shared"))
    if words.index("global") > first_shared:
        return _tensor_load(context, operands, rank, im2col)
    tensor_map, map_offset, _ = context.address(operands[0])
    source, source_offset, _ = context.address(operands[1])
    registers = [tensor_map, source, *context.registers(operands[0].extra)]
    return Instruction("cp.async.bulk.tensor.store", registers, [source_offset, map_offset, 0, rank, im2col, 0])


def _tensor_load(context: Context, operands: list[Any], rank: int, im2col: int) -> Instruction:
    """A TMA load of a box from global to shared memory, completed at an mbarrier."""
    to, to_offset, _ = context.address(operands[0])
    tensor_map, map_offset, _ = context.address(operands[1])
    barrier, barrier_offset, _ = context.address(operands[2])
    has_offsets = im2col and len(operands) > 3 and isinstance(operands[3], Vector)
    offsets = context.registers(operands[3]) if has_offsets else []
    registers = [to, tensor_map, barrier, *context.registers(operands[1].extra), *offsets]
    attributes = [to_offset, map_offset, barrier_offset, rank, im2col, len(offsets)]
    return Instruction("cp.async.bulk.tensor.load", registers, attributes)


def _prefetch(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`prefetch`: only a tensor map is checked; other prefetches have no effect."""
    if "tensormap" not in words:
        return _nothing(context, words, operands)
    tensor_map, map_offset, _ = context.address(operands[0])
    return Instruction("prefetch.tensormap", [tensor_map], [0, map_offset, 0, 0, 0, 0])


def _mbarrier(context: Context, words: Words, operands: list[Operand]) -> Instruction:
    """`mbarrier`: init, inval, arrive, expect_tx and waits; try_wait and test_wait are the same here."""
    action = words[1]
    memory = next(operand for operand in operands if isinstance(operand, Memory))
    base, offset, base_width = context.address(memory)
    before = [context.register(operand) for operand in operands[: operands.index(memory)]]
    after = [context.register(operand) for operand in operands[operands.index(memory) + 1 :]]
    attributes = [offset, base_width, int("parity" in words)]
    if action in ("init", "inval", "expect_tx"):
        return Instruction(f"mbarrier.{action}", [base, *after], attributes)
    if action in ("try_wait", "test_wait"):
        return Instruction("mbarrier.wait", [base, *before, after[0]], attributes)
    if action == "arrive":
        key = "mbarrier.expect_arrive" if "expect_tx" in words else "mbarrier.arrive"
        return Instruction(key, [base, *(before or [-1]), *(after or [-1])], attributes)
    raise UnsupportedPtx(".".join(words))


HANDLERS: dict[str, Callable[[Context, Words, list[Any]], Instruction]] = {
    **dict.fromkeys(
        ("add", "sub", "mul", "mad", "fma", "div", "rem", "sad", "neg", "abs", "copysign", "min", "max"), _plain
    ),
    **dict.fromkeys(("addc", "subc", "madc"), _plain),
    **dict.fromkeys(("sqrt", "rsqrt", "rcp", "ex2", "lg2", "sin", "cos", "tanh"), _plain),
    **dict.fromkeys(("and", "or", "xor", "not", "cnot", "shl", "shr", "shf", "lop3", "prmt"), _plain),
    **dict.fromkeys(("bfe", "bfi", "bfind", "brev", "clz", "popc"), _plain),
    **dict.fromkeys(("prefetchu", "nanosleep"), _nothing),
    **dict.fromkeys(("ld", "ldu", "st"), _load_store),
    **dict.fromkeys(("atom", "red"), _atomic),
    **dict.fromkeys(("ret", "exit"), _exit),
    **dict.fromkeys(("trap", "brkpt"), _trap),
    **dict.fromkeys(("bar", "barrier"), _barrier),
    **dict.fromkeys(("membar", "fence"), _fence),
    **dict.fromkeys(("ldmatrix", "stmatrix"), _matrix_access),
    "mov": _move,
    "cvta": _convert_address,
    "setp": _set_predicate,
    "set": _set_value,
    "selp": _select,
    "cvt": _convert,
    "testp": _test,
    "isspacep": _is_in_space,
    "bra": _branch,
    "shfl": _shuffle,
    "vote": _vote,
    "activemask": _active_mask,
    "redux": _reduce,
    "elect": _elect,
    "mma": _mma,
    "wgmma": _wgmma,
    "setmaxnreg": _set_registers,
    "cp": _copy,
    "mbarrier": _mbarrier,
    "prefetch": _prefetch,
    "griddepcontrol": _dependency,
}
