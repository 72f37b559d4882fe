"""PTX text to a flat program for the engine.

Every operand becomes a byte offset into a warp's register file; immediates and special registers are registers that
the engine fills before the first instruction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from string import ascii_letters
from typing import Any

from . import sums
from .decode import decode
from .operands import (
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
from .tokens import WIDTH, Reader, Variable, immediate_bits, initial_data, read_variable, tokens_of

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
CLOCKS = ("%clock", "%clock_hi", "%clock64", "%globaltimer")
RETURN = "$return"  # the label behind a function that was inlined
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
        self.functions: dict[str, Function] = {}  # that kernels call
        reader = Reader(tokens_of(text))
        linkage: set[str] = set()
        entries = []
        while reader.peek() is not None:
            token = reader.next()
            if token in (".visible", ".weak", ".extern", ".common"):
                linkage.add(token)
                continue
            if token == ".entry":  # is read last, when all functions are known
                entries.append(reader.position)
                _skip_body(reader)
            else:
                self._declaration(reader, token, ".extern" in linkage)
            linkage = set()
        for reader.position in entries:
            kernel = KernelReader(self, reader).kernel
            self.kernels[kernel.name] = kernel

    def _function(self, reader: Reader) -> None:
        """Read the definition of a function, or the declaration of one: of vprintf, __assertfail and the like."""
        results = _variables(reader)
        name = reader.next()
        parameters = _variables(reader)
        while reader.peek() not in (";", "{"):
            reader.next()
        if reader.peek() == ";":
            reader.next()
        else:
            self.functions[name] = Function(results, parameters, _skip_body(reader))

    def _declaration(self, reader: Reader, token: str, extern: bool) -> None:
        if token == ".func":
            self._function(reader)
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


def _variables(reader: Reader) -> list[Variable]:
    """Read parameters between parentheses, if there are any."""
    found = []
    if reader.peek() == "(":
        while reader.next() != ")":
            if reader.peek() != ")":
                found.append(read_variable(reader))
    return found


def _skip_body(reader: Reader) -> list[str]:
    """Skip what is left of a kernel or function; return the tokens between its braces."""
    reader.until("{")
    first, depth = reader.position, 1
    while depth:
        depth += reader.until("}").count("{") - 1
    return reader.tokens[first : reader.position - 1]


@dataclass(frozen=True)
class Function:
    """A function that was not inlined by the compiler: it is inlined where kernels call it."""

    results: list[Variable]
    parameters: list[Variable]
    body: list[str]


class KernelReader:
    """Reads one kernel; `kernel` is the result."""

    def __init__(self, module: Module, reader: Reader) -> None:
        self.module = module
        self.reader = reader
        self.kernel = Kernel(reader.next())
        self.scopes: list[dict[str, Register | Symbol | int]] = [{}]  # a width until the register is first used
        self.calls: list[str] = []  # of functions that are being inlined
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
        for variable in _variables(self.reader):
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
        self._block()
        self.append(Instruction("exit", [], [], text="exit (end of kernel)"))

    def _block(self) -> None:
        """Read statements up to the brace that ends them, or the end of the text."""
        depth = 1
        while depth and self.reader.peek() is not None:
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

    def _call(self) -> Instruction:
        """Inline a function that the module defines; of others, ignore what they print and trap where they assert."""
        words = self.reader.until(";")
        if "__assertfail" in words:
            return Instruction("trap", [], [])
        if "vprintf" in words:
            return Instruction("nop", [], [])
        position, results = _names(words, 0)
        name = words[position]
        function = self.module.functions.get(name)
        if function is None or name in self.calls:
            raise UnsupportedPtx("call " + " ".join(words))
        _, arguments = _names(words, position + 1)
        scope: dict[str, Register | Symbol | int] = {}
        for variables, names in ((function.results, results), (function.parameters, arguments)):
            for variable, given in zip(variables, names, strict=True):
                scope[variable.name] = self._variable(given)
        outer, self.reader = self.reader, Reader(function.body)
        self.calls.append(name)
        self.scopes.append(scope)
        self.labels.append({})
        self._block()
        self.labels.pop()[RETURN] = len(self.kernel.instructions)
        self.scopes.pop()
        self.calls.pop()
        self.reader = outer
        return Instruction("nop", [], [])

    def _place_argument(self) -> None:
        """Read the declaration of a variable for a call's arguments or results."""
        variable = read_variable(self.reader)
        self.reader.until(";")
        unique = f"{variable.name}@{len(self.kernel.local)}"
        self.kernel.place_local(unique, variable.size, variable.alignment)
        self.scopes[-1][variable.name] = Symbol(unique)

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
        elif token == ".param":
            self._place_argument()
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
            if predicate >= 0:
                raise UnsupportedPtx("a call with a predicate")
            instruction = self._call()
        elif words[0] == "ret" and self.calls:
            self.reader.until(";")
            instruction = self.branch(RETURN)
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
        if name in CLOCKS:
            return Symbol(name)
        if name[1:] not in SPECIAL_REGISTERS:
            raise UnsupportedPtx(f"special register {name}")
        return Register(self.constant("special", SPECIAL_REGISTERS.index(name[1:]), 4), 4)

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


def _names(words: list[str], position: int) -> tuple[int, list[str]]:
    """Return the names between parentheses, if there are any, and the position of what comes after them."""
    while position < len(words) and words[position] == ",":
        position += 1
    names: list[str] = []
    if position < len(words) and words[position] == "(":
        end = words.index(")", position)
        names = [word for word in words[position + 1 : end] if word != ","]
        position = end + 1
    while position < len(words) and words[position] == ",":
        position += 1
    return position, names
