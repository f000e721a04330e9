"""Simulated memory with a shadow byte per byte: red zone, allocated, initialised."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import PtxError

Array = npt.NDArray[Any]

UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
RED, ALLOCATED, INITIALISED = 0, 1, 2
UNWRITTEN_BYTE = 0xCB


class Space:
    """A flat range of bytes with a view per access size and a shadow map.

    Args:
        nbytes: The size, rounded up to 16 bytes.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = -(-nbytes // 16) * 16
        raw = np.zeros(self.nbytes + 256, np.uint8)
        start = -raw.ctypes.data % 256
        self.bytes: Array = raw[start : start + self.nbytes]
        self.views: dict[int, Array] = {size: self.bytes.view(dtype) for size, dtype in UNSIGNED.items()}
        self.shadow: Array = np.zeros(self.nbytes, np.uint8)


class DeviceMemory(Space):
    """Global memory: one arena, allocations separated by red zones.

    Addresses are host addresses inside the arena, so that host code of the same process (a captured launch) and the
    interpreted kernels share pointers. Freed memory is not handed out again before `reset`: use after free is found.

    Args:
        nbytes: The size of the arena.
        redzone: Bytes between allocations that nothing may touch.
    """

    ALIGNMENT = 256

    def __init__(self, nbytes: int = 64 << 20, redzone: int = 256) -> None:
        super().__init__(nbytes)
        self.base: int = self.bytes.ctypes.data
        self.redzone = redzone
        self.top = redzone
        self.bottom_of_permanent = self.nbytes
        self.live: dict[int, tuple[int, str]] = {}
        self.permanent: set[int] = set()

    def allocate(self, nbytes: int, label: str = "", alignment: int | None = None, permanent: bool = False) -> int:
        """Reserves uninitialised memory.

        Args:
            nbytes: The size.
            label: What messages call it.
            alignment: Of the address; 256 bytes by default.
            permanent: Keep it across `reset` (module-level variables of loaded PTX).

        Returns:
            The address.

        Raises:
            MemoryError: The arena is full.
        """
        alignment = alignment or self.ALIGNMENT
        if permanent:
            offset = (self.bottom_of_permanent - self.redzone - nbytes) // alignment * alignment
            if offset < self.top:
                raise MemoryError("the simulated device memory is full")
            self.bottom_of_permanent = offset
            self.permanent.add(self.base + offset)
        else:
            offset = -(-self.top // alignment) * alignment
            if offset + nbytes + self.redzone > self.bottom_of_permanent:
                raise MemoryError("the simulated device memory is full")
            self.top = offset + nbytes + self.redzone
        self.shadow[offset : offset + nbytes] = ALLOCATED
        self.bytes[offset : offset + nbytes] = UNWRITTEN_BYTE
        self.live[self.base + offset] = (nbytes, label)
        return self.base + offset

    def free(self, address: int) -> None:
        """Makes an allocation inaccessible.

        Args:
            address: What `allocate` returned.

        Raises:
            KeyError: It is not allocated.
        """
        nbytes, _ = self.live.pop(address)
        offset = address - self.base
        self.shadow[offset : offset + nbytes] = RED

    def reset(self) -> None:
        """Forgets every allocation that is not permanent; their memory is handed out again."""
        self.shadow[: self.top] = RED
        self.top = self.redzone
        self.live = {address: entry for address, entry in self.live.items() if address in self.permanent}

    def check_range(self, address: int, nbytes: int, what: str) -> None:
        """Raises if the host touches bytes outside of an allocation.

        Args:
            address: The first byte.
            nbytes: How many.
            what: What the host does, for the message.

        Raises:
            PtxError: Some of the bytes are not allocated.
        """
        offset = address - self.base
        inside = offset >= 0 and offset + nbytes <= self.nbytes
        if nbytes and not (inside and (self.shadow[offset : offset + nbytes] != RED).all()):
            raise PtxError(f"out-of-bounds: the host {what} {nbytes} bytes at {self.describe(address)}")

    def copy_shadow(self, destination: int, source: int, nbytes: int) -> None:
        """Copies which bytes are initialised, as a copy within the device does."""
        to, start = destination - self.base, source - self.base
        self.shadow[to : to + nbytes] = self.shadow[start : start + nbytes]

    def array(self, values: npt.ArrayLike, label: str = "", alignment: int | None = None) -> DeviceArray:
        """Copies an array to new device memory."""
        values = np.ascontiguousarray(values)
        result = DeviceArray(self, self.allocate(values.nbytes, label, alignment), values.shape, values.dtype)
        result.numpy()[...] = values
        self.mark_initialised(result.address, values.nbytes)
        return result

    def empty(
        self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, label: str = "", alignment: int | None = None
    ) -> DeviceArray:
        """New device memory whose elements count as never written."""
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return DeviceArray(self, self.allocate(nbytes, label, alignment), shape, dtype)

    def mark_initialised(self, address: int, nbytes: int) -> None:
        """Declares bytes as written, as a copy from the host does."""
        offset = address - self.base
        self.shadow[offset : offset + nbytes] = INITIALISED

    def describe(self, address: int) -> str:
        """Where an address lies relative to the nearest allocation, for messages."""
        nearest: tuple[int, int, int, str] | None = None
        for start, (nbytes, label) in self.live.items():
            last = start + max(nbytes, 1) - 1
            distance = 0 if start <= address <= last else min(abs(address - start), abs(address - last))
            if nearest is None or distance < nearest[0]:
                nearest = (distance, start, nbytes, label)
        if nearest is None:
            return f"address {address:#x}"
        _, start, nbytes, label = nearest
        return f"byte offset {address - start} of {label or 'an allocation'} ({nbytes} bytes)"


class DeviceArray:
    """A dense array in device memory.

    Args:
        memory: The arena.
        address: Of the first element.
        shape: The sizes.
        dtype: The element type.
    """

    def __init__(self, memory: DeviceMemory, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.memory, self.address, self.shape, self.dtype = memory, address, shape, dtype

    def _range(self) -> slice:
        start = self.address - self.memory.base
        return slice(start, start + int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize)

    def numpy(self) -> Array:
        """A live view of the device bytes."""
        return self.memory.bytes[self._range()].view(self.dtype).reshape(self.shape)

    def written(self) -> Array:
        """Which elements have been initialised, as booleans of the array's shape."""
        shadow = self.memory.shadow[self._range()].reshape(-1, self.dtype.itemsize)
        return np.asarray((shadow == INITIALISED).all(1).reshape(self.shape))
