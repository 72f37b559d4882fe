"""The cuBLAS replacement against NumPy, through CuPy's thin wrapper, so that a test chooses every argument."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("emulated")]
Array = NDArray[Any]

TYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
PLAIN, TRANSPOSED, CONJUGATED = 0, 1, 2
NUMBERS = {"f2": 2, "bf2": 14, "f4": 0, "f8": 1, "c8": 4, "c16": 5, "i1": 3, "i4": 10}  # cudaDataType
IN_SINGLE, IN_DOUBLE, IN_INTEGERS = 68, 70, 72  # cublasComputeType_t
NAN = float("nan")


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


def cupy() -> Any:
    return importlib.import_module("cupy")


def numbers(random: np.random.Generator, shape: tuple[int, ...], letter: str) -> Array:
    dtype = np.dtype(TYPES[letter])
    made = random.standard_normal(shape) + (1j * random.standard_normal(shape) if dtype.kind == "c" else 0)
    return made.astype(dtype)


def in_columns(matrix: Array, stride: int) -> Any:
    """Return a column-major copy on the device with leading dimension `stride`; the padding is NaN."""
    room = np.full((matrix.shape[1], stride), NAN, matrix.dtype)
    room[:, : matrix.shape[0]] = matrix.T
    return cupy().asarray(room)


def applied(matrix: Array, operation: int) -> Array:
    return matrix if operation == PLAIN else matrix.T if operation == TRANSPOSED else matrix.conj().T


def stored(matrix: Array, operation: int) -> Array:
    """Return the matrix A for which op(A) is `matrix`: each of the three operations is its own inverse."""
    return applied(matrix, operation)


def call(name: str, *arguments: Any) -> None:
    """Call a cuBLAS function by CuPy's wrapper; arrays of the host and of the device are passed by address."""
    module = importlib.import_module("cupy.cuda").cublas
    kept = [np.asarray(given) if isinstance(given, np.generic) else given for given in arguments]
    addresses = [
        given.ctypes.data if isinstance(given, np.ndarray) else given.data.ptr if hasattr(given, "data") else given
        for given in kept
    ]
    getattr(module, name)(handle(), *addresses)


def handle() -> int:
    return int(cupy().cuda.device.get_cublas_handle())


@contextmanager
def factors_on_device() -> Iterator[None]:
    cublas = importlib.import_module("cupy.cuda").cublas
    cublas.setPointerMode(handle(), cublas.CUBLAS_POINTER_MODE_DEVICE)
    try:
        yield
    finally:
        cublas.setPointerMode(handle(), cublas.CUBLAS_POINTER_MODE_HOST)


def close(found: Any, wanted: Array) -> None:
    precision = np.finfo(wanted.dtype).eps * 100
    np.testing.assert_allclose(cupy().asnumpy(found), wanted, rtol=precision, atol=precision)


# ---------------------------------------------------------------- products of matrices


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("operation_b", [PLAIN, TRANSPOSED, CONJUGATED])
@pytest.mark.parametrize("operation_a", [PLAIN, TRANSPOSED, CONJUGATED])
def test_products_of_matrices(letter: str, operation_a: int, operation_b: int, random: np.random.Generator) -> None:
    m, n, k = 5, 3, 7
    a, b, c = (numbers(random, shape, letter) for shape in ((m, k), (k, n), (m, n)))
    alpha, beta = numbers(random, (2,), letter)
    on_device = in_columns(c, 9)
    left, right = in_columns(stored(a, operation_a), 8), in_columns(stored(b, operation_b), 10)
    call(f"{letter}gemm", operation_a, operation_b, m, n, k, alpha, left, 8, right, 10, beta, on_device, 9)
    close(on_device[:, :m].T, alpha * (a @ b) + beta * c)
    assert cupy().isnan(on_device[:, m:]).all()  # the padding is unchanged


@pytest.mark.parametrize("letter", TYPES)
def test_a_matrix_without_a_factor_is_not_read(letter: str, random: np.random.Generator) -> None:
    a, b = numbers(random, (4, 4), letter), numbers(random, (4, 4), letter)
    zero, one = (np.asarray(number, a.dtype) for number in (0, 1))
    unwritten, result = cupy().empty((4, 4), a.dtype), in_columns(np.full((4, 4), NAN, a.dtype), 4)
    call(f"{letter}gemm", 0, 0, 4, 4, 4, one, in_columns(a, 4), 4, in_columns(b, 4), 4, zero, result, 4)
    close(result.T, a @ b)
    call(f"{letter}gemm", 0, 0, 4, 4, 4, zero, unwritten, 4, unwritten, 4, one, result, 4)
    close(result.T, a @ b)
    cupy().cuda.Device().synchronize()


