"""A problem as a correlation of stride 1, as ``conv/direct/bands.cu`` makes it, and the forms of the kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a problem as a correlation of stride 1.

    Attributes
    ----------
    phases : int
        ConvTranspose's stride; of Conv 1.
    taps : int
        Of the kernel, with stride 1.
    kernel : int
        Taps of w.
    positions : int
    start, origin : int
        Coordinates at position 0: of the input of the first tap, of the output of phase 0.
    """

    phases: int
    taps: int
    kernel: int
    positions: int
    start: int
    origin: int


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done: ``depths`` output planes of ``planes`` taps each, ``vectors`` as in the kernel's struct."""

    dtype: str
    copies: int  # images and groups
    channels: int
    filters: int
    depths: int
    planes: int
    height: Axis
    width: Axis
    line: bool
    vectors: int
    lines: int  # of the L1 cache that 32 neighbouring columns lie in, where they are copied one by one


@dataclass(frozen=True, slots=True)
class Form:
    """One form of the kernel.

    Attributes
    ----------
    filters, rows : int
        What a thread makes, for each of its 16 bytes of columns.
    kernel_rows, kernel_columns : int
        Taps of a kernel's part that is unrolled.
    registers : int
        That a thread needs for float32 sums.
    efficiency : float
        Share of multiplications among the main loop's instructions.
    """

    filters: int
    rows: int
    kernel_rows: int
    kernel_columns: int
    registers: int
    efficiency: float

    def __str__(self) -> str:
        return f"{self.filters}x{self.rows}_{self.kernel_rows}x{self.kernel_columns}"

    def chunks(self, work: Work) -> int:
        """Parts of a kernel's row."""
        return -(-work.width.taps // self.kernel_columns)

    def takes(self, work: Work) -> bool:
        """Tell whether this form can solve a problem: vectors begin with each part of a row, large parts are whole."""
        whole = self.kernel_rows <= 3 or (work.height.taps == self.kernel_rows and work.height.phases == 1)
        return whole and (self.kernel_columns % 4 == 0 or self.chunks(work) == 1)
