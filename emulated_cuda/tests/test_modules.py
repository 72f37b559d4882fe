"""Modules, by "Module Management" of the driver's documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

INVALID_IMAGE, INVALID_PTX, FILE_NOT_FOUND, INVALID_HANDLE, NOT_FOUND = 200, 218, 301, 400, 500
NO_BINARY = 209
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
EMPTY = HEAD + ".visible .entry nothing()\n{\n  ret;\n}\n"


def load(cuda: Any, image: str) -> Any:
    """Load a module from PTX; it is unloaded when the object is deleted."""
    cuda.runtime.free(0)
    module = cuda.cupy.cuda.Module()
    module.load(image.encode() + b"\0")
    return module


# ---------------------------------------------------------------- variables


def test_variables_begin_with_what_the_source_says(cuda: Any, module: Any) -> None:
    table = cuda.cupy.ndarray((4,), "i4", module.get_global("table"))
    assert table.get().tolist() == [1, 2, 3, 4]


def test_kernels_and_the_host_share_variables(cuda: Any, module: Any) -> None:
    y, scale = cuda.cupy.zeros(1, "f"), cuda.cupy.ndarray((1,), "f", module.get_global("scale"))
    module.get_function("scaled")((1,), (1,), (y,))
    scale[...] = 10
    z = cuda.cupy.zeros(1, "f")
    module.get_function("scaled")((1,), (1,), (z,))
    assert (float(y[0]), float(z[0])) == (12, 40)


def test_every_device_has_variables_of_its_own(cuda: Any, module: Any, other: Any) -> None:
    with other:
        there = cuda.cupy.ndarray((1,), "f", module.get_global("scale"))
        there[...] = 10
        y = cuda.cupy.zeros(1, "f")
        module.get_function("scaled")((1,), (1,), (y,))
        assert float(y[0]) == 40
    z = cuda.cupy.zeros(1, "f")
    module.get_function("scaled")((1,), (1,), (z,))
    assert float(z[0]) == 12


def test_500_what_a_module_lacks(cuda: Any) -> None:
    loaded = load(cuda, EMPTY)
    for function in (loaded.get_function, loaded.get_global_var):
        with pytest.raises(cuda.driver.CUDADriverError, match="CUDA_ERROR_NOT_FOUND"):
            function("missing")


# ---------------------------------------------------------------- what is loaded


def test_modules_are_loaded_from_memory_and_from_files(cuda: Any, tmp_path: Path) -> None:
    path = tmp_path / "nothing.ptx"
    path.write_text(EMPTY, encoding="utf-8")
    from_file = cuda.cupy.cuda.Module()
    from_file.load_file(str(path))
    for loaded in (from_file, load(cuda, EMPTY)):
        loaded.get_function("nothing")((1,), (1,), ())
    cuda.runtime.deviceSynchronize()


def test_301_a_file_that_is_not_there(cuda: Any, tmp_path: Path) -> None:
    assert cuda.code(cuda.driver.moduleLoad, str(tmp_path / "missing.ptx")) == FILE_NOT_FOUND


@pytest.mark.usefixtures("emulated")
def test_200_machine_code(cuda: Any) -> None:
    with pytest.raises(cuda.driver.CUDADriverError, match="INVALID_IMAGE: machine code cannot be emulated"):
        load(cuda, "\x7fELF")


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("instruction", ["tex.1d.v4.f32.s32", "sin.approx.f96", "vote.sync.any.pred"])
def test_218_instructions_that_the_emulator_does_not_know(cuda: Any, instruction: str) -> None:
    text = f"{HEAD}.visible .entry strange()\n{{\n  .reg .f32 %f<3>;\n  {instruction} %f1, %f2;\n  ret;\n}}\n"
    with pytest.raises(cuda.driver.CUDADriverError, match=f"INVALID_PTX.*{instruction}"):
        load(cuda, text).get_function("strange")


@pytest.mark.parametrize("text", [".version 8.0\n.nonsense\n", "int main() {}"])
def test_218_text_that_is_no_ptx(cuda: Any, text: str) -> None:
    cuda.runtime.free(0)
    code = cuda.code(lambda: cuda.driver.moduleUnload(cuda.driver.moduleLoadData(text.encode() + b"\0")))
    assert code in (INVALID_PTX, INVALID_IMAGE, NO_BINARY)


# ---------------------------------------------------------------- the end of a module


def test_400_a_module_is_unloaded_once(cuda: Any, emulated: None) -> None:
    cuda.runtime.free(0)
    handle = cuda.driver.moduleLoadData(EMPTY.encode() + b"\0")
    assert [cuda.code(cuda.driver.moduleUnload, handle) for _ in range(2)] == [0, INVALID_HANDLE]
    assert cuda.code(cuda.driver.moduleGetFunction, handle, "nothing") == INVALID_HANDLE


def test_400_kernels_go_with_their_module(cuda: Any, emulated: None) -> None:
    cuda.runtime.free(0)
    handle = cuda.driver.moduleLoadData(EMPTY.encode() + b"\0")
    function = cuda.driver.moduleGetFunction(handle, "nothing")
    call = (function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    assert cuda.code(cuda.driver.launchKernel, *call) == 0
    cuda.driver.moduleUnload(handle)
    assert cuda.code(cuda.driver.launchKernel, *call) == INVALID_HANDLE
    assert cuda.code(cuda.driver.funcGetAttribute, 0, function) == INVALID_HANDLE


def test_unloading_waits_for_kernels_and_takes_variables_away(cuda: Any, emulated: None) -> None:
    text = EMPTY + ".visible .global .align 4 .u32 counter = 7;\n"
    cuda.runtime.free(0)
    handle = cuda.driver.moduleLoadData(text.encode() + b"\0")
    address, y = cuda.driver.moduleGetGlobal(handle, "counter"), cuda.pinned(4)
    stream = cuda.cupy.cuda.Stream(non_blocking=True)
    with stream:
        cuda.launch("fill", y.ctypes.data, 4, 1.0)
    number = np.zeros(1, np.uint32)
    cuda.runtime.memcpy(number.ctypes.data, address, 4, 4)
    assert (number[0], y.any()) == (7, False)
    cuda.driver.moduleUnload(handle)
    assert y.tolist() == [1] * 4
    assert cuda.code(cuda.runtime.memcpy, number.ctypes.data, address, 4, 4) == 1


def test_unloading_waits_for_kernels_of_other_devices_than_the_current_one(
    cuda: Any, other: Any, emulated: None
) -> None:
    """The garbage collector may unload a module at any time, while any device is current."""
    cuda.runtime.free(0)
    handle, y = cuda.driver.moduleLoadData(EMPTY.encode() + b"\0"), cuda.pinned(4)
    cuda.launch("fill", y.ctypes.data, 4, 1.0)
    with other:
        cuda.runtime.free(0)
        cuda.driver.moduleUnload(handle)
    assert y.tolist() == [1] * 4
