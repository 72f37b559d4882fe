"""Moving arrays, and accepting those of other libraries: without copies or waits on the host, in the right order."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

import gpuconv
from gpuconv import ArgumentTypeError, DeviceError
from gpuconv.cuda.call import device
from gpuconv.cuda.call.bfloat16 import _Tensor
from tests.gpu.on_device import exposed
from tests.harness.idle_kernels import Sent

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HOST, CUDA, PINNED, MANAGED, METAL = 1, 2, 3, 13, 8


class Tensor:
    """Another library's device array that supports only DLPack."""

    def __init__(self, array: Any, device: tuple[int, int] | None = None) -> None:
        self.array, self._device = array, device
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device or self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **keywords: Any) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__(stream=stream, **keywords)


class HostTensor:
    """Another library's array on the host."""

    requires_grad = False

    def __init__(self, host: Any, kind: int = HOST) -> None:
        self.host, self.kind = host, kind

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.host.__dlpack__(**keywords)


class Interface:
    """An array that supports only the CUDA array interface."""

    def __init__(self, array: Any, **more: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = exposed(array).__cuda_array_interface__ | more


def ramp(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


# ---------------------------------------------------------------- there and back


@pytest.mark.parametrize("part", [np.s_[:], np.s_[..., ::2]], ids=["whole", "every second"])
def test_from_one_device_to_the_other(sent: Sent, part: Any) -> None:
    """Copies between devices are asynchronous: neither device runs anything before it must."""
    host = ramp(2, 3, 4).transpose(2, 0, 1)[part]
    there = gpuconv.to_device(ramp(2, 3, 4).transpose(2, 0, 1))[part]
    with sent.cupy.cuda.Device(1):
        other = gpuconv.to_device(there)
    assert (there.data.device_id, other.data.device_id) == (0, 1)
    assert other.strides == np.empty_like(host).strides
    del there
    taken = [sent.cupy.full(size, 9, "f") for size in (12, 24)]  # the memory that the pool has by now
    sent.cupy.cuda.Device(0).synchronize()
    np.testing.assert_array_equal(gpuconv.to_host(other), host)
    assert all((array.get() == 9).all() for array in taken)


@pytest.mark.parametrize("host", [np.array([None]), ramp(3).astype(">f4")], ids=["objects", "another byte order"])
def test_what_a_device_cannot_hold(sent: Sent, host: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^to_device: CuPy cannot hold an array of dtype {host.dtype}: "):
        gpuconv.to_device(host)


# ---------------------------------------------------------------- DLPack on a device


@pytest.mark.parametrize("kind", [CUDA, MANAGED])
@pytest.mark.parametrize("dtype", ["float32", BFLOAT16], ids=str)
def test_a_cuda_tensor_is_read_in_place(sent: Sent, kind: int, dtype: Any) -> None:
    memory = (sent.cupy.cuda.malloc_managed if kind == MANAGED else sent.cupy.cuda.alloc)(32)
    x = Tensor(sent.cupy.ndarray((1, 2, 8), dtype, memory))
    assert x.__dlpack_device__() == (kind, 0)
    before, stream = len(sent.allocations), sent.cupy.cuda.Stream(non_blocking=True)
    with stream:
        y = gpuconv.max_pool(x, kernel_shape=[2])
    assert type(y) is sent.cupy.ndarray
    assert y.dtype == dtype
    (launch,) = sent.launches
    assert memory.ptr.to_bytes(8, "little") in launch.parameters
    assert x.streams == [stream.ptr], "its producer was told which stream reads it"
    assert len(sent.allocations) == before + 1, "y"
    assert sent.have_run == 0


def test_tensors_and_cupys_arrays_mix(sent: Sent) -> None:
    x, w, b = (gpuconv.to_device(ramp(*shape)) for shape in ((1, 2, 8), (3, 2, 2), (3,)))
    assert type(gpuconv.conv(Tensor(x), w, Tensor(b))) is sent.cupy.ndarray


def test_a_tensor_of_another_device(sent: Sent) -> None:
    with sent.cupy.cuda.Device(1):
        x = Tensor(sent.cupy.empty((1, 2, 8), "f"))
    with pytest.raises(DeviceError, match="the current device is 0, but there is x on device 1"):
        gpuconv.max_pool(x, kernel_shape=[2])


def test_tensors_come_to_the_host(sent: Sent) -> None:
    np.testing.assert_array_equal(gpuconv.to_host(Tensor(sent.cupy.asarray(ramp(2, 3)))), ramp(2, 3))


def test_no_tensor_for_out(sent: Sent) -> None:
    x = gpuconv.to_device(ramp(1, 1, 8))
    with pytest.raises(ArgumentTypeError) as caught:
        gpuconv.max_pool(x, kernel_shape=[2], out=Tensor(x))
    assert str(caught.value) == (
        f"max_pool: out must be a CuPy array, not {__name__}.Tensor; "
        "pass cupy.from_dlpack(out), which shares its memory"
    )


# ---------------------------------------------------------------- DLPack on the host


@pytest.mark.parametrize("kind", [HOST, PINNED])
def test_a_host_tensor_is_numpys(kind: int) -> None:
    x, w = ramp(1, 2, 8), ramp(3, 2, 2)
    y = gpuconv.conv(HostTensor(x, kind), HostTensor(w))
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, gpuconv.conv(x, w))
    assert np.shares_memory(gpuconv.to_host(HostTensor(x)), x)


def test_host_tensors_move_to_the_device(sent: Sent) -> None:
    there = gpuconv.to_device(HostTensor(ramp(2, 3)))
    np.testing.assert_array_equal(there.get(), ramp(2, 3))


def test_host_tensors_and_cupys_arrays_do_not_mix(sent: Sent) -> None:
    with pytest.raises(ArgumentTypeError, match="x is a NumPy array, w is a CuPy array"):
        gpuconv.conv(HostTensor(ramp(1, 2, 8)), gpuconv.to_device(ramp(3, 2, 2)))


class Capsules:
    """A bfloat16 tensor on the host, as PyTorch and JAX export it; NumPy refuses it, unless they refuse the export."""

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


@pytest.mark.parametrize("producer", ["none", "the same", "legacy", "per thread", "another"])
def test_the_current_stream_waits_for_the_producers(sent: Sent, producer: str) -> None:
    """The host does not wait: launches run as late as possible."""
    cuda, host = sent.cupy.cuda, ramp(1, 1, 8)
    current, another = (cuda.Stream(non_blocking=True) for _ in range(2))
    of = {"the same": current, "legacy": cuda.Stream.null, "per thread": cuda.Stream.ptds}.get(producer, another)
    number = {"none": None, "legacy": 1, "per thread": 2}.get(producer, of.ptr)
    x = sent.cupy.asarray(host)
    gpuconv.max_pool(x, kernel_shape=[2])  # all kernels are loaded
    cuda.Device().synchronize()
    before = sent.have_run
    with of:
        x += 1
    with current, mock.patch.object(cuda.runtime, "eventRecord", wraps=cuda.runtime.eventRecord) as recorded:
        y = gpuconv.max_pool(Interface(x, stream=number), kernel_shape=[2])
    assert type(y) is sent.cupy.ndarray
    assert sent.have_run == before
    current.synchronize()
    assert sent.have_run == before + (1 if producer == "none" else 2)
    assert [call.args[1] for call in recorded.call_args_list] == ([] if producer in ("none", "the same") else [number])


def test_the_null_stream_is_the_legacy_stream(sent: Sent) -> None:
    x = Interface(sent.cupy.empty((1, 1, 8), "f"), stream=1)
    with mock.patch.object(sent.cupy.cuda.runtime, "eventRecord") as recorded:
        gpuconv.max_pool(x, kernel_shape=[2])
    assert recorded.call_count == 0


@pytest.mark.parametrize("host", [ramp(2, 3, 4), ramp(0, 3)], ids=["strided", "empty"])
def test_the_interfaces_strides_count(sent: Sent, host: Any) -> None:
    there = sent.cupy.asarray(host)[::2, ..., ::-1]
    np.testing.assert_array_equal(gpuconv.to_host(Interface(there)), host[::2, ..., ::-1])


def test_the_interface_without_strides(sent: Sent) -> None:
    there = sent.cupy.asarray(ramp(2, 3))
    np.testing.assert_array_equal(gpuconv.to_host(Interface(there, strides=None)), ramp(2, 3))


# ---------------------------------------------------------------- refusals


class Grad(Tensor):
    requires_grad = True


class Sparse(Tensor):
    def __dlpack__(self, **_: Any) -> Any:
        raise RuntimeError("Can't export tensors with layout other than torch.strided")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Grad, "requires gradients, which are not computed here; pass x.detach()"),
        (lambda x: Grad(x, (HOST, 0)), "requires gradients, which are not computed here; pass x.detach()"),
        (Sparse, "cannot be read in place: Can't export tensors with layout other than torch.strided"),
        (
            lambda x: Tensor(x, (METAL, 0)),
            "cannot be read in place: its memory is on a device of DLPack's type 8, neither the host nor a CUDA device",
        ),
        (lambda x: Interface(x, mask=x), "cannot be read in place: it is masked"),
        (
            lambda x: Interface(x, typestr="<V2"),
            "cannot be read in place: the interface does not say what its dtype |V2 means; bfloat16 goes by DLPack",
        ),
    ],
    ids=["gradients", "gradients on the host", "sparse", "another device", "masked", "bfloat16 by the interface"],
)
def test_what_cannot_be_read_in_place(sent: Sent, make: Callable[[Any], Any], message: str) -> None:
    thing = make(sent.cupy.empty((1, 1, 8), "f"))
    with pytest.raises(ArgumentTypeError) as caught:
        gpuconv.max_pool(thing, kernel_shape=[2])
    assert str(caught.value) == f"max_pool: x ({__name__}.{type(thing).__name__}) {message}"


def test_a_cuda_tensor_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"^no CUDA device was found \(CuPy cannot be imported: "):
        gpuconv.max_pool(Tensor(None, (CUDA, 0)), kernel_shape=[2])


def test_classes_are_no_arrays() -> None:
    with pytest.raises(ArgumentTypeError, match=r"x must be a NumPy or CuPy array, not builtins\.type"):
        gpuconv.max_pool(Tensor, kernel_shape=[2])


def test_numpy_arrays_are_computed_while_another_thread_imports_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is being imported may still lack some of its names."""
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    assert device.array_type() is None
    assert gpuconv.max_pool(np.ones((1, 1, 3)), 2).tolist() == [[[1, 1]]]
