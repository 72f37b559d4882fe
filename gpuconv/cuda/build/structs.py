"""Parses kernels' parameter structs from the CUDA sources into NumPy dtypes, so that each has one description.

A struct is looked up by name in a file and the headers that it includes. Supported are plain members, templates, full
specialisations, aliases, and one level of inheritance; anything else is an error. Each kernel's generated entry asserts
size and offsets, which verifies the parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gpuconv._errors import CompileError
from gpuconv.cuda.build import kernel_files

POINTER = np.dtype("<u8")
_SCALARS = {
    "bool": "?",
    "char": "<i1",
    "unsigned char": "<u1",
    "short": "<i2",
    "unsigned short": "<u2",
    "int": "<i4",
    "unsigned": "<u4",
    "unsigned int": "<u4",
    "long long": "<i8",
    "unsigned long long": "<u8",
    "float": "<f4",
    "double": "<f8",
}
MAP = np.dtype(("<u8", (16,)))  # a CUtensorMap
_MAP_ALIGNMENT = 64
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DECLARATORS = r"\w+(?:\[\w+\])*(?:, \w+(?:\[\w+\])*)*"
_MEMBERS = re.compile(rf"(?P<type>\w+(?: \w+)*?(?:<.*>)?\*?) (?P<names>{_DECLARATORS})")
_NO_MEMBER = re.compile(r"(?:static |using |template |enum(?: class)?(?: \w+)? \{[^}]*\}$)|.*(?:__device__|DEVICE\b)")
_DECLARED = re.compile(
    r"""^(?:using\ (?P<other>\w+)\ =\ (?P<alias>[^;]+);
    |(?:template\ <(?P<parameters>[^<>]*)>\s+)?struct\ (?P<name>\w+)(?:<(?P<given>[^{;]*)>)?
     (?:\ :\ (?P<base>[^{;]+?))?\s*\{)""",
    re.MULTILINE | re.VERBOSE,
)
_WORD, _ENDS, _BRACES = re.compile(r"\w+"), re.compile(r"[;{}]"), re.compile(r"[{}]")
_CONSTANTS = re.compile(r"^ *(?:static )?constexpr int (\w+ = [^;]+);", re.MULTILINE)


class _Type(NamedTuple):
    """A type's NumPy dtype, its alignment in bytes, and whether it is a struct with a base."""

    dtype: np.dtype[Any]
    alignment: int
    derived: bool = False


class _Declaration(NamedTuple):
    """A struct as declared: its file, template parameters, base, and body."""

    path: str
    parameters: str | None
    base: str | None
    body: str


def layout(name: str, source: str) -> np.dtype[Any]:
    """Return the layout of a CUDA type such as ``ConvParams<int, 3>``, declared in a file of ``kernels_cu``.

    CompileError if it is not declared, or cannot be parsed.
    """
    return _type(kernel_files.folder(), source, name).dtype


def constant(name: str, source: str) -> int:
    """Return an integer that a file of ``kernels_cu``, or a header of it, declares as ``constexpr int``.

    CompileError if it is missing, ambiguous, or not a literal number.
    """
    return _constant(kernel_files.folder(), source, name)


def place(struct: np.dtype[Any], name: str) -> str | None:
    """Return the path of the member with this name in a struct or those nested in it, or None: ``common.finish``."""
    for member in struct.names or ():
        if member == name:
            return name
        inside = place(struct[member], name)
        if inside is not None:
            return f"{member}.{inside}"
    return None


def offset(struct: np.dtype[Any], path: str) -> int:
    """Return the byte offset of a member; ``common.x`` is x of the nested struct ``common``."""
    total = 0
    for name in path.split("."):
        assert struct.fields is not None, f"{path}: {name} is in no struct"
        struct, at = struct.fields[name][:2]
        total += at
    return total


# ---------------------------------------------------------------- types


@cache
def _type(root: Any, path: str, name: str) -> _Type:
    """Return a type by its name, as declared in a file or its headers."""
    if name.endswith("*"):
        return _Type(POINTER, 8)
    if name in _SCALARS:
        dtype = np.dtype(_SCALARS[name])
        return _Type(dtype, dtype.itemsize)
    if name == "CUtensorMap":
        return _Type(MAP, _MAP_ALIGNMENT)
    bare, _, given = name.partition("<")
    arguments = _arguments(given.removesuffix(">"))
    declared = _declaration(root, path, bare, ", ".join(arguments))
    return _type(root, path, declared) if isinstance(declared, str) else _struct(root, path, name, declared, arguments)


def _struct(root: Any, path: str, name: str, declared: _Declaration, arguments: tuple[str, ...]) -> _Type:
    """Return a struct's layout by the C++ ABI: base first, then members at aligned offsets."""
    where = f"kernels_cu/{declared.path}: struct {name}"
    bound = _bound(where, declared.parameters, arguments)
    fields: dict[str, tuple[Any, int]] = {}
    end, alignment = 0, 1
    if declared.base is not None:
        base = _type(root, path, _with_arguments(declared.base, bound))
        if base.derived or base.dtype.fields is None:  # members could be placed in the base's tail padding
            raise CompileError(f"{where}: only a struct that has no base can be its base, not {declared.base}")
        fields = {member: (field[0], field[1]) for member, field in base.dtype.fields.items()}
        end, alignment = base.dtype.itemsize, base.alignment
    for kind, declarator in _members(where, declared.body):
        member, *lengths = declarator.replace("]", "").split("[")
        inner = _type(root, path, _with_arguments(kind, bound))
        shape = tuple(_length(root, declared.path, bound.get(length, length)) for length in lengths)
        begin = -(-end // inner.alignment) * inner.alignment
        fields[member] = np.dtype((inner.dtype, shape)) if shape else inner.dtype, begin
        end, alignment = begin + fields[member][0].itemsize, max(alignment, inner.alignment)
    if not fields:
        raise CompileError(f"{where} has no members")
    formats, offsets = zip(*fields.values(), strict=True)
    size = -(-end // alignment) * alignment
    described: Any = {"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": size}
    return _Type(np.dtype(described), alignment, declared.base is not None)


def _bound(where: str, parameters: str | None, arguments: tuple[str, ...]) -> Mapping[str, str]:
    """Return template parameter → argument; empty for a specialisation."""
    if parameters is None:
        return {}
    names = [parameter.split()[-1] for parameter in parameters.split(",") if parameter]
    if len(names) != len(arguments):
        raise CompileError(f"{where} has {len(arguments)} arguments for the {len(names)} parameters of its template")
    return dict(zip(names, arguments, strict=True))


def _with_arguments(name: str, bound: Mapping[str, str]) -> str:
    """Return a type's name with template parameters replaced by their arguments."""
    return _WORD.sub(lambda word: bound.get(word[0], word[0]), name) if bound else name


def _arguments(given: str) -> tuple[str, ...]:
    """Return the top-level arguments of a list: ``ConvParams<int, 3>, 4`` has two."""
    parts, depth = [""], 0
    for character in given:
        depth += (character == "<") - (character == ">")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return tuple(argument.strip() for argument in parts) if given else ()


def _members(where: str, body: str) -> Iterator[tuple[str, str]]:
    """Yield (type, declarator with array lengths) of a struct's members."""
    for statement in _statements(body):
        if _NO_MEMBER.match(statement):
            continue
        members = _MEMBERS.fullmatch(statement.replace("const ", ""))
        several = members is not None and members["type"].endswith("*") and "," in members["names"]
        if members is None or several:
            raise CompileError(f"{where}: its member '{statement}' cannot be read")
        for declarator in members["names"].split(", "):
            yield members["type"], declarator


def _statements(body: str) -> Iterator[str]:
    """Yield a struct's declarations, each in one line, without terminators."""
    begin = depth = 0
    for mark in _ENDS.finditer(body):
        depth += (mark[0] == "{") - (mark[0] == "}")
        function = mark[0] == "}" and "(" in body[begin : mark.end()]
        if depth == 0 and (mark[0] == ";" or function):
            statement = " ".join(body[begin : mark.start() if mark[0] == ";" else mark.end()].split())
            begin = mark.end()
            if statement:
                yield statement


def _length(root: Any, path: str, length: str) -> int:
    """Return an array's length, given as a number or the name of a constant."""
    return int(length) if length.isdigit() else _constant(root, path, length)


# ---------------------------------------------------------------- files


@cache
def _declaration(root: Any, path: str, name: str, arguments: str) -> _Declaration | str:
    """Return a struct, preferring a specialisation for these arguments to the template; an alias returns its target."""
    for file in _visible(root, path):
        text = _text(root, file)
        matches = {match["given"]: match for match in _declared(root, file).get(name, ())} if name in text else {}
        match = matches.get(arguments, matches.get(None))
        if match is not None:
            if match["alias"]:
                return match["alias"]
            if any(given and other["parameters"] for given, other in matches.items()):
                raise CompileError(f"kernels_cu/{file}: struct {name} has partial specialisations: it cannot be read")
            parameters = match["parameters"] or "" if match["given"] is None else None
            return _Declaration(file, parameters, match["base"], _body(text[match.end() :]))
    raise CompileError(f"kernels_cu/{path} and its headers declare no struct {name} that can be read")


@cache
def _declared(root: Any, path: str) -> Mapping[str, list[re.Match[str]]]:
    """Return a file's struct declarations and aliases, by name."""
    matches: dict[str, list[re.Match[str]]] = {}
    for match in _DECLARED.finditer(_text(root, path)):
        matches.setdefault(match["name"] or match["other"], []).append(match)
    return matches


def _body(text: str) -> str:
    """Return the text up to the brace that closes a struct."""
    depth = 1
    for mark in _BRACES.finditer(text):
        depth += 1 if mark[0] == "{" else -1
        if depth == 0:
            return text[: mark.start()]
    return text


@cache
def _constant(root: Any, path: str, name: str) -> int:
    """Return the value of a ``constexpr int``; see :func:`constant`."""
    for file in _visible(root, path):
        text = _text(root, file)
        declared = ", ".join(_CONSTANTS.findall(text)).split(", ") if name in text else []
        values = {
            value for known, _, value in (declarator.partition(" = ") for declarator in declared) if known == name
        }
        if len(values) == 1 and (value := values.pop()).isdigit():
            return int(value)
    raise CompileError(f"kernels_cu/{path} and its headers declare no constant {name} as a number, or several")


def _visible(root: Any, path: str, seen: set[str] | None = None) -> Iterator[str]:
    """Yield a file and the headers that it includes, lazily."""
    seen = set() if seen is None else seen
    if path not in seen:
        seen.add(path)
        yield path
        for header in _headers(root, path):
            yield from _visible(root, header, seen)


@cache
def _headers(root: Any, path: str) -> tuple[str, ...]:
    """Return the headers that a file includes."""
    return tuple(kernel_files.headers(_text(root, path)))


@cache
def _text(root: Any, path: str) -> str:
    """Return a file's text without comments."""
    return _COMMENT.sub("", kernel_files.text(root, path))
