"""Callbacks of the emulated driver into Python: load PTX modules, describe kernels, encode tensor maps.

The driver (driver.cpp) is C++; parsing PTX is Python. `configure` passes the driver a table of these functions.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import astuple
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from .emulator import build, engine, ptx
from .emulator.memory import encode_map
from .emulator.operands import UnsupportedPtx

if TYPE_CHECKING:
    from .install import Settings

_INVALID_VALUE, _INVALID_IMAGE, _INVALID_PTX = 1, 200, 218  # error codes of cuda.h
_FILE_NOT_FOUND, _INVALID_HANDLE, _NOT_FOUND = 301, 400, 500
_MAP_BYTES = 128  # size of a CUtensorMap


class _Function(ctypes.Structure):
    """The ctypes counterpart of struct FunctionDescription in device.h."""

    _fields_ = (
        ("program", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("parameters", ctypes.c_int64),
        ("parameter", ctypes.c_void_p),
        *(
            (name, ctypes.c_int64)
            for name in ("parameter_bytes", "static_shared", "max_threads", "local_bytes", "device")
        ),
    )


_pointer, _u32, _u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, ctypes.c_int, ctypes.POINTER(_pointer))
_UNLOAD = ctypes.CFUNCTYPE(ctypes.c_int, _pointer)
_GET_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, ctypes.c_char_p, ctypes.POINTER(_Function))
_GET_GLOBAL = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, ctypes.c_char_p, ctypes.POINTER(_u64), ctypes.POINTER(_u64))
_ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(_pointer, ctypes.c_int, ctypes.c_int, _u64, ctypes.POINTER(_u64), ctypes.POINTER(_u64)),
    *(ctypes.POINTER(_u32), ctypes.POINTER(_u32), ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int)),
    *(_u32, _u32, ctypes.c_int),
)


class _Callbacks(ctypes.Structure):
    """The ctypes counterpart of struct Callbacks in device.h."""

    _fields_ = (
        ("load", _LOAD),
        ("unload", _UNLOAD),
        ("get_function", _GET_FUNCTION),
        ("get_global", _GET_GLOBAL),
        ("encode_map", _ENCODE),
        ("launch", _pointer),
    )


class DriverError(Exception):
    """A driver call failed: the CUDA error code that it returns, and the text that explains it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


programs: WeakValueDictionary[int, engine.Program] = WeakValueDictionary()  # kernels by handle of the engine


class LoadedModule(engine.Module):
    """A loaded PTX module, whose variables are in the memory of the device that was current when it was loaded.

    Kernels that contain addresses of variables are built for this module; others are shared by all modules of the same
    PTX text.
    """

    def __init__(self, text: str, library: ctypes.CDLL) -> None:
        self._text, self._alike = text, engine.module(text)
        self.parsed, self.programs = self._alike.parsed, {}
        self._library = library
        self._device = library.emulated_current_device()
        self._addresses: dict[str, int] = {}
        self._kept: list[Any] = []

    def address_of(self, name: str) -> int:
        """Return the device address of a variable; the first call allocates and initialises it."""
        if name not in self._addresses:
            data = self.parsed.globals[name]
            self._addresses[name] = self._library.emulated_allocate(data, max(1, len(data)), self._device)
        return self._addresses[name]

    def __getitem__(self, name: str) -> engine.Program:
        """Return a kernel, shared with other modules of the same text unless it contains addresses of variables."""
        if name not in self.programs:
            has_addresses = any(isinstance(preset.value, str) for preset in self.parsed.kernels[name].presets)
            own = engine.Program(ptx.Module(self._text).kernels[name], self) if has_addresses else self._alike[name]
            self.programs[name] = own
        return self.programs[name]

    def describe(self, name: str, description: Any) -> None:
        """Fill in the driver's FunctionDescription of a kernel (device.h)."""
        program = self[name]
        programs[program.handle.value or 0] = program
        kernel = program.kernel
        parameters = np.array(list(kernel.parameters.values()), np.int64).reshape(-1, 2)
        self._kept.append(parameters)
        description.program = program.handle
        description.parameters = len(parameters)
        description.parameter = parameters.ctypes.data
        description.parameter_bytes = kernel.parameter_bytes
        description.static_shared = kernel.static_shared_bytes
        description.max_threads = kernel.max_threads or 0
        description.local_bytes = kernel.local_bytes
        description.device = self._device

    def unload(self) -> None:
        """Free the module's variables."""
        for address in self._addresses.values():
            self._library.emulated_free(address)


