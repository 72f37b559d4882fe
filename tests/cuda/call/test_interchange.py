"""Moving arrays, and taking those of other libraries for what they are: no copy, no wait of the host, right order."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuconv
from gpuconv import ArgumentTypeError, DeviceError
from gpuconv.cuda.call.bfloat16 import _Tensor
from tests.harness.cupy_stand_in import StandIn, cupy_stand_in
from tests.oracle.operands import LAYOUTS

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HOST, CUDA, PINNED, MANAGED, METAL = 1, 2, 3, 13, 8


@pytest.fixture
def cupy(tmp_path: Path) -> Iterator[StandIn]:
    with cupy_stand_in(tmp_path, ("90", "90")) as standin:
        yield standin


class Tensor:
    """Another library's array on a device: DLPack, with the memory of a NumPy array."""

    def __init__(self, host: Any, device: tuple[int, int] = (CUDA, 0)) -> None:
        self.host, self.device = host, device
        self.streams: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        self.streams.append(-1 if stream is None else stream)
        host = self.host
        return {
            "ptr": host.ctypes.data,
            "shape": host.shape,
            "strides": host.strides,
            "dtype": host.dtype,
            "owner": self,
        }


class HostTensor:
    """Another library's array on the host."""

    requires_grad = False

    def __init__(self, host: Any) -> None:
        self.host = host

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.host.__dlpack_device__()  # type: ignore[no-any-return]

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.host.__dlpack__(**keywords)


class Interface:
    """An array that speaks the CUDA array interface alone."""

    def __init__(self, host: Any, **more: Any) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": host.shape,
            "typestr": host.dtype.str,
            "data": (host.ctypes.data, False),
            "strides": host.strides,
            **more,
        }


