"""The cuRAND replacement: known answers of the generator, moments of distributions, reproducibility, bounds."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("emulated")]
COUNT = 20_000
DEFAULT, QUASI = 100, 200  # curandRngType_t
LENGTH_NOT_MULTIPLE = 105


def cupy() -> Any:
    return importlib.import_module("cupy")


def curand() -> Any:
    return importlib.import_module("cupy.cuda").curand


@pytest.fixture
def generator() -> Iterator[int]:
    made = curand().createGenerator(DEFAULT)
    curand().setPseudoRandomGeneratorSeed(made, 1)
    yield made
    curand().destroyGenerator(made)


def drawn(generator: int, function: str, count: int, dtype: str, *arguments: float) -> Any:
    result = cupy().empty(count, dtype)
    getattr(curand(), function)(generator, result.data.ptr, count, *arguments)
    return cupy().asnumpy(result)


def test_words_are_those_of_philox(generator: int) -> None:
    """The known answer of the authors' library for key 0 and counter 0."""
    curand().setPseudoRandomGeneratorSeed(generator, 0)
    words = drawn(generator, "generate", 4, "u4")
    assert [f"{word:08x}" for word in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


def test_the_same_seed_gives_the_same_numbers(generator: int) -> None:
    first, second = (drawn(generator, "generateUniform", 10, "f4") for _ in range(2))
    assert not (first == second).any()
    curand().setPseudoRandomGeneratorSeed(generator, 1)
    np.testing.assert_array_equal(drawn(generator, "generateUniform", 20, "f4"), [*first, *second])
    curand().setPseudoRandomGeneratorSeed(generator, 2)
    assert not (drawn(generator, "generateUniform", 10, "f4") == first).any()


def test_an_offset_skips_numbers(generator: int) -> None:
    whole = drawn(generator, "generate", 10, "u4")
    curand().setGeneratorOffset(generator, 3)
    np.testing.assert_array_equal(drawn(generator, "generate", 7, "u4"), whole[3:])


@pytest.mark.parametrize(("function", "dtype"), [("generateUniform", "f4"), ("generateUniformDouble", "f8")])
def test_uniform_numbers(function: str, dtype: str, generator: int) -> None:
    found = drawn(generator, function, COUNT, dtype)
    assert 0 < found.min() < 1e-3
    assert 1 - 1e-3 < found.max() <= 1
    counts = np.histogram(found, 20, (0, 1))[0]
    assert ((counts - COUNT / 20) ** 2).sum() / (COUNT / 20) < 45.3  # chi-square of 19 degrees, one in a thousand
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 4 / COUNT**0.5


@pytest.mark.parametrize(("function", "dtype"), [("generateNormal", "f4"), ("generateNormalDouble", "f8")])
def test_normal_numbers(function: str, dtype: str, generator: int) -> None:
    standard = (drawn(generator, function, COUNT, dtype, 5, 2) - 5) / 2
    for power, wanted, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((standard**power).mean() - wanted) < 4 * (variance / COUNT) ** 0.5
    assert abs(np.corrcoef(standard[::2], standard[1::2])[0, 1]) < 4 / (COUNT / 2) ** 0.5


@pytest.mark.parametrize(("function", "dtype"), [("generateLogNormal", "f4"), ("generateLogNormalDouble", "f8")])
def test_log_normal_numbers(function: str, dtype: str, generator: int) -> None:
    logarithms = np.log(drawn(generator, function, COUNT, dtype, 1, 0.5))
    assert abs(logarithms.mean() - 1) < 4 * 0.5 / COUNT**0.5
    assert abs(logarithms.std() - 0.5) < 4 * 0.5 / (2 * COUNT) ** 0.5


@pytest.mark.parametrize("rate", [0.5, 30])
def test_poisson_numbers(rate: float, generator: int) -> None:
    found = drawn(generator, "generatePoisson", COUNT, "u4", rate).astype(float)
    assert abs(found.mean() - rate) < 4 * (rate / COUNT) ** 0.5
    assert abs(found.var() - rate) < 4 * ((2 * rate**2 + rate) / COUNT) ** 0.5


def test_an_odd_count_of_normal_numbers_is_refused(generator: int, capfd: pytest.CaptureFixture[str]) -> None:
    """By the C function, because CuPy always requests an even count."""
    library = ctypes.CDLL("libcurand.so.10")
    mean, deviation = ctypes.c_float(0), ctypes.c_float(1)
    status = library.curandGenerateNormal(ctypes.c_void_p(generator), None, ctypes.c_size_t(3), mean, deviation)
    assert status == LENGTH_NOT_MULTIPLE
    assert "an odd count of normal numbers" in capfd.readouterr().err


def test_quasi_random_numbers_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="CURAND_STATUS_TYPE_ERROR"):
        curand().createGenerator(QUASI)
    assert "only pseudo-random generators are emulated" in capfd.readouterr().err


def test_a_generator_that_was_destroyed_is_refused() -> None:
    made = curand().createGenerator(DEFAULT)
    curand().destroyGenerator(made)
    with pytest.raises(RuntimeError, match="CURAND_STATUS_NOT_INITIALIZED"):
        curand().setPseudoRandomGeneratorSeed(made, 1)


def test_numbers_beyond_the_end_of_memory_are_found(generator: int) -> None:
    runtime = cupy().cuda.runtime
    memory = runtime.malloc(16)
    curand().generateUniform(generator, memory, 5)
    with pytest.raises(
        runtime.CUDARuntimeError, match="curandGenerateUniform: global memory out of bounds: write of 20"
    ):
        cupy().cuda.Device().synchronize()
    runtime.free(memory)


def test_numbers_come_when_the_stream_does() -> None:
    xp = cupy()
    x = xp.zeros(4, np.float32)
    xp.cuda.Device().synchronize()
    made = curand().createGenerator(DEFAULT)
    with xp.cuda.Stream(non_blocking=True) as stream:
        curand().generateUniform(made, x.data.ptr, 4)
    other = xp.cuda.Stream(non_blocking=True)
    with other:
        before = xp.asnumpy(x, stream=other)
    stream.synchronize()
    curand().destroyGenerator(made)
    assert (before == 0).all()
    assert (x > 0).all()


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("normal", (1, 2, (3, 5))),
        ("uniform", (-1, 1, (3, 5))),
        ("rand", (3, 5)),
        ("randn", (3, 5)),
        ("standard_normal", ((3, 5), "f4")),
        ("randint", (0, 10, 7)),
        ("random_sample", ()),
    ],
)
def test_functions_of_cupy(function: str, arguments: tuple[Any, ...]) -> None:
    random = cupy().random
    random.seed(5)
    found = getattr(random, function)(*arguments)
    random.seed(5)
    again = getattr(random, function)(*arguments)
    assert np.isfinite(cupy().asnumpy(found)).all()
    np.testing.assert_array_equal(cupy().asnumpy(found), cupy().asnumpy(again))


def test_numbers_of_machine_code_are_an_error_instead_of_unwritten_memory() -> None:
    xp = cupy()
    xp.random.default_rng(3).random(4)
    with pytest.raises(xp.cuda.runtime.CUDARuntimeError, match="kernels of machine code, which cannot be emulated"):
        xp.cuda.Device().synchronize()
