"""What a kernel consists of when it is decoded: operands in a register file, memory laid out, instructions."""

from __future__ import annotations

from dataclasses import dataclass, field

LANES = 32


class UnsupportedPtx(Exception):
    """The emulator does not model something that the kernel uses."""


# ---------------------------------------------------------------- operands, as written


@dataclass(frozen=True, slots=True)
class Register:
    offset: int  # in the register file; -1 for "_"
    width: int  # bytes a lane; 0 for predicates


@dataclass(frozen=True, slots=True)
class Symbol:
    name: str  # of a label, a variable or a parameter


@dataclass(frozen=True, slots=True)
class Vector:
    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    base: Operand
    offset: int
    extra: Operand | None  # coordinates of a tensor


@dataclass(frozen=True, slots=True)
class Negated:
    operand: Operand


@dataclass(frozen=True, slots=True)
class Second:
    operand: Operand  # q of "p|q"


Operand = Register | Symbol | Vector | Memory | Negated | Second


# ---------------------------------------------------------------- what the engine gets


@dataclass(frozen=True, slots=True)
class Preset:
    """A register that is filled before the first instruction."""

    offset: int
    width: int
    source: str  # "constant", "special", "shared", "dynamic" or "global"
    value: int | str


@dataclass(slots=True)
class Instruction:
    """What to do is decided by `key`; the engine has a table of them.

    Attributes
    ----------
    operands : byte offsets into the register file, -1 where left out.
    attributes : numbers; their order is that of a struct in the engine.
    """

    key: str
    operands: list[int]
    attributes: list[int]
    predicate: int = -1
    negated: bool = False
    line: str = ""
    text: str = ""


def aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


@dataclass
class Kernel:
    """A kernel ready for the engine."""

    GUARD = 128  # bytes behind every shared variable, to notice overruns

    name: str
    parameters: dict[str, tuple[int, int]] = field(default_factory=dict)  # offset and size
    parameter_bytes: int = 0
    instructions: list[Instruction] = field(default_factory=list)
    presets: list[Preset] = field(default_factory=list)
    register_bytes: int = 0
    shared: dict[str, int] = field(default_factory=dict)  # offsets
    shared_bytes: int = 0
    static_shared_bytes: int = 0  # without the guards
    gaps: list[tuple[int, int]] = field(default_factory=list)  # of shared memory, inside no variable: offset and size
    dynamic_alignment: int = 16
    local: dict[str, int] = field(default_factory=dict)  # offsets
    local_bytes: int = 0
    granule: int = 16  # bytes of the smallest access to shared memory
    max_threads: int | None = None
    blocks_per_sm: int = 1

    @property
    def launch_registers(self) -> int:
        """Registers that each thread begins with, where the kernel says how many threads there are; else 0."""
        return 65536 // (self.max_threads * self.blocks_per_sm) // 8 * 8 if self.max_threads else 0

    def allocate_register(self, width: int) -> int:
        offset = self.register_bytes
        self.register_bytes += max(64, LANES * width)
        return offset

    def place_parameter(self, name: str, size: int, alignment: int) -> None:
        offset = aligned(self.parameter_bytes, alignment)
        self.parameters[name] = (offset, size)
        self.parameter_bytes = offset + size

    def place_shared(self, name: str, size: int, alignment: int) -> None:
        self.static_shared_bytes = aligned(self.static_shared_bytes, alignment) + size
        offset = aligned(self.shared_bytes, alignment)
        if offset > self.shared_bytes:
            self.gaps.append((self.shared_bytes, offset - self.shared_bytes))
        self.shared[name] = offset
        self.gaps.append((offset + size, self.GUARD))
        self.shared_bytes = offset + size + self.GUARD

    def place_local(self, name: str, size: int, alignment: int) -> None:
        self.local[name] = aligned(self.local_bytes, alignment)
        self.local_bytes = self.local[name] + size

    def note_shared_access(self, size: int) -> None:
        self.granule = min(self.granule, size)
