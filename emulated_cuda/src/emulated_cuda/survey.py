"""Compare CuPy's functions on the emulated device with NumPy's, and print one line for each: ok, or the error.

Usage: ``python -m emulated_cuda.survey``
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

_RANDOM = np.random.default_rng(0)
A = _RANDOM.standard_normal((7, 5, 6)).astype(np.float32)
B = _RANDOM.standard_normal((5, 1)).astype(np.float32)
INTEGERS = _RANDOM.integers(-50, 50, (13, 17))
UNARY = "exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arctanh sqrt cbrt"
UNARY += " floor ceil trunc rint sign reciprocal square isfinite signbit"
POSITIVE = {"log", "log2", "log10", "log1p", "sqrt", "cbrt", "reciprocal"}
SMALL = {"arcsin", "arccos", "arctanh"}
_SAXPY = 'extern "C" __global__ void saxpy(float a, const float* x, float* y) { y[threadIdx.x] += a * x[threadIdx.x]; }'

Compute = Callable[[Any], Any]


def _raw_module(xp: Any) -> Any:
    """Compute 2x + y by a kernel in CUDA C++."""
    x, y = xp.arange(8, dtype="f4"), xp.ones(8, "f4")
    if xp is np:
        return 2 * x + y
    xp.RawModule(code=_SAXPY).get_function("saxpy")((1,), (8,), (np.float32(2), x, y))
    return y


def _elementwise_kernel(xp: Any) -> Any:
    """Compute x * x + 1."""
    x = xp.asarray(A)
    return x * x + 1 if xp is np else xp.ElementwiseKernel("T x", "T y", "y = x * x + 1", "squared")(x)


def _reduction_kernel(xp: Any) -> Any:
    """Sum magnitudes along axis 1."""
    x = xp.asarray(A)
    if xp is np:
        return abs(x).sum(axis=1)
    return xp.ReductionKernel("T x", "T y", "abs(x)", "a + b", "y = a", "0", "magnitudes")(x, axis=1)


def _fused(xp: Any) -> Any:
    """Compute a function that CuPy fuses into one kernel."""

    def compute(x: Any, y: Any) -> Any:
        return xp.sqrt(x * x + y * y)

    return (compute if xp is np else xp.fuse()(compute))(xp.asarray(A), xp.asarray(B))


def _scatter(xp: Any) -> Any:
    """Add to elements with repeated indices."""
    sums = xp.zeros(10)
    xp.add.at(sums, xp.asarray(INTEGERS[0] % 10), 1.5)
    return sums


CASES: dict[str, Compute] = {
    "arange": lambda xp: xp.arange(10) * 2,
    "broadcasting": lambda xp: xp.asarray(A) + xp.asarray(B),
    "float16": lambda xp: xp.asarray(A).astype("f2") * xp.asarray(B).astype("f2"),
    "complex64": lambda xp: (xp.asarray(A) + 1j * xp.asarray(A)[::-1]) * (2 - 3j),
    "complex division": lambda xp: (xp.asarray(A) + 1j) / (xp.asarray(A)[::-1] - 2j),
    "abs of complex128": lambda xp: abs(xp.asarray(A).astype("c16") + 1j),
    "sum": lambda xp: xp.asarray(A).sum(),
    "sum over an axis": lambda xp: xp.asarray(A).sum(axis=1),
    "sum of many": lambda xp: xp.arange(20000, dtype="f4").sum(),
    "max": lambda xp: xp.asarray(A).max(axis=(0, 2)),
    "argmax": lambda xp: xp.asarray(A).argmax(axis=1),
    "mean, std": lambda xp: xp.stack([xp.asarray(A).mean(), xp.asarray(A).std()]),
    "any": lambda xp: (xp.asarray(A) > 0).any(axis=1),
    "take": lambda xp: xp.asarray(A).take(xp.asarray([3, 1, 2]), axis=1),
    "indices": lambda xp: xp.asarray(A)[xp.asarray([0, 2, 5]), :, xp.asarray([1, 1, 3])],
    "a mask": lambda xp: xp.asarray(A)[xp.asarray(A) > 0],
    "nonzero": lambda xp: xp.stack(xp.nonzero(xp.asarray(INTEGERS) > 10)),
    "concatenate": lambda xp: xp.concatenate([xp.asarray(A), xp.asarray(A) * 2], axis=1),
    "astype": lambda xp: (xp.asarray(A) * 100).astype("i4").astype("i8").astype("i2"),
    "where": lambda xp: xp.where(xp.asarray(A) > 0, xp.asarray(A), 0),
    "pad": lambda xp: xp.pad(xp.asarray(A), ((1, 2), (0, 0), (3, 1)), mode="edge"),
    "roll": lambda xp: xp.roll(xp.asarray(A), 2, axis=1),
    "transpose": lambda xp: xp.ascontiguousarray(xp.asarray(A).transpose(2, 0, 1)),
    "power": lambda xp: abs(xp.asarray(A).astype("f8")) ** 2.5,
    "integers": lambda xp: xp.asarray(INTEGERS) // 7 + xp.asarray(INTEGERS) % -3,
    "interp": lambda xp: xp.interp(xp.linspace(0, 4, 9), xp.arange(5.0), xp.arange(5.0) ** 2),
    "convolve": lambda xp: xp.convolve(xp.arange(20.0), xp.arange(3.0)),
    "bincount": lambda xp: xp.bincount(xp.asarray(INTEGERS[0] + 50)),
    "histogram": lambda xp: xp.histogram(xp.asarray(A), 10, (-2, 2))[0],
    "searchsorted": lambda xp: xp.searchsorted(xp.arange(10.0), xp.asarray(A[0, 0])),
    "add.at": _scatter,
    "ElementwiseKernel": _elementwise_kernel,
    "ReductionKernel": _reduction_kernel,
    "RawModule": _raw_module,
    "fuse": _fused,
    "matmul": lambda xp: xp.asarray(A)[0] @ xp.asarray(A)[1].T,
    "matmul of a stack": lambda xp: xp.asarray(A) @ xp.asarray(A).transpose(0, 2, 1),
    "matmul of integers": lambda xp: xp.asarray(INTEGERS) @ xp.asarray(INTEGERS).T,
    "dot": lambda xp: xp.dot(xp.asarray(A)[0], xp.asarray(A)[1].T),
    "vdot of complex64": lambda xp: xp.vdot(xp.asarray(A) + 1j, xp.asarray(A) - 2j),
    "tensordot": lambda xp: xp.tensordot(xp.asarray(A), xp.asarray(A), ((0, 2), (0, 2))),
    "einsum": lambda xp: xp.einsum("ijk,ilk->jl", xp.asarray(A), xp.asarray(A)),
    "outer": lambda xp: xp.outer(xp.asarray(A[0, 0]), xp.asarray(A[1, 1])),
    "kron": lambda xp: xp.kron(xp.asarray(A[0]), xp.asarray(A[1])),
    "asfortranarray": lambda xp: xp.asfortranarray(xp.asarray(A[0])),
    "linalg.norm": lambda xp: xp.linalg.norm(xp.asarray(A)),
    "trace": lambda xp: xp.trace(xp.asarray(INTEGERS)),
    "cumsum": lambda xp: xp.cumsum(xp.asarray(INTEGERS)),
    "cumsum over an axis": lambda xp: xp.cumsum(xp.asarray(A), axis=1),
    "sort": lambda xp: xp.sort(xp.asarray(A), axis=1),
    "argsort": lambda xp: xp.argsort(xp.asarray(A), axis=1),
    "unique": lambda xp: xp.unique(xp.asarray(INTEGERS)),
    "median": lambda xp: xp.median(xp.asarray(A)),
    "fft": lambda xp: xp.fft.fft(xp.asarray(A)),
    "linalg.solve": lambda xp: xp.linalg.solve(xp.eye(3), xp.ones(3)),
    "linalg.svd": lambda xp: xp.linalg.svd(xp.asarray(A[0]))[1],
}

# Functions that are not supported on an emulated device, with the reason.
NOT_SERVED = {
    "sort": "Thrust",
    "argsort": "Thrust",
    "unique": "Thrust",
    "median": "Thrust",
    "convolve": "cuFFT",
    "fft": "cuFFT",
    "linalg.solve": "cuSOLVER",
    "linalg.svd": "cuSOLVER",
    "cumsum over an axis": "a barrier that some lanes of a warp do not reach, which PTX leaves undefined",
}


def _unary(name: str, dtype: str) -> Compute:
    """Return a case for a unary function, with operands in its domain."""

    def compute(xp: Any) -> Any:
        x = xp.asarray(A).astype(dtype)
        x = abs(x) + x.dtype.type(0.1) if name in POSITIVE else x / x.dtype.type(8) if name in SMALL else x
        return getattr(xp, name)(x)

    return compute


CASES |= {f"{name} of {dtype}": _unary(name, dtype) for name in UNARY.split() for dtype in ("f2", "f4", "f8")}


def compare(compute: Compute) -> None:
    """Raise an error unless CuPy's result equals NumPy's up to rounding."""
    cupy: Any = importlib.import_module("cupy")
    found, wanted = cupy.asnumpy(compute(cupy)), np.asarray(compute(np))
    tolerance = 1e-3 if wanted.dtype.itemsize <= 4 else 1e-5
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance / 10)


def main() -> int:
    """Print the table; return 1 if a function that should work fails, else 0."""
    from .install import install

    library = install()
    passed, unexpected = 0, False
    for name, compute in CASES.items():
        start = time.perf_counter()
        try:
            compare(compute)
            outcome, passed = "ok", passed + 1
        except Exception as error:
            unexpected |= name not in NOT_SERVED
            outcome = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:150]}"
        print(f"{name:24} {time.perf_counter() - start:6.2f} s  {outcome}", flush=True)
    print(f"{passed} of {len(CASES)} as NumPy; {library.emulated_launches()} kernels launched")
    return int(unexpected)


if __name__ == "__main__":
    sys.exit(main())
