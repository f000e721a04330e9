"""Launching kernels on arrays."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Sequence

from mojo_runtime import _native
from mojo_runtime.arrays import Array
from mojo_runtime.devices import devices
from mojo_runtime.spec import KernelSpec
from mojo_runtime.store import Entry
from mojo_runtime.streams import Stream, current_stream

_MAXIMUM_REQUESTS = 256


class Number:
    """A scalar of any kind, for kernels that read it with `call.number[dtype](i)`: two words.

    Args:
        value: An int, bool or float.
    """

    def __init__(self, value: float) -> None:
        self.value = value


Scalar = int | float | bool | str | None | Number | Sequence[int]
"""A kernel's scalar argument: a str names a dtype, None is an optional one that is not given, a sequence holds ints."""


def _float_word(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def encode_scalars(scalars: Iterable[Scalar]) -> list[int]:
    """Returns the words of scalar arguments, as docs/architecture.md defines them.

    Raises:
        TypeError: A value that can't be a scalar argument.
        OverflowError: An int that 64 bits can't hold.
    """
    words: list[int] = []
    for scalar in scalars:
        match scalar:
            case None:
                words.append(0)
            case int():
                words.append(int(scalar))
            case float():
                words.append(_float_word(scalar))
            case str():
                words.append(_native.DTYPE_CODES[scalar])
            case Number(value=int(value)):
                words += [int(value), _float_word(float(value))]
            case Number(value=value):
                # As in C, a float outside of int64 has no integer part to speak of.
                words += [int(value) if abs(value) < 2.0**63 else 0, _float_word(value)]
            case [*values] if all(isinstance(value, int) for value in values):
                words += [len(values), *values]
            case _:
                raise TypeError(f"{scalar!r} can't be a scalar argument of a kernel")
    for word in words:
        if not -(1 << 63) <= word < 1 << 63:
            raise OverflowError(f"{word} does not fit into 64 bits")
    return words


class Slot:
    """The place of a kernel in this process.

    Args:
        spec: The kernel, or its key.
    """

    def __init__(self, spec: KernelSpec | str) -> None:
        self.key = spec.key if isinstance(spec, KernelSpec) else spec
        devices()
        self._native = _native.library()
        self.address: int = self._native.mojo_slot(self.key.encode())

    @property
    def state(self) -> int:
        """EMPTY, REQUESTED, READY or FAILED of `mojo_runtime._native`."""
        return int(self._native.mojo_slot_state(self.address))

    def request(self) -> None:
        """Asks for the kernel, without waiting.

        Raises:
            RuntimeError: It does not compile; the message is the compiler's.
        """
        self._native.mojo_slot_request(self.address)

    def wait(self) -> None:
        """Waits until the kernel is compiled and loaded.

        Raises:
            RuntimeError: It does not compile; the message is the compiler's.
        """
        self._native.mojo_slot_wait(self.address)


_slots: dict[str, Slot] = {}


def slot(spec: KernelSpec | str) -> Slot:
    """Returns the slot of a kernel."""
    key = spec.key if isinstance(spec, KernelSpec) else spec
    found = _slots.get(key)
    if found is None:
        found = _slots[key] = Slot(key)
    return found


def launch(
    kernel: KernelSpec | str | Slot,
    arrays: Sequence[Array | None],
    scalars: Iterable[Scalar] = (),
    stream: Stream | None = None,
) -> None:
    """Runs a kernel on a stream. Returns before it is done, and also before it is compiled where that is needed.

    Args:
        kernel: A spec, its key or its slot.
        arrays: Outputs first, all of one device; None for an optional one that is not given.
        scalars: The kernel's other arguments.
        stream: By default the current one of the arrays' device.

    Raises:
        ValueError: The arrays are on different devices.
        Exception: The kernel failed and the stream was idle, or it does not compile; else the next synchronization of
            the stream raises that.
    """
    target = kernel if isinstance(kernel, Slot) else slot(kernel)
    places = {array.device.index for array in arrays if array is not None}
    if stream is None:
        stream = current_stream(min(places, default=0))
    if places - {stream.device.index}:
        raise ValueError(f"{target.key}: arrays on devices {sorted(places)}, stream on device {stream.device.index}")
    tensors = (_native.Tensor * max(1, len(arrays)))()
    for i, array in enumerate(arrays):
        if array is None:
            tensors[i].flags = _native.ABSENT
        else:
            tensors[i] = array._tensor
            array.use(stream)
    words = encode_scalars(scalars)
    call = _native.KernelCall(tensors, len(arrays), (ctypes.c_int64 * max(1, len(words)))(*words), len(words))
    target._native.mojo_launch(target.address, call, stream.device.index, stream.id)


def launch_count() -> int:
    """Returns how many kernels were launched in this process, by whomever."""
    return int(_native.library().mojo_launch_count())


class NativeCore:
    """The native core as the compile service sees it."""

    def __init__(self) -> None:
        self._native = _native.library()
        self._requests = (ctypes.c_void_p * _MAXIMUM_REQUESTS)()

    def next_requests(self, timeout_milliseconds: int) -> Sequence[tuple[int, str]]:
        """Waits for slots that need a kernel; returns each with its key."""
        count = self._native.mojo_next_requests(timeout_milliseconds, self._requests, _MAXIMUM_REQUESTS)
        slots = [address for address in self._requests[:count] if address is not None]
        return [(address, self._native.mojo_slot_key(address).decode()) for address in slots]

    def interrupt_requests(self) -> None:
        """Ends a wait."""
        self._native.mojo_interrupt_requests()

    def index_add(self, key: str, entry: Entry) -> None:
        """Tells where a kernel is."""
        self._native.mojo_index_add(key.encode(), str(entry.library).encode(), entry.symbol.encode())

    def load(self, slot: int, entry: Entry) -> None:
        """Fills a slot.

        Raises:
            RuntimeError: The library can't be loaded.
        """
        self._native.mojo_slot_load(slot, str(entry.library).encode(), entry.symbol.encode())

    def fail(self, slot: int, message: str) -> None:
        """Marks a slot as failed for good."""
        self._native.mojo_slot_fail(slot, _native.STATUSES[RuntimeError], message.encode())

    def reset(self, slot: int) -> None:
        """Makes a failed slot ask again at its next use."""
        self._native.mojo_slot_reset(slot)
