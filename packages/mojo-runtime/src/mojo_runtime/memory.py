"""Device memory: allocation, statistics, pinned host memory."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

from mojo_runtime import _native
from mojo_runtime._native import OutOfMemoryError
from mojo_runtime.devices import Device, device
from mojo_runtime.streams import Stream, current_stream


class Memory:
    """A block of device memory, freed with this object.

    The block belongs to the stream it is allocated on: once freed it is used again by later work of that stream. Other
    streams that use it must be named by `record_stream`. The host may touch it (CPU devices) when the stream is
    synchronized.

    Args:
        size: In bytes.
        index: The device.
        stream: By default the current one.

    Raises:
        OutOfMemoryError: The device has not enough memory.
    """

    def __init__(self, size: int, index: int | Device = 0, stream: Stream | None = None) -> None:
        self.device = device(index)
        self.stream = current_stream(self.device) if stream is None else stream
        self.size = size
        self._native = _native.library()
        address = ctypes.c_void_p()
        self._native.mojo_allocate(self.device.index, size, self.stream.id, address)
        self.address = address.value or 0

    def record_stream(self, stream: Stream) -> None:
        """Says that a stream uses the block: it is not used again before the stream has done what it has queued."""
        self._native.mojo_record_stream(self.address, stream.id)

    def __del__(self) -> None:
        if self.__dict__.get("address"):
            self._native.mojo_free(self.address)


class PinnedMemory:
    """A block of page-locked host memory, which copies that don't block read and write when the stream gets there.

    It may be freed while such copies are queued.

    Args:
        size: In bytes.
        index: The device whose copies are asynchronous.

    Raises:
        OutOfMemoryError: The host has not enough memory.
    """

    def __init__(self, size: int, index: int | Device = 0) -> None:
        self.device = device(index)
        self.size = size
        self._native = _native.library()
        address = ctypes.c_void_p()
        self._native.mojo_pinned_allocate(self.device.index, size, address)
        self.address = address.value or 0

    def __del__(self) -> None:
        if self.__dict__.get("address"):
            self._native.mojo_pinned_free(self.address)


@dataclasses.dataclass(frozen=True)
class MemoryStatistics:
    """A device's allocations since the process started or since the last reset. Sizes are in bytes as asked for.

    Memory that is kept for reuse does not count, so reserved and allocated bytes are the same.
    """

    allocated_current: int
    allocated_peak: int
    allocated_total: int
    freed_total: int
    reserved_current: int
    reserved_peak: int
    allocations_current: int
    allocations_peak: int
    allocations_total: int
    frees_total: int
    out_of_memory_count: int


def memory_statistics(index: int | Device = 0) -> MemoryStatistics:
    """Returns the statistics of a device."""
    values = _native.MemoryStatistics()
    _native.library().mojo_memory_statistics(device(index).index, values)
    return MemoryStatistics(
        **{field.name: getattr(values, field.name) for field in dataclasses.fields(MemoryStatistics)}
    )


def reset_peak_memory_statistics(index: int | Device = 0) -> None:
    """Sets the peaks to the current values."""
    _native.library().mojo_reset_peak_statistics(device(index).index)


def reset_accumulated_memory_statistics(index: int | Device = 0) -> None:
    """Sets the totals and the count of failed allocations to zero."""
    _native.library().mojo_reset_accumulated_statistics(device(index).index)


def memory_info(index: int | Device = 0) -> tuple[int, int]:
    """Returns the free and the total bytes of a device; of the host where the device is a CPU."""
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    _native.library().mojo_memory_info(device(index).index, free, total)
    return free.value, total.value


def empty_cache(index: int | Device = 0) -> None:
    """Waits for the device and gives memory that is kept for reuse back to the system."""
    _native.library().mojo_empty_cache(device(index).index)


def is_pinned(address: int) -> bool:
    """Whether an address lies in pinned memory of this runtime."""
    return bool(_native.library().mojo_is_pinned(address))


def pointer_device(address: int) -> Device | None:
    """Returns the device whose memory an address lies in, None for host memory."""
    index = _native.library().mojo_pointer_device(address)
    return None if index == _native.HOST else device(index)


def copy(
    destination: int,
    source: int,
    size: int,
    *,
    destination_device: Device | None = None,
    source_device: Device | None = None,
    stream: Stream | None = None,
    blocking: bool = True,
) -> None:
    """Copies bytes between host and device memory.

    Args:
        destination: An address.
        source: An address.
        size: In bytes.
        destination_device: None for host memory.
        source_device: None for host memory.
        stream: Orders the copy; of the device that takes part, the destination's where both are devices. By default the
            current one. A stream of another source device must be waited for.
        blocking: Whether the copy is done on return. If not, pinned host memory is read or written when the stream gets
            there; other host memory is copied to a buffer first as a source, and blocks as a destination.

    Raises:
        Exception: A blocking copy raises what failed in the stream before it.
    """
    target = destination_device or source_device
    if stream is None:
        stream_id = 0 if target is None else current_stream(target).id
    else:
        stream_id = stream.id
    numbers: list[Any] = [
        _native.HOST if place is None else place.index for place in (destination_device, source_device)
    ]
    _native.library().mojo_copy(destination, numbers[0], source, numbers[1], size, stream_id, int(blocking))


__all__ = [
    "Memory",
    "MemoryStatistics",
    "OutOfMemoryError",
    "PinnedMemory",
    "copy",
    "empty_cache",
    "is_pinned",
    "memory_info",
    "memory_statistics",
    "pointer_device",
    "reset_accumulated_memory_statistics",
    "reset_peak_memory_statistics",
]
