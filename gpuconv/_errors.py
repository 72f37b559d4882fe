"""The one tree of errors; of values (``ValueError``), of types (``TypeError``), of devices (``RuntimeError``)."""


class GpuconvError(Exception):
    """Base of every error that gpuconv raises on purpose."""


class ArgumentError(GpuconvError, ValueError):
    """An argument has the right type and an impossible value: a shape, a range, a contradiction."""


class ArgumentTypeError(GpuconvError, TypeError):
    """An argument has the wrong type: no array, a dtype the operator does not take, mixed libraries."""


class DeviceError(GpuconvError, RuntimeError):
    """No usable CUDA device, or the device refused."""


class OutOfDeviceMemory(DeviceError, MemoryError):
    """The device has not enough free memory; the message gives the bytes and what they were for."""


class CompileError(DeviceError):
    """A kernel did not compile; the message holds the compiler's log."""