def test_nan_in_a_matrix_is_not_lost() -> None:
    a, b = np.array([[0, NAN]], np.float32), np.array([[1], [0]], np.float32)
    result = cupy().zeros((1, 1), np.float32)
    call("sgemm", 0, 0, 1, 1, 2, np.float32(1), in_columns(a, 1), 1, in_columns(b, 2), 2, np.float32(0), result, 1)
    assert cupy().isnan(result).all()


def test_empty_products(random: np.random.Generator) -> None:
    c = numbers(random, (3, 2), "d")
    on_device, nothing = in_columns(c, 3), cupy().empty((1,))
    call("dgemm", 0, 0, 3, 2, 0, np.float64(2), nothing, 3, nothing, 1, np.float64(3), on_device, 3)
    close(on_device.T, 3 * c)
    call("dgemm", 0, 0, 0, 2, 4, np.float64(2), nothing, 1, on_device, 4, np.float64(3), nothing, 1)
    cupy().cuda.Device().synchronize()


@pytest.mark.parametrize("letter", TYPES)
def test_batches(letter: str, random: np.random.Generator) -> None:
    a, b = numbers(random, (3, 4, 6), letter), numbers(random, (3, 6, 5), letter)
    one, zero = np.ones(1, a.dtype), np.zeros(1, a.dtype)
    left, right = (cupy().asarray(part.transpose(0, 2, 1).copy()) for part in (a, b))
    for name in ("gemmStridedBatched", "gemmBatched"):
        result = cupy().full((3, 5, 4), NAN, a.dtype)
        if name == "gemmBatched":
            lists = [
                cupy().asarray([part[entry].data.ptr for entry in range(3)], np.uint64)
                for part in (left, right, result)
            ]
            call(letter + name, 0, 0, 4, 5, 6, one, lists[0], 4, lists[1], 6, zero, lists[2], 4, 3)
        else:
            call(letter + name, 0, 0, 4, 5, 6, one, left, 4, 24, right, 6, 30, zero, result, 4, 20, 3)
        close(result.transpose(0, 2, 1), a @ b)


def test_a_batch_may_share_a_matrix(random: np.random.Generator) -> None:
    a, b = numbers(random, (4, 6), "d"), numbers(random, (3, 6, 5), "d")
    left, right = in_columns(a, 4), cupy().asarray(b.transpose(0, 2, 1).copy())
    result = cupy().empty((3, 5, 4))
    one, zero = np.float64(1), np.float64(0)
    call("dgemmStridedBatched", 0, 0, 4, 5, 6, one, left, 4, 0, right, 6, 30, zero, result, 4, 20, 3)
    close(result.transpose(0, 2, 1), a @ b)


@pytest.mark.parametrize(
    ("of_operands", "of_result", "compute"),
    [
        ("f2", "f2", IN_SINGLE),
        ("f2", "f4", IN_SINGLE),
        ("f4", "f4", IN_SINGLE),
        ("i1", "f4", IN_SINGLE),
        ("i1", "i4", IN_INTEGERS),
        ("c8", "c8", IN_SINGLE),
        ("f8", "f8", IN_DOUBLE),
        ("c16", "c16", IN_DOUBLE),
    ],
)
def test_products_of_types_told_by_number(
    of_operands: str, of_result: str, compute: int, random: np.random.Generator
) -> None:
    """Operands are small integers, so every product and sum is exact in all of these types."""
    a, b = random.integers(-5, 6, (2, 4, 9)), random.integers(-5, 6, (2, 9, 3))
    scalar = {"f2": "f4"}.get(of_result, of_result)
    one, zero = np.ones(1, scalar), np.zeros(1, scalar)
    left, right = (cupy().asarray(part.transpose(0, 2, 1).astype(of_operands)) for part in (a, b))
    types = NUMBERS[of_operands], NUMBERS[of_operands], NUMBERS[of_result]
    result = cupy().empty((2, 3, 4), of_result)
    batch = (left, types[0], 4, 36, right, types[1], 9, 27, zero, result, types[2], 4, 12, 2, compute, -1)
    call("gemmStridedBatchedEx", 0, 0, 4, 3, 9, one, *batch)
    np.testing.assert_array_equal(cupy().asnumpy(result.transpose(0, 2, 1)), (a @ b).astype(of_result))
    alone = cupy().empty((3, 4), of_result)
    matrices = (left, types[0], 4, right, types[1], 9, zero, alone, types[2], 4)
    call("gemmEx", 0, 0, 4, 3, 9, one, *matrices, compute, -1)
    np.testing.assert_array_equal(cupy().asnumpy(alone.T), (a[0] @ b[0]).astype(of_result))