class _Modules:
    """All loaded modules, by handle. The methods implement cuModule functions; they raise DriverError."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._loaded: dict[int, LoadedModule] = {}
        self._handles = itertools.count(0x1000, 16)

    def load(self, image: int, is_path: int, handle: Any) -> None:
        """Load PTX from memory, or from a file if `is_path`; machine code is refused."""
        data = _file(image) if is_path else ctypes.string_at(image)
        if data.startswith(b"\x7fELF"):
            raise DriverError(
                _INVALID_IMAGE,
                "machine code cannot be emulated; only PTX can. If it comes from a cache of "
                "kernels that were compiled for a GPU, give that library another cache folder",
            )
        try:
            module = LoadedModule(data.rstrip(b"\0").decode(), self._library)
        except (UnsupportedPtx, UnicodeDecodeError, ValueError) as error:
            raise DriverError(_INVALID_PTX, f"the emulator does not know this PTX: {error}") from error
        number = next(self._handles)
        self._loaded[number] = module
        handle[0] = number

    def unload(self, handle: int) -> None:
        """Unload a module and free its variables."""
        self._module(handle).unload()
        del self._loaded[handle]

    def get_function(self, handle: int, name: bytes, description: Any) -> None:
        """Describe a kernel of a module."""
        module = self._module(handle)
        if name.decode() not in module.parsed.kernels:
            raise DriverError(_NOT_FOUND, f"the module has no kernel {name.decode()}")
        try:
            module.describe(name.decode(), description[0])
        except UnsupportedPtx as error:
            raise DriverError(_INVALID_PTX, str(error)) from error

    def get_global(self, handle: int, name: bytes, address: Any, size: Any) -> None:
        """Store the address and size, in bytes, of a variable of a module."""
        module = self._module(handle)
        if name.decode() not in module.parsed.globals:
            raise DriverError(_NOT_FOUND, f"the module has no variable {name.decode()}")
        address[0] = module.address_of(name.decode())
        size[0] = len(module.parsed.globals[name.decode()])

    def _module(self, handle: int) -> LoadedModule:
        """Return the module of a handle; raise DriverError if none is loaded."""
        if handle not in self._loaded:
            raise DriverError(_INVALID_HANDLE, "no module of this handle is loaded")
        return self._loaded[handle]


def _file(path: int) -> bytes:
    """Return the contents of the file whose name is at an address."""
    name = ctypes.string_at(path)
    try:
        return Path(os.fsdecode(name)).read_bytes()
    except OSError as error:
        raise DriverError(_FILE_NOT_FOUND, str(error)) from error


def _encode_map(  # arguments as in Callbacks::encode_map of device.h
    room: int, itemsize: int, rank: int, address: int, sizes: Any, strides: Any, box: Any, steps: Any, *rest: Any
) -> None:
    """Encode a tensor map, tiled if `box` is not null and im2col otherwise, into the 128 bytes at `room`."""
    lower, upper, channels, pixels, swizzle = rest
    im2col = None if box else (lower[: rank - 2], upper[: rank - 2], channels, pixels)
    try:
        words = encode_map(
            address,
            itemsize,
            sizes[:rank],
            strides[: rank - 1],
            steps[:rank],
            swizzle,
            box[:rank] if box else (),
            im2col,
        )
    except ValueError as error:
        raise DriverError(_INVALID_VALUE, f"a tensor map is refused: {error}") from error
    ctypes.memmove(room, words, _MAP_BYTES)


def _answering(library: ctypes.CDLL, function: Callable[..., None]) -> Callable[..., int]:
    """Return a C callback: it returns 0, or sets the driver's error text and returns the error code."""

    @wraps(function)
    def answer(*arguments: Any) -> int:
        try:
            function(*arguments)
        except DriverError as error:
            library.emulated_set_error(error.code, str(error).encode())
            return error.code
        except Exception as error:
            library.emulated_set_error(_INVALID_PTX, f"the emulator failed: {type(error).__name__}: {error}".encode())
            return _INVALID_PTX
        return 0

    return answer


_kept: list[Any] = []  # keeps alive what C++ has pointers to


def configure(library: ctypes.CDLL, settings: Settings) -> None:
    """Declare the driver's C functions, and pass it the settings and the table of callbacks."""
    library.emulated_allocate.restype = ctypes.c_uint64
    library.emulated_allocate.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int)
    library.emulated_free.argtypes = (ctypes.c_uint64,)
    library.emulated_set_error.argtypes = (ctypes.c_int, ctypes.c_char_p)
    library.emulated_launches.restype = ctypes.c_uint64
    modules = _Modules(library)
    callbacks = _Callbacks(
        _LOAD(_answering(library, modules.load)),
        _UNLOAD(_answering(library, modules.unload)),
        _GET_FUNCTION(_answering(library, modules.get_function)),
        _GET_GLOBAL(_answering(library, modules.get_global)),
        _ENCODE(_answering(library, _encode_map)),
        ctypes.cast(build.engine().emulator_launch, ctypes.c_void_p),
    )
    configure_again(library, settings, ctypes.byref(callbacks))
    _kept.extend((modules, callbacks))
    atexit.register(_shut_down, library)


def pending_error(library: ctypes.CDLL) -> str | None:
    """Run all pending work of all streams; return the text of the first error, or None."""
    code = library.emulated_drain()
    if code == 0:
        return None
    library.emulated_cudaGetErrorString.restype = ctypes.c_char_p
    text: bytes = library.emulated_cudaGetErrorString(code)
    return text.decode(errors="replace")


def _shut_down(library: ctypes.CDLL) -> None:
    """Run pending work at the end of the process, while the programs of kernels exist; print an error, if any."""
    error = pending_error(library)
    library.emulated_shut_down()
    if error is not None:
        print(f"emulated_cuda: work that nothing waited for failed: {error}", file=sys.stderr)


in_use: list[Settings] = []  # the current settings, one element


def configure_again(library: ctypes.CDLL, settings: Settings, callbacks: Any = None) -> None:
    """Pass new settings to the driver. No work may be pending."""
    values = astuple(settings)
    library.emulated_configure((ctypes.c_int64 * len(values))(*map(int, values)), callbacks)
    in_use[:] = [settings]