def ramp(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


# ---------------------------------------------------------------- there and back


@pytest.mark.parametrize(
    "dtype", ["float16", BFLOAT16, "float32", "float64", "int8", "uint8", "int64", "bool"], ids=str
)
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_there_and_back(cupy: StandIn, layout: str, dtype: Any) -> None:
    host = LAYOUTS[layout](ramp(2, 3, 4, 5, dtype=dtype))
    there = gpuconv.to_device(host)
    back = gpuconv.to_host(there)
    assert (there.shape, there.dtype, back.dtype) == (host.shape, host.dtype, host.dtype)
    np.testing.assert_array_equal(back, host)
    assert there.strides == back.strides == np.empty_like(host).strides


@pytest.mark.parametrize("host", [ramp(1).reshape(()), ramp(0, 3), ramp(2, 0, 4)], ids=lambda a: str(a.shape))
def test_scalars_and_nothing_move_too(cupy: StandIn, host: Any) -> None:
    back = gpuconv.to_host(gpuconv.to_device(host))
    assert (back.shape, back.dtype) == (host.shape, host.dtype)
    np.testing.assert_array_equal(back, host)


def test_what_is_there_stays_as_it_is(cupy: StandIn) -> None:
    there = gpuconv.to_device(ramp(2, 3))
    assert gpuconv.to_device(there) is there
    assert gpuconv.to_host(host := ramp(2, 3)) is host


def test_from_one_device_to_the_other(cupy: StandIn) -> None:
    there = gpuconv.to_device(ramp(2, 3, 4).transpose(2, 0, 1))
    with cupy.module.cuda.Device(1):
        other = gpuconv.to_device(there)
    assert (there.data.device_id, other.data.device_id) == (0, 1)
    assert other.strides == there.strides
    np.testing.assert_array_equal(gpuconv.to_host(other), ramp(2, 3, 4).transpose(2, 0, 1))


@pytest.mark.parametrize("host", [np.array([None]), ramp(3).astype(">f4")], ids=["objects", "another byte order"])
def test_what_a_device_cannot_hold(cupy: StandIn, host: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^to_device: CuPy cannot hold an array of dtype {host.dtype}: "):
        gpuconv.to_device(host)


# ---------------------------------------------------------------- DLPack on a device


@pytest.mark.parametrize("kind", [CUDA, MANAGED])
@pytest.mark.parametrize("dtype", ["float32", BFLOAT16], ids=str)
def test_a_cuda_tensor_is_read_in_place(cupy: StandIn, kind: int, dtype: Any) -> None:
    x = Tensor(ramp(1, 2, 8, dtype=dtype), (kind, 0))
    before = len(cupy.allocations)
    with cupy.stream(7000):
        y = gpuconv.max_pool(x, kernel_shape=[2])
    assert type(y) is cupy.module.ndarray
    assert y.dtype == dtype
    (launch,) = cupy.launches
    assert x.host.ctypes.data.to_bytes(8, "little") in launch.parameters
    assert x.streams == [7000], "its producer was told which stream reads it"
    assert len(cupy.allocations) == before + 1, "y"
    assert cupy.synchronisations == 0


def test_tensors_and_cupys_arrays_mix(cupy: StandIn) -> None:
    x, w, b = Tensor(ramp(1, 2, 8)), gpuconv.to_device(ramp(3, 2, 2)), Tensor(ramp(3))
    assert type(gpuconv.conv(x, w, b)) is cupy.module.ndarray


def test_a_tensor_of_another_device(cupy: StandIn) -> None:
    with pytest.raises(DeviceError, match="the current device is 0, but there is x on device 1"):
        gpuconv.max_pool(Tensor(ramp(1, 2, 8), (CUDA, 1)), kernel_shape=[2])


def test_tensors_come_to_the_host(cupy: StandIn) -> None:
    np.testing.assert_array_equal(gpuconv.to_host(Tensor(ramp(2, 3))), ramp(2, 3))


def test_no_tensor_for_out(cupy: StandIn) -> None:
    x = gpuconv.to_device(ramp(1, 1, 8))
    with pytest.raises(ArgumentTypeError) as caught:
        gpuconv.max_pool(x, kernel_shape=[2], out=Tensor(ramp(1, 1, 7)))
    assert str(caught.value) == (
        f"max_pool: out must be a CuPy array, not {__name__}.Tensor; "
        "pass cupy.from_dlpack(out), which shares its memory"
    )


# ---------------------------------------------------------------- DLPack on the host


def test_a_host_tensor_is_numpys() -> None:
    x, w = ramp(1, 2, 8), ramp(3, 2, 2)
    y = gpuconv.conv(HostTensor(x), HostTensor(w))
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, gpuconv.conv(x, w))
    assert np.shares_memory(gpuconv.to_host(HostTensor(x)), x)


def test_host_tensors_move_to_the_device(cupy: StandIn) -> None:
    there = gpuconv.to_device(HostTensor(ramp(2, 3)))
    np.testing.assert_array_equal(there.host, ramp(2, 3))


def test_host_tensors_and_cupys_arrays_do_not_mix(cupy: StandIn) -> None:
    with pytest.raises(ArgumentTypeError, match="x is a NumPy array, w is a CuPy array"):
        gpuconv.conv(HostTensor(ramp(1, 2, 8)), gpuconv.to_device(ramp(3, 2, 2)))


class Capsules:
    """A bfloat16 tensor on the host, as PyTorch and JAX export it; NumPy is who refuses it, unless they do before."""

    def __init__(self, host: Any, strides: bool = True, versions: bool = True) -> None:
        self.host, self._versions = host, versions
        ndim = host.ndim
        self._shape = (ctypes.c_int64 * ndim)(*host.shape)
        self._strides = (ctypes.c_int64 * ndim)(*(step // 2 for step in host.strides))
        self._tensor = _Tensor(data=host.ctypes.data - 4, device=(HOST, 0), ndim=ndim, code=4, bits=16, lanes=1)
        self._tensor.shape = self._shape
        self._tensor.byte_offset = 4
        if strides:
            self._tensor.strides = self._strides

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST, 0

    def __dlpack__(self, **keywords: Any) -> Any:
        if keywords.get("max_version") and not self._versions:
            raise BufferError("the dtype has no name here")
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
            ("PyCapsule_New", ctypes.pythonapi)
        )
        return new(ctypes.addressof(self._tensor), b"dltensor", None)


@pytest.mark.parametrize("versions", [True, False])
@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1)])
def test_bfloat16_on_the_host(axes: tuple[int, ...], versions: bool) -> None:
    host = ramp(2, 3, 4, dtype=BFLOAT16).transpose(axes)
    seen = gpuconv.to_host(Capsules(host, versions=versions))
    assert (seen.dtype, seen.strides) == (BFLOAT16, host.strides)
    assert np.shares_memory(seen, host)
    np.testing.assert_array_equal(seen, host)
    y = gpuconv.max_pool(Capsules(host), kernel_shape=[2])
    np.testing.assert_array_equal(y, gpuconv.max_pool(host, kernel_shape=[2]))