def test_sums_of_halves_are_made_in_single_precision() -> None:
    ones = cupy().ones((4096, 1), np.float16)
    assert float((ones.T @ ones)[0, 0]) == 4096  # in float16, 2048 + 1 is 2048


# ---------------------------------------------------------------- other matrices


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize(("operation_a", "operation_b"), [(0, 0), (1, 2), (2, 0)])
def test_sums_of_matrices(letter: str, operation_a: int, operation_b: int, random: np.random.Generator) -> None:
    a, b = numbers(random, (4, 6), letter), numbers(random, (4, 6), letter)
    alpha, beta = numbers(random, (2,), letter)
    result = in_columns(np.full((4, 6), NAN, a.dtype), 5)
    left, right = in_columns(stored(a, operation_a), 7), in_columns(stored(b, operation_b), 8)
    call(f"{letter}geam", operation_a, operation_b, 4, 6, alpha, left, 7, beta, right, 8, result, 5)
    close(result[:, :4].T, alpha * a + beta * b)


def test_a_sum_in_place(random: np.random.Generator) -> None:
    a, b = numbers(random, (4, 6), "s"), numbers(random, (4, 6), "s")
    result = in_columns(a, 4)
    call("sgeam", 0, 0, 4, 6, np.float32(2), result, 4, np.float32(-1), in_columns(b, 4), 4, result, 4)
    close(result.T, 2 * a - b)


@pytest.mark.parametrize("letter", TYPES)
def test_products_with_a_diagonal(letter: str, random: np.random.Generator) -> None:
    a, rows, columns = (numbers(random, shape, letter) for shape in ((4, 6), (4,), (6,)))
    for side, diagonal, wanted in ((0, rows, rows[:, None] * a), (1, columns, a * columns)):
        result = in_columns(np.full((4, 6), NAN, a.dtype), 4)
        call(f"{letter}dgmm", side, 4, 6, in_columns(a, 5), 5, cupy().asarray(diagonal), 1, result, 4)
        close(result.T, wanted)


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("operation", [PLAIN, TRANSPOSED])
def test_symmetric_products(letter: str, part: int, operation: int, random: np.random.Generator) -> None:
    a, c = numbers(random, (4, 6), letter), numbers(random, (4, 4), letter)
    alpha, beta = numbers(random, (2,), letter)
    result = in_columns(c, 4)
    call(f"{letter}syrk", part, operation, 4, 6, alpha, in_columns(stored(a, operation), 6), 6, beta, result, 4)
    triangle = (np.triu if part else np.tril)(np.ones((4, 4), bool))
    close(result.T, np.where(triangle, alpha * (a @ a.T) + beta * c, c))


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("operation", [PLAIN, TRANSPOSED, CONJUGATED])
@pytest.mark.parametrize(("step_x", "step_y"), [(1, 1), (2, 3), (-1, -2)])
def test_products_with_a_vector(
    letter: str, operation: int, step_x: int, step_y: int, random: np.random.Generator
) -> None:
    a, x, y = (numbers(random, shape, letter) for shape in ((4, 6), (6,), (4,)))
    alpha, beta = numbers(random, (2,), letter)
    matrix = in_columns(stored(a, operation), 7)
    m, n = (4, 6) if operation == PLAIN else (6, 4)
    into = spread(y, step_y)
    call(f"{letter}gemv", operation, m, n, alpha, matrix, 7, spread(x, step_x), step_x, beta, into, step_y)
    close(gathered(into, step_y), alpha * (a @ x) + beta * y)


def spread(vector: Array, step: int) -> Any:
    """Return a copy on the device with an increment, reversed if it is negative as in BLAS; the gaps are NaN."""
    room = np.full(len(vector) * abs(step), NAN, vector.dtype)
    room[:: abs(step)] = vector[:: 1 if step > 0 else -1]
    return cupy().asarray(room)


def gathered(room: Any, step: int) -> Any:
    return room[:: abs(step)][:: 1 if step > 0 else -1]


