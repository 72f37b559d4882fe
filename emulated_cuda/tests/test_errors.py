"""Errors: names, the last error, and the state of a device after an error."""

from __future__ import annotations

import ctypes
import importlib
import re
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

NOT_READY = 600
FATAL = {"poke": 700, "misaligned": 716}  # error code by kernel


@pytest.fixture
def failing(cuda: Any) -> dict[str, tuple[Any, ...]]:
    """Arguments with which the kernels of FATAL fail, by kernel."""
    x = cuda.cupy.zeros(64, "f")
    return {"poke": (x, 64), "misaligned": (x,)}


# ---------------------------------------------------------------- names


def codes(header: str, prefix: str) -> list[tuple[str, int]]:
    """Return the names and values of an enumeration in CUDA's headers, from its lines ``name = value``."""
    folder = importlib.import_module("emulated_cuda.install").headers()
    text = (folder / header).read_text(encoding="utf-8", errors="replace")
    rows = [line.replace(",", " ").split() for line in text.splitlines() if line.strip().startswith(prefix)]
    return [(row[0], int(row[2])) for row in rows if row[1:2] == ["="] and row[2].isdigit()]


def test_every_code_of_the_runtime_has_its_name(cuda: Any) -> None:
    known = codes("driver_types.h", "cudaError")
    assert {700, 900, 908, 999} <= {code for _, code in known}
    for name, code in known:
        assert str(cuda.runtime.CUDARuntimeError(code)).startswith(f"{name}:")


def test_every_code_of_the_driver_has_its_name(cuda: Any) -> None:
    known = codes("cuda.h", "CUDA_ERROR_")
    assert {201, 218, 400, 999} <= {code for _, code in known}
    for name, code in known:
        assert str(cuda.driver.CUDADriverError(code)).startswith(f"{name}:")


def test_unknown_codes_have_no_name(library: ctypes.CDLL) -> None:
    text = ctypes.c_char_p(b"?")
    assert library.cuGetErrorName(12345, ctypes.byref(text)) == 1
    assert text.value is None
    library.emulated_cudaGetErrorName.restype = ctypes.c_char_p
    assert library.emulated_cudaGetErrorName(12345) == b"unrecognized error code"


# ---------------------------------------------------------------- the errors of kernels


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("name", FATAL)
def test_the_error_of_a_kernel_is_that_of_what_waits_for_it(cuda: Any, failing: Any, name: str) -> None:
    assert cuda.code(cuda.launch, name, *failing[name]) == 0
    assert cuda.code(cuda.runtime.deviceSynchronize) == FATAL[name]


@pytest.mark.usefixtures("emulated")
def test_a_finding_says_what_where_and_which_thread(cuda: Any, failing: Any) -> None:
    text = cuda.finding("poke", *failing["poke"])
    assert re.search(r"poke: global memory out of bounds: write of 4 bytes at byte 256 of device memory", text)
    assert re.search(r"at \S+ +\[st\.global\.[fub]32 .*\]\s+block \(0,0,0\) warp 0 thread 0", text)


@pytest.mark.usefixtures("emulated")
def test_the_next_call_works_where_errors_do_not_stick(cuda: Any, failing: Any) -> None:
    cuda.finding("poke", *failing["poke"])
    assert cuda.code(cuda.runtime.deviceSynchronize) == 0
    assert cuda.cupy.ones(4, "f").get().tolist() == [1] * 4


@pytest.mark.usefixtures("sticky")
@pytest.mark.parametrize("name", FATAL)
def test_after_the_error_of_a_kernel_every_call_returns_it(cuda: Any, library: Any, failing: Any, name: str) -> None:
    runtime, x = cuda.runtime, cuda.cupy.zeros(64, "f")
    stream, event, host = cuda.cupy.cuda.Stream(), cuda.cupy.cuda.Event(), np.zeros(64, np.float32)
    cuda.launch(name, *failing[name])
    cuda.launch("fill", x, 64, 1.0)
    calls = [
        (runtime.deviceSynchronize,),
        (runtime.malloc, 256),
        (runtime.hostAlloc, 256, 0),
        (runtime.memGetInfo,),
        (runtime.memcpy, host.ctypes.data, x.data.ptr, 256, 4),
        (runtime.memsetAsync, x.data.ptr, 0, 256, stream.ptr),
        (stream.synchronize,),
        (event.record, stream),
        (event.synchronize,),
        (runtime.streamCreate,),
        (runtime.eventCreate,),
        (runtime.streamBeginCapture, stream.ptr, 2),
        (cuda.launch, "fill", x, 64, 1.0),
        (cuda.driver.moduleLoadData, b".version 8.0\n.target sm_80\n.address_size 64\n"),
    ]
    answers = [cuda.code(*call) for call in calls]
    library.emulated_reset(0)  # before CuPy destroys the stream and the event, which would fail, too
    assert answers == [FATAL[name]] * len(calls)
    assert not host.any()


@pytest.mark.usefixtures("sticky")
def test_a_sticky_error_is_not_cleared_and_what_was_pending_never_runs(cuda: Any, library: Any, failing: Any) -> None:
    y = cuda.pinned(4)
    cuda.launch("poke", *failing["poke"])
    cuda.launch("fill", y.ctypes.data, 4, 1.0)
    assert cuda.code(cuda.runtime.deviceSynchronize) == 700
    assert [library.emulated_cudaGetLastError() for _ in range(2)] == [700, 700]
    assert library.emulated_cudaPeekAtLastError() == 700
    library.emulated_reset(0)
    assert cuda.code(cuda.runtime.deviceSynchronize) == 0
    assert not y.any()


@pytest.mark.usefixtures("sticky")
def test_a_sticky_error_is_that_of_one_device(cuda: Any, other: Any, failing: Any) -> None:
    cuda.launch("poke", *failing["poke"])
    assert cuda.code(cuda.runtime.deviceSynchronize) == 700
    with other:
        assert cuda.code(cuda.runtime.deviceSynchronize) == 0
        assert cuda.cupy.ones(2, "f").get().tolist() == [1, 1]


@pytest.mark.usefixtures("sticky")
def test_wrong_arguments_are_no_sticky_errors(cuda: Any) -> None:
    assert cuda.code(cuda.runtime.malloc, 2**60) == 2
    assert cuda.code(cuda.runtime.free, 12345) == 1
    assert cuda.code(cuda.runtime.deviceSynchronize) == 0


# ---------------------------------------------------------------- the last error


def test_the_last_error_is_kept_until_it_is_asked_for(library: Any) -> None:
    library.emulated_cudaGetLastError()
    assert library.emulated_cudaSetDevice(99) == 101  # CuPy would ask for it at once
    assert library.emulated_cudaPeekAtLastError() == 101
    assert [library.emulated_cudaGetLastError() for _ in range(2)] == [101, 0]


def test_not_ready_is_no_error_that_is_kept(cuda: Any, library: Any) -> None:
    library.emulated_cudaGetLastError()
    cuda.launch("fill", cuda.cupy.empty(1, "f"), 1, 1.0)
    assert cuda.runtime.streamQuery(0) == NOT_READY
    assert library.emulated_cudaGetLastError() == 0


def test_what_is_not_emulated_says_so(cuda: Any, emulated: None) -> None:
    with pytest.raises(cuda.runtime.CUDARuntimeError, match=r"cudaErrorNotSupported: \w+ is not emulated"):
        cuda.runtime.ipcGetMemHandle(0)