def test_bfloat16_without_strides() -> None:
    host = ramp(2, 3, dtype=BFLOAT16)
    np.testing.assert_array_equal(gpuconv.to_host(Capsules(host, strides=False)), host)


def test_bfloat16_without_ml_dtypes_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = Capsules(ramp(2, 3, dtype=BFLOAT16))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    text = r"bfloat16 needs ml_dtypes \(.*\); pip install 'gpuconv\[onnx\]' brings it$"
    with pytest.raises(ArgumentTypeError, match=text):
        gpuconv.to_host(tensor)


# ---------------------------------------------------------------- the CUDA array interface


@pytest.mark.parametrize(
    ("producer", "waits"),
    [(None, []), (7000, []), (1, [1]), (2, [2]), (9000, [9000])],
    ids=["none", "the same", "legacy", "per thread", "another"],
)
def test_the_current_stream_waits_for_the_producers(cupy: StandIn, producer: int | None, waits: list[int]) -> None:
    x = Interface(ramp(1, 1, 8), stream=producer)
    stream = cupy.stream(7000)
    with stream:
        y = gpuconv.max_pool(x, kernel_shape=[2])
    assert type(y) is cupy.module.ndarray
    assert stream.waits == waits
    assert cupy.synchronisations == 0


def test_the_null_stream_is_the_legacy_stream(cupy: StandIn) -> None:
    gpuconv.max_pool(Interface(ramp(1, 1, 8), stream=1), kernel_shape=[2])
    assert cupy.null.waits == []


@pytest.mark.parametrize("host", [ramp(2, 3, 4)[::2, :, ::-1], ramp(0, 3)], ids=["strided", "empty"])
def test_the_interfaces_strides_count(cupy: StandIn, host: Any) -> None:
    np.testing.assert_array_equal(gpuconv.to_host(Interface(host)), host)


def test_the_interface_without_strides(cupy: StandIn) -> None:
    host = ramp(2, 3)
    np.testing.assert_array_equal(gpuconv.to_host(Interface(host, strides=None)), host)


# ---------------------------------------------------------------- refusals


class Grad(Tensor):
    requires_grad = True


class Sparse(Tensor):
    def __dlpack__(self, **_: Any) -> Any:
        raise RuntimeError("Can't export tensors with layout other than torch.strided")


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (Grad(ramp(1, 1, 8)), "requires gradients, which are not computed here; pass x.detach()"),
        (Grad(ramp(1, 1, 8), (HOST, 0)), "requires gradients, which are not computed here; pass x.detach()"),
        (
            Sparse(ramp(1, 1, 8)),
            "cannot be read in place: Can't export tensors with layout other than torch.strided",
        ),
        (
            Tensor(ramp(1, 1, 8), (METAL, 0)),
            "cannot be read in place: its memory is on a device of DLPack's type 8, neither the host nor a CUDA device",
        ),
        (Interface(ramp(1, 1, 8), mask=ramp(1, 1, 8)), "cannot be read in place: it is masked"),
        (
            Interface(ramp(1, 1, 8), typestr="<V2"),
            "cannot be read in place: the interface does not say what its dtype |V2 means; bfloat16 goes by DLPack",
        ),
    ],
    ids=["gradients", "gradients on the host", "sparse", "another device", "masked", "bfloat16 by the interface"],
)
def test_what_cannot_be_read_in_place(cupy: StandIn, thing: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        gpuconv.max_pool(thing, kernel_shape=[2])
    assert str(caught.value) == f"max_pool: x ({__name__}.{type(thing).__name__}) {message}"


def test_a_cuda_tensor_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"^no CUDA device was found \(CuPy cannot be imported: "):
        gpuconv.max_pool(Tensor(ramp(1, 1, 8)), kernel_shape=[2])


def test_classes_are_no_arrays() -> None:
    with pytest.raises(ArgumentTypeError, match=r"x must be a NumPy or CuPy array, not builtins\.type"):
        gpuconv.max_pool(Tensor, kernel_shape=[2])