@pytest.mark.parametrize(("name", "letter"), [("ger", "s"), ("ger", "d"), ("geru", "c"), ("gerc", "c"), ("gerc", "z")])
def test_outer_products(name: str, letter: str, random: np.random.Generator) -> None:
    a, x, y = (numbers(random, shape, letter) for shape in ((4, 6), (4,), (6,)))
    alpha = numbers(random, (), letter)
    result = in_columns(a, 5)
    call(letter + name, 4, 6, alpha, spread(x, 2), 2, spread(y, -1), -1, result, 5)
    close(result[:, :4].T, a + alpha * np.outer(x, y.conj() if name == "gerc" else y))


# ---------------------------------------------------------------- vectors


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("step", [1, 3, -2])
def test_scalar_products(letter: str, step: int, random: np.random.Generator) -> None:
    x, y = numbers(random, (9,), letter), numbers(random, (9,), letter)
    names = {"dotu": x @ y, "dotc": x.conj() @ y} if letter in "cz" else {"dot": x @ y}
    for name, wanted in names.items():
        found = np.zeros((), x.dtype)
        call(letter + name, 9, spread(x, step), step, spread(y, 1), 1, found)
        close(found, np.asarray(wanted))


@pytest.mark.parametrize("letter", TYPES)
def test_sums_of_vectors(letter: str, random: np.random.Generator) -> None:
    x, y, alpha = numbers(random, (9,), letter), numbers(random, (9,), letter), numbers(random, (), letter)
    into = spread(y, 2)
    call(f"{letter}axpy", 9, alpha, spread(x, -1), -1, into, 2)
    close(gathered(into, 2), alpha * x + y)


@pytest.mark.parametrize("name", ["sscal", "dscal", "cscal", "zscal", "csscal", "zdscal"])
def test_multiples(name: str, random: np.random.Generator) -> None:
    letter = name[0]
    x = numbers(random, (9,), letter)
    alpha = numbers(random, (), {"csscal": "s", "zdscal": "d"}.get(name, letter))
    into = spread(x, 2)
    call(name, 9, alpha, into, 2)
    close(gathered(into, 2), alpha * x)


@pytest.mark.parametrize("letter", TYPES)
def test_norms_and_extremes(letter: str, random: np.random.Generator) -> None:
    x = numbers(random, (9,), letter)
    real = {"c": "sc", "z": "dz"}.get(letter, letter)
    magnitudes = abs(x.real) + abs(x.imag)
    results = {
        f"{real}nrm2": np.sqrt((abs(x) ** 2).sum()),
        f"{real}asum": magnitudes.sum(),
        f"i{letter}amax": np.int32(magnitudes.argmax() + 1),
        f"i{letter}amin": np.int32(magnitudes.argmin() + 1),
    }
    for name, wanted in results.items():
        found = np.zeros((), np.asarray(wanted).dtype)
        call(name, 9, spread(x, 2), 2, found)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_norm_of_large_numbers_is_finite() -> None:
    found = np.zeros((), np.float32)
    call("snrm2", 2, cupy().asarray([3e30, 4e30], np.float32), 1, found)
    np.testing.assert_allclose(found, 5e30, rtol=1e-6)


def test_an_empty_vector_has_no_extreme() -> None:
    found = np.full((), -1, np.int32)
    call("isamax", 0, cupy().empty(1, np.float32), 1, found)
    assert found == 0


# ---------------------------------------------------------------- streams, factors of the device


def test_factors_of_the_device_are_read_when_the_stream_comes_to_them() -> None:
    alpha, beta = cupy().asarray(1.0), cupy().asarray(0.0)
    a, result = cupy().ones((2, 2)), cupy().empty((2, 2))
    with factors_on_device():
        alpha[...] = 3
        call("dgemm", 0, 0, 2, 2, 2, alpha, a, 2, a, 2, beta, result, 2)
    assert (result == 6).all()


def test_results_on_the_device() -> None:
    result = cupy().empty((), np.float32)
    with factors_on_device():
        call("sdot", 3, cupy().arange(3, dtype="f4"), 1, cupy().arange(3, dtype="f4"), 1, result)
    assert result == 5


def test_work_comes_after_what_its_stream_was_given_before() -> None:
    xp = cupy()
    x = xp.zeros((2, 2))
    xp.cuda.Device().synchronize()
    with xp.cuda.Stream(non_blocking=True) as stream:
        x += 1
        y = x @ x
        y *= 2
        stream.synchronize()
    assert (y == 4).all()


def test_work_of_another_stream_is_not_waited_for() -> None:
    xp = cupy()
    x = xp.zeros((2, 2))
    xp.cuda.Device().synchronize()
    one, other = xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(non_blocking=True)
    with one:
        x += 1
    with other:
        y = x @ x
        other.synchronize()
    one.synchronize()
    assert (y == 0).all()


