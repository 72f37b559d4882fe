"""Prepared calls: a validated, planned call with loaded kernels, so that running it only fills in addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from gpuconv._errors import ArgumentError, DeviceError
from gpuconv._packed import PackedWeights
from gpuconv.cuda.call import device as runtime
from gpuconv.cuda.plan import Launch, Plan
from gpuconv.rules import memory

# Slots of one call. Pointers: (struct words, word index, position of the address). Maps: (struct words, slice of the
# map, position, encoder). Launches: functions without arguments.
_Map = tuple[memoryview, slice, int, Callable[[int], memoryview]]
_Slots = tuple[list[tuple[memoryview, int, int]], list[_Map], list[Callable[[], None]]]
_MAP_WORDS = 16
_ALIGNMENT = 512  # bytes, for each part of a workspace
_LONG = 2**28  # bytes; twice as many elements, for complex parts, fit 32 bits


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a call: its role in the plan, its name in messages, its shape and dtype."""

    role: str
    name: str
    shape: tuple[int, ...]
    dtype: Any


class Prepared:
    """One operator on arrays of fixed shapes, strides and dtypes on one device.

    Parameters
    ----------
    device : int
        The current device, which all arrays are on.
    plan : Plan inputs : dict of str to array
        By their names in messages; only their layout is used, not their values.
    input_roles : mapping of str to str
        From these names to the plan's roles, where they differ.
    results : sequence of Result outs : sequence of arrays or None
        Arrays that the caller provides to write into, one per result; their shapes and dtypes are already checked.
    """

    def __init__(
        self,
        device: int,
        plan: Plan,
        inputs: dict[str, Any],
        input_roles: Mapping[str, str],
        results: Sequence[Result],
        outs: Sequence[Any],
    ) -> None:
        self.plan = plan
        self._device = device
        self._inputs = [(name, memory.Place(array)) for name, array in inputs.items()]
        self._input_roles = input_roles
        self._outs = [None if out is None else memory.Place(out) for out in outs]
        self._has_outs = any(self._outs)
        masks = [array.itemsize - 1 for array in inputs.values()]
        self._misaligned = min(masks)
        more = len(masks) > 3
        self._wider = [(position, mask) for position, mask in enumerate(masks) if more or mask > self._misaligned]
        self._made = results
        self._results = [(r.shape, r.dtype.type, f"{plan.operator}: {r.role} of shape {r.shape}") for r in results]
        self._names = [(result.role, result.name) for result in results]
        spaces = plan.spaces
        uses = " and ".join(space.use for space in spaces)
        sizes = [-(-space.bytes // _ALIGNMENT) * _ALIGNMENT for space in spaces]
        if spaces:
            sizes[-1] = spaces[-1].bytes
        self._workspace = (sum(sizes), f"{plan.operator}: the workspace ({uses})") if spaces else None
        self._parts = sizes[1:] and sizes
        self._before = spaces[-1].before if spaces else 0  # offset of the first element in the last part
        roles = [
            *(input_roles.get(name, name) for name in inputs),
            *(result.role for result in results),
            *(space.role for space in spaces),
        ]
        self._views = [(roles.index(role), nbytes) for _, role, nbytes in plan.views]
        roles += [name for name, _, _ in plan.views]
        self._stricter = [(roles.index(role), nbytes - 1) for role, nbytes in plan.alignment]
        self._wider += self._stricter
        chain = len(plan.launches) > 1 and runtime.chains(device)
        self._steps = [_Step(device, launch, roles, chain, chain and k > 0) for k, launch in enumerate(plan.launches)]
        self._slots: list[_Slots] = []  # free slots of finished calls; list pop and append are atomic
        self._order = _order(plan)
        self._rest: Prepared | None = None  # the call without packing, for packed weights
        self._otherwise: Prepared | None = None  # the fallback for addresses that are not aligned as the plan requires

    def run(self, inputs: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
        """Launch the operator on the current stream and return its results, which are written asynchronously.

        Raises
        ------
        ArgumentError
            An address is not aligned to its dtype, or an ``out`` shares memory with another array.
        DeviceError, OutOfDeviceMemory
        """
        addresses = [*map(runtime.address, inputs)]
        # covers one to three inputs
        if (addresses[0] | addresses[len(addresses) // 2] | addresses[-1]) & self._misaligned:
            self._refuse_alignment(addresses)
        if self._wider and any(addresses[position] & mask for position, mask in self._wider):
            self._refuse_alignment(addresses)
            return self._with_any_alignment(inputs, outs).run(inputs, outs)
        if self._has_outs:
            pairs = zip(self._results, outs, strict=True)
            results = [runtime.empty(*made) if out is None else out for made, out in pairs]
            addresses += map(runtime.address, results)
            self._check_outs(addresses)
        else:
            results = []
            for made in self._results:
                result = runtime.empty(*made)
                results.append(result)
                addresses.append(runtime.address(result))
        workspace = None
        if self._workspace:
            workspace = runtime.workspace(*self._workspace)
            addresses += runtime.parts(workspace, self._parts) if self._parts else (runtime.address(workspace),)
            addresses[-1] += self._before
        if self._views:
            addresses += [addresses[position] + nbytes for position, nbytes in self._views]
        runtime.keep(workspace, results, inputs)
        try:
            words, maps, launches = self._slots.pop()
        except IndexError:  # the first call, or other threads are using all slots
            words, maps, launches = self._new_slots()
        for struct, word, position in words:
            struct[word] = addresses[position]
        if maps:
            _fill_maps(maps, addresses)
        try:
            for launch in launches:
                launch()
        except RuntimeError as error:
            raise self._refused_launch(error) from error
        self._slots.append((words, maps, launches))
        return results

    def run_packed(self, weights: PackedWeights, inputs: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
        """Run as :meth:`run` with packed weights; pack them first, for later calls too, if this layout is missing.

        Packing waits until it is done, so no other stream or graph has to. A graph being captured packs for itself,
        since its result would not exist before its launch. ``weights`` must be those of the input that stands for w.
        """
        if self._stricter:
            addresses = [*map(runtime.address, inputs)]
            if any(addresses[position] & mask for position, mask in self._stricter):
                self._refuse_alignment(addresses)
                return self._with_any_alignment(inputs, outs).run_packed(weights, inputs, outs)
        buffer = weights.buffer(self._order)
        if not self._order or (buffer is None and runtime.is_capturing()):
            results = [None] if weights.ahead else self.run(inputs, outs)
        else:
            if buffer is None:
                buffer = weights.add(self._order, self._pack)
            if self._rest is None:
                self._rest = self._without_packing(inputs, outs, buffer)
            results = [None] if weights.ahead else self._rest.run((*inputs, buffer), outs)
        if weights.ahead:
            return results
        runtime.keep(weights, results)
        return results

    def _pack(self, w: Any) -> Any:
        """Return the packed weights, complete and visible to every stream."""
        plan = self.plan
        buffer = runtime.empty((plan.bytes_of("packed"),), np.uint8, f"{plan.operator}: the packed weights")
        addresses = runtime.address(w), runtime.address(buffer)
        try:
            for launch in plan.sharing or plan.launches:
                if launch.packs:
                    step = _Step(self._device, launch, ["w", "packed"])
                    struct, start = step.slot()
                    for word, position in step.pointers:
                        struct[word] = addresses[position]
                    start()
            runtime.wait()
        except RuntimeError as error:
            raise self._refused_launch(error) from error
        return buffer

    def _without_packing(self, inputs: Sequence[Any], outs: Sequence[Any], buffer: Any) -> Prepared:
        """Return the call that reads already packed weights from ``buffer``."""
        launches = tuple(launch for launch in self.plan.sharing or self.plan.launches if not launch.packs)
        spaces = tuple(space for space in self.plan.spaces if space.role != "packed")
        plan = replace(self.plan, launches=launches, spaces=spaces, sharing=(), alignment=(), otherwise=None)
        names = [*(name for name, _ in self._inputs), "packed"]
        arrays = dict(zip(names, (*inputs, buffer), strict=True))
        return Prepared(self._device, plan, arrays, self._input_roles, self._made, outs)

    def _with_any_alignment(self, inputs: Sequence[Any], outs: Sequence[Any]) -> Prepared:
        """Return the same call with the fallback plan, which requires no more alignment than elements do."""
        if self._otherwise is None:
            assert self.plan.otherwise is not None
            plan = replace(self.plan.otherwise(), operator=self.plan.operator)
            arrays = dict(zip((name for name, _ in self._inputs), inputs, strict=True))
            self._otherwise = Prepared(self._device, plan, arrays, self._input_roles, self._made, outs)
        return self._otherwise

    def _new_slots(self) -> _Slots:
        """Return parameter buffers for one call at a time."""
        words, maps, launches = [], [], []
        for step in self._steps:
            struct, launch = step.slot()
            words += [(struct, word, position) for word, position in step.pointers]
            maps += [(struct, part, position, encoded) for part, position, encoded in step.maps]
            launches.append(launch)
        return words, maps, launches

    def _refused_launch(self, error: RuntimeError) -> Exception:
        """Return the error for a launch that the driver refused."""
        names = ", ".join(launch.variant.name for launch in self.plan.launches)
        return DeviceError(
            f"{self.plan.operator}: the driver of device {self._device} refused to launch {names}: {error}"
        )

    def _refuse_alignment(self, addresses: list[int]) -> None:
        """Raise ArgumentError if an input is not aligned to its elements."""
        for (name, place), address in zip(self._inputs, addresses, strict=False):
            if address % place.itemsize:
                raise ArgumentError(_alignment(self.plan.operator, name, place.itemsize, f"address {address:#x}"))

    def _check_outs(self, addresses: list[int]) -> None:
        """Raise ArgumentError if an ``out`` overlaps another array.

        Address ranges are compared first, and elements only if the ranges intersect.
        """
        operator = self.plan.operator
        taken = [(name, place, at) for (name, place), at in zip(self._inputs, addresses, strict=False)]
        outs = zip(self._names, self._outs, addresses[len(taken) :], strict=False)
        for (role, name), place, at in outs:
            if place is None:
                continue
            if at % place.itemsize:
                raise ArgumentError(_alignment(operator, name, place.itemsize, f"address {at:#x}"))
            for other, its_place, its_at in taken:
                if at + place.low < its_at + its_place.high and its_at + its_place.low < at + place.high:
                    memory.refuse_overlap(operator, name, place.at(at), other, its_place.at(its_at))
            taken.append((role, place, at))


def _fill_maps(maps: list[_Map], addresses: list[int]) -> None:
    """Write the tensor maps for these addresses into the parameter structs."""
    for struct, part, position, encoded in maps:
        struct[part] = encoded(addresses[position])


class _Step:
    """One launch of a plan, with its kernel loaded.

    In a chain of overlapping launches every kernel waits for its predecessor. The first is a plain launch, ordered
    after all earlier work on the stream.
    """

    __slots__ = ("_follows", "_handle", "_launch", "maps", "pointers")

    def __init__(
        self, device: int, launch: Launch, roles: list[str], chain: bool = False, follows: bool = False
    ) -> None:
        self._launch = launch
        variant = launch.variant.chained_on(runtime.limits(device).architecture) if chain else launch.variant
        self._handle = runtime.load(variant, device, launch.shared_bytes)
        self._follows = follows
        self.pointers = [(offset // 8, roles.index(role)) for role, offset in launch.pointers]
        self.maps = [
            (slice(word, word + _MAP_WORDS), roles.index(described.role), runtime.tensor_map(described))
            for described in launch.maps
            for word in (launch.offset(described.member) // 8,)
        ]

    def slot(self) -> tuple[memoryview, Callable[[], None]]:
        """Return the 8-byte words of a parameter struct for one launch at a time, and the function that launches it."""
        launch = self._launch
        slot = runtime.parameters(launch.parameters)
        threads, shared_bytes = launch.variant.threads, launch.shared_bytes
        call = runtime.bind(self._handle, launch.grid, threads, shared_bytes, slot, self._follows)
        return slot.buffer.data.cast("B").cast("Q"), call


def _order(plan: Plan) -> tuple[Any, ...]:
    """Return a key of the packed layout, all that distinguishes how plans pack weights; empty without packing."""
    packing = [launch for launch in plan.sharing or plan.launches if launch.packs]
    return tuple((launch.variant.name, launch.grid, launch.shared_bytes, launch.parameters) for launch in packing)


def element_strides(operator: str, name: str, array: Any) -> tuple[int, ...]:
    """Return an array's strides in elements; those of a contiguous array if it has no elements.

    The stride of an axis of one element is never used, so a very long one becomes 0. Raises ArgumentError if a stride
    is not a whole number of elements.
    """
    if 0 in array.shape:
        return contiguous_strides(array.shape)
    if any(stride % array.itemsize for stride in array.strides):
        raise ArgumentError(_alignment(operator, name, array.itemsize, f"strides {array.strides}"))
    steps = zip(array.shape, array.strides, strict=True)
    return tuple(0 if n == 1 and abs(step) > _LONG else step // array.itemsize for n, step in steps)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a new C-contiguous array."""
    steps = accumulate(reversed(shape[1:]), mul, initial=1)
    return tuple(steps)[::-1]


def check_devices(operator: str, device: int, places: dict[str, int]) -> None:
    """Raise DeviceError unless every named array is on the current device."""
    if any(place != device for place in places.values()):
        listed = ", ".join(f"{name} on device {place}" for name, place in places.items())
        target = next(place for place in places.values() if place != device)
        advice = (
            f"call it inside `with cupy.cuda.Device({target}):`"
            if len(set(places.values())) == 1
            else "copy them to one device with gpuconv.to_device, called inside `with cupy.cuda.Device(n):`"
        )
        raise DeviceError(f"{operator}: the current device is {device}, but there is {listed}; {advice}")


def _alignment(operator: str, name: str, itemsize: int, what: str) -> str:
    """Return the message for an array that is not aligned to its elements."""
    return f"{operator}: {name} is not aligned to its elements of {itemsize} bytes ({what}); pass {name}.copy()"
