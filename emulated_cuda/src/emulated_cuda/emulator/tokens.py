"""Tokenise PTX text, and parse declarations of variables and parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .operands import UnsupportedPtx

WIDTH = {  # bytes of each PTX type; 0 for predicates, which are one bit per lane
    **dict.fromkeys(("b8", "u8", "s8"), 1),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 2),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2", "tf32"), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64"), 8),
    "b128": 16,
    "pred": 0,
}
TOKEN = re.compile(
    r'"[^"]*"|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|\d+U?'
    r"|[%$A-Za-z_.][\w$.%]*(?:::[\w$.]+)*|[{}\[\](),;:|!@+\-<>=]"
)
# Directives that end with the line, not with a semicolon; `tokens_of` adds one.
LINE_DIRECTIVES = (".loc", ".file", ".version", ".target", ".address_size", ".pragma", ".noreturn", ".explicitcluster")
LINE_DIRECTIVES += (".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".reqnctapercluster", ".maxclusterrank")


def immediate_bits(token: str) -> int:
    """Return the bits of an immediate operand: a PTX float such as ``0f3F800000``, or an integer."""
    if token[:2] in ("0f", "0F", "0d", "0D"):
        return int(token[2:], 16)
    return int(token.rstrip("U"), 0)


def tokens_of(text: str) -> list[str]:
    """Return the tokens of PTX text, without comments and debug sections."""
    text = text.split("\t.section\t.debug")[0].split("\n.section")[0]
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    lines = []
    for line in text.split("\n"):
        plain = line.split("//")[0].strip()
        lines.append(plain.rstrip(";") + " ;" if plain.startswith(LINE_DIRECTIVES) else plain)
    return TOKEN.findall("\n".join(lines))


class Reader:
    """A cursor over a list of tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0

    def peek(self) -> str | None:
        """Return the next token without consuming it, or None at the end."""
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def next(self) -> str:
        """Consume and return the next token."""
        self.position += 1
        return self.tokens[self.position - 1]

    def expect(self, wanted: str) -> None:
        """Consume the next token; raise UnsupportedPtx if it is another one than wanted."""
        got = self.next()
        if got != wanted:
            context = " ".join(self.tokens[max(0, self.position - 8) : self.position + 4])
            raise UnsupportedPtx(f"PTX syntax: expected {wanted!r}, got {got!r} near {context}")

    def until(self, end: str) -> list[str]:
        """Return the tokens before the next `end`, and consume them and `end`."""
        first = self.position
        last = self.tokens.index(end, first)
        self.position = last + 1
        return self.tokens[first:last]


@dataclass
class Variable:
    """A declared variable or parameter.

    Attributes
    ----------
    size, alignment : bytes
    data : zeros, as many bytes as one element has
    unsized : whether it is declared as ``name[]``, like dynamic shared memory
    """

    name: str
    size: int
    alignment: int
    data: bytes
    unsized: bool


def read_variable(reader: Reader) -> Variable:
    """Parse a declaration after its state space, such as ``.align 16 .b8 name[256]``, up to the array size."""
    alignment = width = 0
    while (token := reader.next()).startswith("."):
        if token == ".align":
            alignment = int(reader.next())
        elif token == ".ptr":
            while reader.peek() in (".align", ".global", ".shared", ".const", ".local"):
                if reader.next() == ".align":
                    reader.next()
        elif token[1:] in WIDTH:
            width = WIDTH[token[1:]]
    count, unsized = 1, False
    if reader.peek() == "[":
        size = reader.until("]")
        unsized = len(size) == 1
        count = 0 if unsized else int(size[1], 0)
    return Variable(token, width * count, alignment or width, bytes(width), unsized)


def initial_data(reader: Reader, variable: Variable) -> bytes:
    """Parse the optional initialiser of a variable, up to the semicolon; return its bytes, zeros where it has none."""
    width = len(variable.data)
    data = bytearray(variable.size)
    values, sign = [], 1
    for token in reader.until(";"):
        if token == "-":
            sign = -1
        elif token not in ("=", "{", "}", ","):
            values.append(sign * immediate_bits(token) & (2**64 - 1))
            sign = 1
    for number, value in enumerate(values):
        data[number * width : (number + 1) * width] = value.to_bytes(8, "little")[:width]
    return bytes(data)