# ---------------------------------------------------------------- what is found


def synchronised(text: str) -> Any:
    return pytest.raises(cupy().cuda.runtime.CUDARuntimeError, match=text)


@pytest.fixture
def memory() -> Iterator[int]:
    """The address of 16 unwritten bytes of device memory, allocated without CuPy's memory pool."""
    runtime = cupy().cuda.runtime
    address = runtime.malloc(16)
    yield address
    runtime.free(address)


def test_an_unwritten_operand_is_found(memory: int) -> None:
    result = cupy().empty((2, 2), np.float32)
    call("sgemm", 0, 0, 2, 2, 2, np.float32(1), memory, 2, memory, 2, np.float32(0), result, 2)
    with synchronised("cublasSgemm: uninitialised global read of A"):
        cupy().cuda.Device().synchronize()


def test_a_read_beyond_the_end_is_found(memory: int) -> None:
    cupy().cuda.runtime.memset(memory, 0, 16)
    result = cupy().empty((2, 2), np.float32)
    call("sgemm", 0, 0, 2, 2, 3, np.float32(1), memory, 2, memory, 3, np.float32(0), result, 2)
    with synchronised("cublasSgemm: global memory out of bounds: read of 8 bytes of A"):
        cupy().cuda.Device().synchronize()


def test_memory_of_the_host_is_out_of_bounds() -> None:
    of_host = np.ones(4, np.float32)
    result = cupy().ones(4, np.float32)
    call("saxpy", 4, np.float32(1), of_host, 1, result, 1)
    with synchronised("cublasSaxpy: global memory out of bounds: read of 16 bytes of x"):
        cupy().cuda.Device().synchronize()


def test_the_end_of_an_array_of_a_pool_is_its_end() -> None:
    x, y = cupy().ones(3, np.float32), cupy().ones(4, np.float32)
    call("saxpy", 4, np.float32(1), x, 1, y, 1)
    with synchronised("cublasSaxpy: global memory out of bounds: read of 16 bytes of x"):
        cupy().cuda.Device().synchronize()


def test_a_result_for_the_host_tells_what_was_found(memory: int, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_EXECUTION_FAILED"):
        call("snrm2", 4, memory, 1, np.zeros((), np.float32))
    assert "cublasSnrm2: uninitialised global read of x" in capfd.readouterr().err


def test_wrong_sizes_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    a, one = cupy().ones((2, 2), np.float32), np.float32(1)
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_INVALID_VALUE"):
        call("sgemm", 0, 0, 2, 2, 2, one, a, 1, a, 2, one, a, 2)
    assert "cublasSgemm: lda is less than the rows of A" in capfd.readouterr().err


def test_what_is_missing_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    a, one = cupy().ones((2, 2), np.float32), np.float32(1)
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_NOT_SUPPORTED"):
        call("strsm", 0, 0, 0, 0, 2, 2, one, a, 2, a, 2)
    assert "cublasStrsm_v2 is not emulated" in capfd.readouterr().err


def test_a_handle_that_was_destroyed_is_refused() -> None:
    cublas = importlib.import_module("cupy.cuda").cublas
    made = cublas.create()
    cublas.destroy(made)
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_NOT_INITIALIZED"):
        cublas.sscal(made, 1, np.ones(1, np.float32).ctypes.data, 0, 1)


# ---------------------------------------------------------------- CuPy's own functions


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
def test_functions_of_cupy(dtype: str, random: np.random.Generator) -> None:
    xp = cupy()
    a, b = (random.integers(-4, 5, shape).astype(dtype) for shape in ((3, 4, 5), (3, 5, 2)))
    x, y = xp.asarray(a), xp.asarray(b)
    for found, wanted in (
        (x @ y, a @ b),
        (xp.dot(x[0], y[0]), a[0] @ b[0]),
        (xp.tensordot(x, y, ((2, 0), (1, 0))), np.tensordot(a, b, ((2, 0), (1, 0)))),
        (xp.vdot(x, x), np.vdot(a, a)),
        (xp.asfortranarray(x[0]), a[0]),
        (xp.asfortranarray(x), a),
    ):
        np.testing.assert_array_equal(xp.asnumpy(found), wanted)
    np.testing.assert_allclose(xp.asnumpy(xp.linalg.norm(x)), np.linalg.norm(a), rtol=1e-2 if dtype == "f2" else 1e-5)
