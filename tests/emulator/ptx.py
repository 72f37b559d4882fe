"""PTX text to a flat program for the engine.

Every operand becomes a byte offset into a warp's register file; immediates and special registers are registers that
the engine fills before the first instruction.
"""

from __future__ import annotations

import re
from functools import cache
from string import ascii_letters
from typing import Any

from tests.emulator import sums
from tests.emulator.decode import decode
from tests.emulator.operands import (
    Instruction,
    Kernel,
    Memory,
    Negated,
    Operand,
    Preset,
    Register,
    Second,
    Symbol,
    UnsupportedPtx,
    Vector,
)
from tests.emulator.tokens import WIDTH, Reader, Variable, immediate_bits, initial_data, read_variable, tokens_of

SPECIAL_REGISTERS = [  # in the order of engine.cpp
    *("tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ntid.z"),
    *("ctaid.x", "ctaid.y", "ctaid.z", "nctaid.x", "nctaid.y", "nctaid.z"),
    *("laneid", "warpid", "lanemask_lt", "lanemask_le", "lanemask_eq", "lanemask_ge", "lanemask_gt"),
    *("clock", "clock64", "smid", "dynamic_smem_size", "total_smem_size"),
    *(
        "cluster_ctaid.x",
        "cluster_ctaid.y",
        "cluster_ctaid.z",
        "cluster_nctaid.x",
        "cluster_ctarank",
        "cluster_nctarank",
    ),
]
NAMES = frozenset("%$_" + ascii_letters)  # that they begin with
# Instructions whose operands from some index on do not have the type's width: index and width.
LATER_WIDTHS = {"shl": (2, 4), "shr": (2, 4), "bfe": (2, 4), "bfi": (3, 4), "cp": (0, 4), "wgmma": (0, 4)}


@cache
def _operand_widths(words: tuple[str, ...]) -> tuple[int, int, int]:
    """Return the bytes of immediate operands, and from which one on they have another width."""
    types = [word for word in words[1:] if word in WIDTH]
    width = WIDTH[types[-1]] if types and words[0] != "mbarrier" else 4
    if words[0] == "mad" and "wide" in words:
        return width, 3, 8
    return width, *LATER_WIDTHS.get(words[0], (99, 0))


def _named(path: str) -> str:
    """Return a source's path from kernels_cu on, where names repeat; of another one the name alone."""
    _, folder, name = path.rpartition("kernels_cu/")
    return name if folder else name.rpartition("/")[2]


