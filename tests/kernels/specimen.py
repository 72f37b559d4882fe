"""Specimens of kernels: calls that a kernel must compute, with inputs and expected results.

Small shapes hide mistakes: a kernel that confuses height and width, or the strides, pads and dilations of two axes, is
right if they are equal, or if one block computes all outputs. Specimens have unequal axes, several blocks in each
direction, and more slices of K than pipeline stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

import gpuconv
from gpuconv.cuda.plan.limits import representative
from gpuconv.rules import geometry
from tests.emulator import emulated_cuda
from tests.harness.emulated import architecture, indices, preferred
from tests.kernels.planning import Recorded, recording
from tests.oracle import oracle
from tests.oracle.finish import with_finish
from tests.oracle.operands import LAYOUTS, values
from tests.oracle.oracle import assert_close, assert_same
from tests.oracle.strategies import Problem

Ints = tuple[int, ...]
INTEGERS = ("integers", "integers", "integers")
INFINITE_WEIGHTS = ("integers", "seldom infinite", "integers")
INFINITE_INPUTS = ("seldom infinite", "integers", "integers")
_DTYPES = ("bfloat16", "float16", "float32", "float64", "uint8", "int8", "complex64", "complex128")


@dataclass(frozen=True, eq=False)
class Specimen:
    """One call, or several calls of one kernel.

    Attributes
    ----------
    kernel : str
        Name of the candidate that must compute it: the kernel's name with suffixes of the plan, ``_direct`` or
        ``_split``. It contains the dtype, the precision and whether indices have 64 bits.
    multiprocessors : int, optional
        Number that planners see; None: that of the representative device.
    """

    kernel: str
    multiprocessors: int | None = field(default=None, kw_only=True)

    least_blocks: ClassVar[int] = 3  # fewest blocks of the kernel in each direction

    @property
    def dtype(self) -> Any:
        return np.dtype(next(name for name in _DTYPES if f"_{name}_" in self.kernel))

    @property
    def precision(self) -> str:
        return next((name for name in ("3xtf32", "tf32") if f"_{name}_" in self.kernel), "ieee")

    @property
    def arithmetic(self) -> str:
        """The arithmetic whose error bound applies; see `oracle.ARITHMETIC`."""
        return "tensor cores" if "mma_" in self.kernel and self.dtype.itemsize == 2 else self.precision

    @property
    def wide(self) -> bool:
        return self.kernel.endswith("_wide")

    @property
    def variant(self) -> str:
        """Name of the kernel itself."""
        return self.kernel.removesuffix("_split").removesuffix("_direct")

    @property
    def limits_of(self) -> str:
        """Architecture whose representative device planners see."""
        return "sm_90a"

    @property
    def tiles_per_block(self) -> int:
        """Factor for the option ``max_steps``, which is meant for blocks with one tile."""
        return 1

    @cached_property
    def inputs(self) -> Any:
        """The arrays of the call, computed by NumPy and the CPU backend."""
        raise NotImplementedError

    def compute(self) -> Any:
        """Make the call on the current device, and return what `check` compares."""
        raise NotImplementedError

    def check(self, found: Any) -> None:
        """Raise AssertionError if a result is wrong."""
        raise NotImplementedError

    def blocks(self, launch: Any) -> list[int]:
        """Return the number of blocks of a launch in each direction."""
        return [launch.grid[0]]

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Make gpuconv pick this kernel."""
        with indices(self.wide), preferred(self.kernel), gpuconv.precision(self.precision):
            yield

    def __call__(self, architecture: str | None = None, **options: Any) -> Any:
        """Run the call on an emulated device, and return the device; options are those of `emulated_cuda`.

        Raises
        ------
        AssertionError
            A result is wrong.
        EmulatorError
            A kernel violated a check of the emulator.
        """
        given = {"multiprocessors": self.multiprocessors, "limits_of": self.limits_of, **options}
        if "max_steps" in given:
            given["max_steps"] *= self.tiles_per_block
        _ = self.inputs
        with emulated_cuda(architecture, **given) as emulated, self.settings():
            found = self.compute()
        self.check(found)
        return emulated

    def planned(self) -> Recorded:
        """Plan the call without running anything; needs no compiler."""
        limits = representative(self.limits_of).limits
        limits = replace(limits, multiprocessors=self.multiprocessors or limits.multiprocessors)
        _ = self.inputs
        with recording(limits) as recorded, self.settings():
            self.compute()
        return recorded


def filled(kind: str, seed: int, shape: Ints, dtype: Any) -> Any:
    """Return values as `operands.values` does, or small integers with rare infinities.

    "seldom infinite" has one infinity in 60 elements, "one in 99 infinite" one in 99. Many sums then stay finite, some
    only because one tap is out of bounds.
    """
    if not kind.endswith("infinite"):
        return values(kind, seed, shape, dtype)
    generator = np.random.default_rng(seed)
    often = 60 if kind == "seldom infinite" else int(kind.split()[2])
    return np.where(generator.random(shape) < 1 / often, np.inf, generator.integers(-4, 5, shape)).astype(dtype)


def new(layout: str | None, shape: Ints, dtype: Any) -> Any:
    """Return an array to be overwritten, or None without a layout."""
    return None if layout is None else LAYOUTS[layout](np.full(shape, 7, dtype))


# ---------------------------------------------------------------- forward calls


