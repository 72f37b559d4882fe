"""The architecture that a device is compiled for, and the accepted names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import gpuconv
from gpuconv import CompileError, DeviceError
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.build import nvrtc
from tests.harness.toolchain import kernels, needs_nvrtc, variant

Write = Callable[[Mapping[str, str]], Path]

__all__ = ["kernels"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kernels")]


@needs_nvrtc
@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((10, 3), "sm_103a"),
        ((12, 0), "sm_120a"),
        ((12, 1), "sm_121a"),
    ],
)
def test_architectures_of_devices(capability: tuple[int, int], name: str) -> None:
    assert compiler.architecture(capability) == name
    assert compiler.checked(name) == name
    assert f"for '{name}'" in nvrtc.build("k", "__global__ void k() {}", name, ["--ptxas-options=-v"])[1]


def test_devices_that_are_too_old() -> None:
    message = r"^gpuconv needs compute capability 8\.0 or newer, this device has 7\.5$"
    with pytest.raises(DeviceError, match=message):
        compiler.architecture((7, 5))


@pytest.fixture
def old_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make NVRTC know three architectures, and reset the one-time warning."""
    monkeypatch.setattr(nvrtc, "capabilities", lambda: ((8, 6), (9, 0), (12, 0)))
    monkeypatch.setattr(nvrtc, "version", lambda: "12.8")
    monkeypatch.setattr(compiler, "_warned", threading.Lock())


@pytest.mark.usefixtures("old_nvrtc")
def test_devices_newer_than_nvrtc_get_ptx_and_one_warning() -> None:
    with pytest.warns(RuntimeWarning) as caught:
        assert compiler.architecture((13, 0)) == "compute_120"
    assert compiler.architecture((13, 0)) == "compute_120"  # a second warning would be an error
    assert compiler.architecture((12, 1)) == "compute_120"
    assert compiler.architecture((10, 0)) == "compute_90"  # PTX for 12.0 does not run there
    assert compiler.architecture((12, 0)) == "sm_120a"
    assert len(caught) == 1
    assert str(caught[0].message).startswith("NVRTC 12.8 does not know compute capability 13.0: ")
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("old_nvrtc")
def test_devices_that_nvrtc_has_dropped() -> None:
    message = r"^NVRTC 12\.8 does not compile for compute capability 8\.0 any more; install an older one$"
    with pytest.raises(DeviceError, match=message):
        compiler.architecture((8, 0))


@pytest.mark.usefixtures("old_nvrtc")
@pytest.mark.parametrize("name", ["sm_75", "sm_86a", "sm_100", "90a", "compute_90", "SM_90a", ""])
def test_unknown_names(name: str) -> None:
    with pytest.raises(gpuconv.ArgumentError) as caught:
        compiler.checked(name)
    known = "sm_86, sm_90, sm_90a, sm_120, sm_120a"
    assert str(caught.value) == f"unknown architecture {name!r}; NVRTC 12.8 compiles for {known}"


@needs_nvrtc
def test_the_fallback_is_a_file_of_ptx_without_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_warned", threading.Lock())
    with pytest.warns(RuntimeWarning):
        newest = compiler.architecture((99, 0))
    assert compiler.build(variant(), newest).path.suffix == ".ptx"
    assert f".target {newest.replace('compute_', 'sm_')}\n" in compiler.cubin(variant(), newest).decode()
    with pytest.raises(CompileError, match=f"^scale_4 for {newest}: the compiler does not report registers$"):
        compiler.report(variant(), newest)