class Module:
    """The kernels, global variables and shared variables of one PTX text."""

    def __init__(self, text: str) -> None:
        self.files = {int(n): _named(path) for n, path in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', text)}
        self.kernels: dict[str, Kernel] = {}
        self.shared: dict[str, Variable] = {}  # laid out in every kernel that uses them
        self.globals: dict[str, bytes] = {}
        reader = Reader(tokens_of(text))
        linkage: set[str] = set()
        while reader.peek() is not None:
            token = reader.next()
            if token in (".visible", ".weak", ".extern", ".common"):
                linkage.add(token)
                continue
            self._declaration(reader, token, ".extern" in linkage)
            linkage = set()

    def _declaration(self, reader: Reader, token: str, extern: bool) -> None:
        if token == ".entry":
            kernel = KernelReader(self, reader).kernel
            self.kernels[kernel.name] = kernel
        elif token == ".func":
            _skip_function(reader)
        elif token in (".shared", ".global", ".const"):
            variable = read_variable(reader)
            data = initial_data(reader, variable)
            if token == ".shared":
                variable.unsized |= extern
                self.shared[variable.name] = variable
            else:
                self.globals[variable.name] = data
        else:
            reader.until(";")


def _skip_function(reader: Reader) -> None:
    """Skip the declaration of vprintf, __assertfail and the like."""
    while (token := reader.next()) != ";":
        if token == "{":
            raise UnsupportedPtx("a device function that is not inlined (.func with a body); mark it __forceinline__")


class KernelReader:
    """Reads one kernel; `kernel` is the result."""

    def __init__(self, module: Module, reader: Reader) -> None:
        self.module = module
        self.reader = reader
        self.kernel = Kernel(reader.next())
        self.scopes: list[dict[str, Register | int]] = [{}]  # a width until the register is first used
        self.labels: list[dict[str, int]] = [{}]
        self.branches: list[tuple[Instruction, str, list[dict[str, int]]]] = []
        self.constants: dict[tuple[str, int | str, int], int] = {}
        self.line = "?"
        self.places: dict[tuple[str, ...], str] = {}
        self.packing = False
        self._parameters()
        while reader.peek() != "{":
            directive = reader.until(";")
            if directive[0] in (".maxntid", ".reqntid"):
                self.kernel.max_threads = int(directive[1])
            elif directive[0] == ".minnctapersm":
                self.kernel.blocks_per_sm = int(directive[1])
        self._body()
        self._resolve_branches()
        sums.watch(self.kernel)

    def _parameters(self) -> None:
        if self.reader.peek() != "(":
            return
        while self.reader.next() != ")":
            if self.reader.peek() == ")":
                continue
            variable = read_variable(self.reader)
            self.kernel.place_parameter(variable.name, variable.size, variable.alignment)

    def _resolve_branches(self) -> None:
        for instruction, label, scopes in self.branches:
            targets = [scope[label] for scope in reversed(scopes) if label in scope]
            if not targets:
                raise UnsupportedPtx(f"undefined label {label}")
            instruction.attributes = [targets[0]]

    # ---------------------------------------------------------------- statements

    def _body(self) -> None:
        self.reader.expect("{")
        depth = 1
        while depth:
            token = self.reader.next()
            if token == "{":
                depth += 1
                self.scopes.append({})
                self.labels.append({})
            elif token == "}":
                depth -= 1
                self.scopes.pop()
                self.labels.pop()
            else:
                self._statement(token)
        self.append(Instruction("exit", [], [], text="exit (end of kernel)"))

    def _statement(self, token: str) -> None:
        if token[0] != ".":
            if self.reader.peek() == ":":
                self.reader.next()
                self.labels[-1][token] = len(self.kernel.instructions)
            else:
                self._instruction(token)
        elif token == ".loc":
            self._location(tuple(self.reader.until(";")))
        elif token == ".reg" or token.startswith(".reg."):  # cuda_fp16.h writes .reg.b16
            self._registers(self.reader.next() if token == ".reg" else token[4:])
        elif token in (".local", ".shared"):
            variable = read_variable(self.reader)
            self.reader.until(";")
            place = self.kernel.place_local if token == ".local" else self.kernel.place_shared
            place(variable.name, variable.size, variable.alignment)
        else:
            self.reader.until(";")

    def _registers(self, kind: str) -> None:
        width = WIDTH[kind[1:]]
        names = self.reader.until(";")
        for position, name in enumerate(names):
            if not name.startswith("%") and not re.match(r"[A-Za-z_$]", name):
                continue
            if names[position + 1 : position + 2] == ["<"]:
                self.scopes[-1].update(dict.fromkeys((f"{name}{n}" for n in range(int(names[position + 2]))), width))
            else:
                self.scopes[-1][name] = width

    def _location(self, words: tuple[str, ...]) -> None:
        def place(file: str, line: str) -> str:
            return f"{self.module.files.get(int(file), file)}:{line}"

        if words not in self.places:
            self.places[words] = place(words[0], words[1])
            if "inlined_at" in words:
                outer = words[words.index("inlined_at") + 1 :]
                self.places[words] += f" (inlined at {place(outer[0], outer[1])})"
        self.line = self.places[words]

    def append(self, instruction: Instruction) -> None:
        instruction.line = self.line
        self.kernel.instructions.append(instruction)

    def _instruction(self, token: str) -> None:
        start = self.reader.position - 1
        predicate, negated = -1, False
        if token == "@":
            token = self.reader.next()
            if token == "!":
                negated = True
                token = self.reader.next()
            predicate = self.register(self._variable(token))
            token = self.reader.next()
        words = tuple(token.split("."))
        if words[0] == "call":
            instruction = _call(self.reader.until(";"))
        else:
            instruction = decode(self, words, self._operands(words))
        instruction.predicate, instruction.negated = predicate, negated
        instruction.text = " ".join(self.reader.tokens[start : self.reader.position - 1])
        self.append(instruction)

    # ---------------------------------------------------------------- operands

    def _operands(self, words: tuple[str, ...]) -> list[Operand]:
        width, from_index, later_width = _operand_widths(words)
        self.packing = words[0] == "mov"
        operands: list[Operand] = []
        scope, following = self.scopes[-1], self.reader.next
        while (token := following()) != ";":
            found = scope.get(token)
            if type(found) is Register:  # most are
                operands.append(found)
                continue
            if token == "|":
                operands.append(Second(self._operand(0, self.reader.next())))
            elif token != ",":
                operands.append(self._operand(later_width if len(operands) >= from_index else width, token))
        return operands

    def _operand(self, width: int, token: str) -> Operand:
        if token[0] in NAMES and token != "_":
            return self._variable(token)
        if token == "{":
            return self._vector(width)
        if token == "[":
            return self._memory()
        if token == "!":
            return Negated(self._operand(width, self.reader.next()))
        if token == "_":
            return Register(-1, width)
        if token == "-":
            value = -immediate_bits(self.reader.next()) & (2**64 - 1)
            return Register(self.constant("constant", value, width or 4), width)
        if token[0].isdigit():
            return Register(self.constant("constant", immediate_bits(token), width or 4), width)
        raise UnsupportedPtx(f"operand {token}")

    def _variable(self, name: str) -> Operand:
        """Return the register of that name, else the symbol."""
        for scope in reversed(self.scopes):
            found = scope.get(name)
            if isinstance(found, int):  # the first use
                found = scope[name] = Register(self.kernel.allocate_register(found), found)
            if found is not None:
                return found
        if not name.startswith("%"):
            return Symbol(name)
        if name[1:] not in SPECIAL_REGISTERS:
            raise UnsupportedPtx(f"special register {name}")
        width = 8 if name == "%clock64" else 4
        return Register(self.constant("special", SPECIAL_REGISTERS.index(name[1:]), width), width)

    def _vector(self, width: int) -> Vector:
        if self.packing:  # the type is that of the whole
            end = self.reader.tokens.index("}", self.reader.position)
            width //= self.reader.tokens[self.reader.position : end].count(",") + 1
        items = []
        while (token := self.reader.next()) != "}":
            if token != ",":
                items.append(self._operand(width, token))
        return Vector(tuple(items))

    def _memory(self) -> Memory:
        base = self._operand(8, self.reader.next())
        offset, extra = 0, None
        while (token := self.reader.next()) != "]":
            if token == ",":
                extra = self._operand(4, self.reader.next())
                continue
            if token not in "+-":
                raise UnsupportedPtx(f"address syntax {token}")
            sign = -1 if token == "-" else 1
            if self.reader.peek() == "-":
                self.reader.next()
                sign = -sign
            offset += sign * int(self.reader.next(), 0)
        return Memory(base, offset, extra)

    def constant(self, source: str, value: int | str, width: int) -> int:
        """Return the register that holds this value from the start."""
        key = (source, value, width)
        if key not in self.constants:
            self.constants[key] = self.kernel.allocate_register(width)
            self.kernel.presets.append(Preset(self.constants[key], width, source, value))
        return self.constants[key]

    def _address_of(self, name: str, width: int) -> int:
        kernel = self.kernel
        variable = self.module.shared.get(name)
        if variable is not None and variable.unsized:
            kernel.dynamic_alignment = max(kernel.dynamic_alignment, variable.alignment)
            return self.constant("dynamic", 0, width)
        if variable is not None and name not in kernel.shared:
            kernel.place_shared(name, variable.size, variable.alignment)
        if name in kernel.shared:
            return self.constant("shared", kernel.shared[name], width)
        if name in kernel.local:
            return self.constant("constant", kernel.local[name], width)
        if name in kernel.parameters:
            return self.constant("constant", kernel.parameters[name][0], width)
        if name in self.module.globals:
            return self.constant("global", name, width)
        raise UnsupportedPtx(f"symbol {name}")

    # ---------------------------------------------------------------- for decode.py

    def register(self, operand: Operand, width: int = 4) -> int:
        if isinstance(operand, Register):
            return operand.offset
        if isinstance(operand, Symbol):
            return self._address_of(operand.name, width)
        raise UnsupportedPtx(f"operand {operand}")

    def registers(self, operand: Operand, width: int = 4) -> list[int]:
        items = operand.items if isinstance(operand, Vector) else (operand,)
        return [self.register(item, width) for item in items]

    def address(self, operand: Any) -> tuple[int, int, int]:
        """Return the base register of a memory operand, the offset and the base register's width."""
        if isinstance(operand.base, Register):
            return operand.base.offset, operand.offset, operand.base.width
        return self._address_of(operand.base.name, 8), operand.offset, 8

    def branch(self, label: str) -> Instruction:
        instruction = Instruction("bra", [], [])
        self.branches.append((instruction, label, list(self.labels)))
        return instruction


def _call(words: list[str]) -> Instruction:
    if "__assertfail" in words:
        return Instruction("trap", [], [])
    if "vprintf" in words:
        return Instruction("nop", [], [])
    raise UnsupportedPtx("call " + " ".join(words))