@dataclass(frozen=True, eq=False)
class Forward(Specimen):
    """One call of Conv, ConvTranspose or AveragePool.

    Attributes
    ----------
    problem : Problem
    kinds : tuple of str
        Kinds of the values of x, w and b, as `filled` takes them.
    layout : str
        Memory layout of the inputs.
    out : str, optional
        Memory layout of an ``out`` array that the caller provides; None: a new array.
    packed : bool
        Whether weights are packed before the call.
    activation
        Activation, together with a residual in the result's layout; None: neither.
    factors : str, optional
        Precision, if the kernel's name does not contain it.
    """

    problem: Problem
    kinds: tuple[str, ...] = INTEGERS
    layout: str = "contiguous"
    out: str | None = None
    packed: bool = False
    activation: Any = None
    factors: str | None = None

    @property
    def precision(self) -> str:
        return self.factors or super().precision

    @property
    def is_wgmma(self) -> bool:
        return "_wgmma_" in self.kernel

    @property
    def tiles_per_block(self) -> int:
        return 10 if self.is_wgmma else 1

    @property
    def limits_of(self) -> str:
        """An architecture that has the kernel; together, specimens cover the limits of all."""
        return "sm_90a" if self.is_wgmma else architecture(self.dtype, self.problem.rank)

    @cached_property
    def inputs(self) -> list[Any]:
        """x, w and b, as far as the problem has them."""
        shapes = zip(self.problem.shapes, self.kinds, strict=False)
        return [
            None if shape is None else LAYOUTS[self.layout](filled(kind, seed, shape, self.dtype))
            for seed, (shape, kind) in enumerate(shapes)
        ]

    @cached_property
    def expected(self) -> Any:
        """The result by definition, before the residual."""
        return getattr(oracle, self.problem.operator)(*self.inputs, **self.problem.attributes)

    @cached_property
    def y_shape(self) -> Ints:
        called = getattr(geometry, self.problem.operator)
        shape: Ints = called(*self.problem.shapes, **self.problem.attributes).y_shape
        return shape

    @cached_property
    def finish(self) -> dict[str, Any]:
        """The residual and the activation, as keywords of a call."""
        if self.activation is None:
            return {}
        residual = values("integers", 7, self.y_shape, self.dtype)
        return {"residual": LAYOUTS[self.out or "contiguous"](residual), "activation": self.activation}

    def call(self, x: Any, w: Any = None, *more: Any, **finish: Any) -> Any:
        """Call the public function, with packed weights if ``packed``."""
        inputs = [x, *more] if w is None else [x, gpuconv.pack(w, self.problem.operator) if self.packed else w, *more]
        out = new(self.out, self.y_shape, self.dtype)
        return getattr(gpuconv, self.problem.operator)(*inputs, **self.problem.attributes, **finish, out=out)

    def compute(self) -> Any:
        return self.call(*self.inputs, **self.finish)

    def check(self, found: Any) -> None:
        expected = self.expected
        if self.activation is not None:
            expected = with_finish(expected, *self.finish.values(), self.dtype)
        assert_close(found, expected, self.dtype, self.arithmetic)

    def blocks(self, launch: Any) -> list[int]:
        """Blocks along M and N of the GEMM, or of all outputs; for persistent kernels the number of tiles."""
        struct = np.frombuffer(launch.parameters, launch.variant.layout)[0]
        names = struct.dtype.names
        if self.is_wgmma:
            return [int(struct["items"])]
        if launch.variant.source in _SINGLE_ROWS or self.problem.w_shape is None:
            return [launch.grid[0]]
        inner = next((name for name in ("all", "problem") if name in names), None)
        common = struct["common"] if inner is None else struct[inner]["common"]
        if self.kernel.startswith("conv_few"):
            return [int(common["n_tiles"]["divisor"])]
        passes = int(struct["passes"]) if self.kernel.startswith("conv_stem") else 1  # passes over output channels
        return [int(common["m_tiles"]["divisor"]) * passes, int(common["n_tiles"]["divisor"])]


_SINGLE_ROWS = tuple(f"conv/direct/{name}.cu" for name in ("rows", "bands", "channels", "transpose"))
_INDICES = {  # memory layout of Indices by that of the values; otherwise reversed
    None: None,
    "reversed": "fortran",
    "strided rows": "off the vectors",
    "off the vectors": "off the vectors",
    "pixels off the vectors": "pixels off the vectors",
    "channels last": "channels last",
    "strided pixels": "channels last",
}


@dataclass(frozen=True, eq=False)
class MaxPool(Forward):
    """MaxPool with Indices, and also without if the kernel computes only values."""

    def compute(self) -> list[Any]:
        x, attributes = self.inputs[0], self.problem.attributes
        out = new(self.out, self.y_shape, self.dtype)
        places = new(_INDICES.get(self.out, "reversed"), self.y_shape, np.int64)
        pair = None if out is None else (out, places)
        both = gpuconv.max_pool(x, **attributes, return_indices=True, out=pair)
        both = [array.copy() for array in both]
        return both if self.kernel.endswith("_indices") else [*both, self.call(x)]

    def check(self, found: list[Any]) -> None:
        for array, right in zip(found, self.expected, strict=False):
            assert_same(array, right)
        for y in found[2:]:
            assert_same(y, self.expected[0], bits=False)  # +0 or -0


def is_split(launch: Any) -> bool:
    """Return whether a launch uses split-K."""
    struct = np.frombuffer(launch.parameters, launch.variant.layout)[0]
    return "splits" in (struct.dtype.names or ()) and int(struct["splits"]["count"]["divisor"]) > 1
