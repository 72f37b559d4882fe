"""Translate PTX text into flat lists of instructions for the engine.

Every operand becomes a byte offset into a warp's register file, where a register has one value per lane. Immediates,
addresses of variables and special registers also become registers, which the engine fills before the first instruction.
Functions that the compiler did not inline are inlined here. For example::

    @%p1 add.f32 %f3, %f1, 0f3F800000;

has the key ``add.f32``, the predicate ``%p1``, and the operands ``%f3``, ``%f1`` and a register preset to 1.0.
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

SPECIAL_REGISTERS = [  # in the order of special_register() in execution.hpp
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
RETURN = "$return"  # label at the end of an inlined function
NAMES = frozenset("%$_" + ascii_letters)  # first characters of names
# For opcodes whose later operands do not have the width of the type: the first such operand, and the width in bytes.
LATER_WIDTHS = {"shl": (2, 4), "shr": (2, 4), "bfe": (2, 4), "bfi": (3, 4), "cp": (0, 4), "wgmma": (0, 4)}


@cache
def _operand_widths(words: tuple[str, ...]) -> tuple[int, int, int]:
    """Return the width in bytes of immediate operands, the index from which on it differs, and the width from there.

    Parameters
    ----------
    words : tuple of str
        The opcode, split at its dots.
    """
    types = [word for word in words[1:] if word in WIDTH]
    width = WIDTH[types[-1]] if types and words[0] != "mbarrier" else 4
    if words[0] == "mad" and "wide" in words:
        return width, 3, 8
    return width, *LATER_WIDTHS.get(words[0], (99, 0))


def _named(path: str) -> str:
    """Return how messages name a source file: its path below kernels_cu, where file names repeat, or its file name."""
    _, folder, name = path.rpartition("kernels_cu/")
    return name if folder else name.rpartition("/")[2]


class Module:
    """The kernels, variables and functions of one PTX text.

    Attributes
    ----------
    files : names of source files by number, from ``.file``
    kernels : Kernel by name
    shared : module-scope shared variables; each kernel that uses one places it in its own layout
    globals : initial bytes of ``.global`` and ``.const`` variables
    functions : functions that kernels may call
    """

    def __init__(self, text: str) -> None:
        self.files = {int(n): _named(path) for n, path in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', text)}
        self.kernels: dict[str, Kernel] = {}
        self.shared: dict[str, Variable] = {}
        self.globals: dict[str, bytes] = {}
        self.functions: dict[str, Function] = {}
        reader = Reader(tokens_of(text))
        linkage: set[str] = set()
        entries = []
        while reader.peek() is not None:
            token = reader.next()
            if token in (".visible", ".weak", ".extern", ".common"):
                linkage.add(token)
                continue
            if token == ".entry":  # parsed after the loop, when all functions are known
                entries.append(reader.position)
                _skip_body(reader)
            else:
                self._declaration(reader, token, ".extern" in linkage)
            linkage = set()
        for reader.position in entries:
            kernel = KernelReader(self, reader).kernel
            self.kernels[kernel.name] = kernel

    def _function(self, reader: Reader) -> None:
        """Parse a function definition; a mere declaration, as of vprintf and __assertfail, is skipped."""
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
        """Parse a module-scope declaration that begins with `token`; unknown directives are skipped."""
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
    """Parse a list of parameters in parentheses; return an empty list if there is none."""
    found = []
    if reader.peek() == "(":
        while reader.next() != ")":
            if reader.peek() != ")":
                found.append(read_variable(reader))
    return found


def _skip_body(reader: Reader) -> list[str]:
    """Skip to the end of a kernel or function; return the tokens of its body, without the outer braces."""
    reader.until("{")
    first, depth = reader.position, 1
    while depth:
        depth += reader.until("}").count("{") - 1
    return reader.tokens[first : reader.position - 1]


@dataclass(frozen=True)
class Function:
    """A ``.func`` of the module: its body is inlined at every call."""

    results: list[Variable]
    parameters: list[Variable]
    body: list[str]


class KernelReader:
    """Parses one ``.entry``; the decoded result is `kernel`.

    Attributes
    ----------
    scopes : declared names of each nested scope
        A register is represented by its width until its first use, when it gets a place in the register file.
    calls : names of the functions that are being inlined, to reject recursion
    labels : index of the instruction after each label, for each nested scope
    branches : branches with the name of their label and the scopes at the branch; resolved at the end
    constants : register of each preset value, so that equal immediates share one
    line : source line of the current ``.loc``
    packing : whether the current instruction is a `mov`, whose vector operands share the width of its type
    """

    def __init__(self, module: Module, reader: Reader) -> None:
        self.module = module
        self.reader = reader
        self.kernel = Kernel(reader.next())
        self.scopes: list[dict[str, Register | Symbol | int]] = [{}]
        self.calls: list[str] = []
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
        """Parse the kernel's parameters and lay them out."""
        for variable in _variables(self.reader):
            self.kernel.place_parameter(variable.name, variable.size, variable.alignment)

    def _resolve_branches(self) -> None:
        """Set the target of each branch to the instruction of its label in the innermost scope that has it."""
        for instruction, label, scopes in self.branches:
            targets = [scope[label] for scope in reversed(scopes) if label in scope]
            if not targets:
                raise UnsupportedPtx(f"undefined label {label}")
            instruction.attributes = [targets[0]]

    # ---------------------------------------------------------------- statements

    def _body(self) -> None:
        """Parse the kernel's body, and append an exit."""
        self.reader.expect("{")
        self._block()
        self.append(Instruction("exit", [], [], text="exit (end of kernel)"))

    def _block(self) -> None:
        """Parse statements up to the closing brace, or to the end of an inlined function's tokens."""
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
        """Inline a call of a function that the module defines, and return a `nop` for the call itself.

        ``__assertfail`` becomes a trap, and ``vprintf`` is ignored. The caller's ``.param`` variables for arguments and
        results are in local memory; the function's parameters become aliases of them.
        """
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
        """Parse the ``.param`` declaration of a call's argument or result, and place it in local memory."""
        variable = read_variable(self.reader)
        self.reader.until(";")
        unique = f"{variable.name}@{len(self.kernel.local)}"
        self.kernel.place_local(unique, variable.size, variable.alignment)
        self.scopes[-1][variable.name] = Symbol(unique)

    def _statement(self, token: str) -> None:
        """Parse a label, a directive or an instruction that begins with `token`."""
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
        """Parse the names of a ``.reg`` declaration, such as ``.reg .b32 %r<8>``; each gets a register when used."""
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
        """Note the source line of a ``.loc`` directive, with the place that an inlined function was called from."""

        def place(file: str, line: str) -> str:
            return f"{self.module.files.get(int(file), file)}:{line}"

        if words not in self.places:
            self.places[words] = place(words[0], words[1])
            if "inlined_at" in words:
                outer = words[words.index("inlined_at") + 1 :]
                self.places[words] += f" (inlined at {place(outer[0], outer[1])})"
        self.line = self.places[words]

    def append(self, instruction: Instruction) -> None:
        """Append an instruction at the current source line."""
        instruction.line = self.line
        self.kernel.instructions.append(instruction)

    def _instruction(self, token: str) -> None:
        """Parse and decode one instruction, with its predicate."""
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
        """Parse operands up to the semicolon; `words` are the opcode, split at its dots."""
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
        """Parse the operand that begins with `token`; an immediate is `width` bytes wide."""
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
        """Return the register, placed variable or special register of a name, else a Symbol for the name itself."""
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
        """Parse the rest of a vector operand; `width` is that of its type."""
        if self.packing:  # mov.b64 {a, b}: the type is that of the whole vector
            end = self.reader.tokens.index("}", self.reader.position)
            width //= self.reader.tokens[self.reader.position : end].count(",") + 1
        items = []
        while (token := self.reader.next()) != "}":
            if token != ",":
                items.append(self._operand(width, token))
        return Vector(tuple(items))

    def _memory(self) -> Memory:
        """Parse the rest of a memory operand: a base, an offset and, for tensor copies, coordinates."""
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
        """Return the offset of a register that the engine presets to this value; `Preset` explains `source`."""
        key = (source, value, width)
        if key not in self.constants:
            self.constants[key] = self.kernel.allocate_register(width)
            self.kernel.presets.append(Preset(self.constants[key], width, source, value))
        return self.constants[key]

    def _address_of(self, name: str, width: int) -> int:
        """Return a register with the address of a variable or parameter, placing a shared variable if necessary."""
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
        """Return the offset of an operand's register; for the name of a variable, of one with its address."""
        if isinstance(operand, Register):
            return operand.offset
        if isinstance(operand, Symbol):
            return self._address_of(operand.name, width)
        raise UnsupportedPtx(f"operand {operand}")

    def registers(self, operand: Operand, width: int = 4) -> list[int]:
        """Return the register offsets of a vector operand, or of a scalar as a list of one."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        return [self.register(item, width) for item in items]

    def address(self, operand: Any) -> tuple[int, int, int]:
        """Return a memory operand's base register (offset), its constant offset and the base's width, all in bytes."""
        if isinstance(operand.base, Register):
            return operand.base.offset, operand.offset, operand.base.width
        return self._address_of(operand.base.name, 8), operand.offset, 8

    def branch(self, label: str) -> Instruction:
        """Return a branch to a label of the current scopes; its target is set when the whole kernel is parsed."""
        instruction = Instruction("bra", [], [])
        self.branches.append((instruction, label, list(self.labels)))
        return instruction


def _names(words: list[str], position: int) -> tuple[int, list[str]]:
    """Return the position after an optional parenthesised list of names and its commas, and the names."""
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
