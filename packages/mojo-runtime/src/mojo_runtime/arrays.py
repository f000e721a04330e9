"""Arrays: strided views of device memory that kernels are launched on, and that NumPy and DLPack can see."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mojo_runtime import _native, dlpack
from mojo_runtime.devices import Device, device
from mojo_runtime.memory import Memory, PinnedMemory, copy
from mojo_runtime.streams import Stream, current_stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

ITEM_SIZES = {
    "bool": 1,
    "bfloat16": 2,
    "complex64": 8,
    "complex128": 16,
    **{f"{kind}{bits}": bits // 8 for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": bits // 8 for bits in (16, 32, 64)},
}
"""Element types and their sizes in bytes."""


def dtype_name(dtype: Any) -> str:
    """Returns the name of an element type.

    Args:
        dtype: A name such as "float32", or a type object of NumPy or torch.

    Raises:
        TypeError: There is no such element type.
    """
    for name in (dtype, getattr(dtype, "name", None), getattr(dtype, "__name__", None), str(dtype).rpartition(".")[2]):
        if isinstance(name, str) and name in ITEM_SIZES:
            return name
    raise TypeError(f"no element type {dtype!r}; there are {', '.join(sorted(ITEM_SIZES))}")


class _Foreign:
    """Memory that belongs to another library."""

    def __init__(self, imported: dlpack.Imported) -> None:
        weakref.finalize(self, imported.release)


class Array:
    """A strided view of memory of one device. `empty` and `array` make arrays.

    Attributes:
        device: Where it is.
        dtype: The element type's name.
        shape: The sizes.
        strides: In elements.
        address: Of the first element.
    """

    def __init__(
        self, owner: object, target: Device, address: int, dtype: str, shape: Sequence[int], strides: Sequence[int]
    ) -> None:
        self._owner = owner
        self.device = target
        self.dtype = dtype
        self.shape = tuple(shape)
        self.strides = tuple(strides)
        self.address = address
        words = ctypes.c_int64 * max(1, len(self.shape))
        self._words = words(*self.shape), words(*self.strides)
        self._tensor = _native.Tensor(
            address if self.size else None, *self._words, self.size, _native.DTYPE_CODES[dtype], len(self.shape), 0
        )

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return self.size * ITEM_SIZES[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        expected = dlpack.row_major(self.shape)
        return (
            all(n == 1 or a == b for n, a, b in zip(self.shape, self.strides, expected, strict=True)) or not self.size
        )

    def strided(self, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Array:
        """Returns another view of the same memory.

        Args:
            shape: Sizes.
            strides: In elements, not negative.
            offset: Of the first element from this array's, in elements.

        Raises:
            ValueError: This array is not contiguous, or the view reaches out of it.
        """
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        inside = min(strides, default=0) >= 0 and offset >= 0 and (last < self.size or math.prod(shape) == 0)
        if not self.is_contiguous or not inside:
            raise ValueError(f"shape {tuple(shape)}, strides {tuple(strides)}, offset {offset} reach out of {self!r}")
        address = self.address + offset * ITEM_SIZES[self.dtype]
        return Array(self._owner, self.device, address, self.dtype, shape, strides)

    def reshape(self, *shape: int) -> Array:
        """Returns the same elements with other sizes, of which one may be -1.

        Raises:
            ValueError: The sizes do not fit, or the array is not contiguous.
        """
        known = math.prod(n for n in shape if n != -1)
        sizes = tuple(self.size // max(1, known) if n == -1 else n for n in shape)
        if math.prod(sizes) != self.size or not self.is_contiguous:
            raise ValueError(f"cannot reshape {self!r} to {shape}")
        return self.strided(sizes, dlpack.row_major(sizes))

    def use(self, stream: Stream) -> None:
        """Says that a stream uses the array's memory; `launch` does."""
        if isinstance(self._owner, Memory) and self._owner.stream != stream:
            self._owner.record_stream(stream)

    def copy_from(self, source: Array, *, stream: Stream | None = None, blocking: bool = False) -> None:
        """Copies another array's elements.

        Args:
            source: On any device, or pinned, with this array's shape and dtype, both contiguous.
            stream: Of this array's device; by default the current one.
            blocking: Whether the copy is done on return.

        Raises:
            ValueError: The arrays do not fit.
        """
        if (self.shape, self.dtype) != (source.shape, source.dtype) or not (
            self.is_contiguous and source.is_contiguous
        ):
            raise ValueError(f"cannot copy {source!r} to {self!r}: shapes and dtypes must agree, both be contiguous")
        places = [None if isinstance(array._owner, PinnedMemory) else array.device for array in (self, source)]
        stream = current_stream(self.device) if stream is None else stream
        if self.device != source.device and all(places):
            stream.wait_stream(current_stream(source.device))
        for array in (self, source):
            if array.device == stream.device:
                array.use(stream)
        copy(
            self.address,
            source.address,
            self.nbytes,
            destination_device=places[0],
            source_device=places[1],
            stream=stream,
            blocking=blocking,
        )

    def numpy(self) -> NDArray[Any]:
        """Returns the elements as a NumPy array: of the same memory on CPU devices and for pinned arrays, else a copy.

        Waits for the device.

        Raises:
            TypeError: NumPy has no such element type (bfloat16).
            Exception: What failed in a queue of the device.
        """
        if self.dtype == "bfloat16":
            raise TypeError("NumPy has no bfloat16: use DLPack (torch.from_dlpack), or launch a conversion to float32")
        import numpy

        self.device.synchronize()
        if self.device.kind == "cpu" or isinstance(self._owner, PinnedMemory):
            return numpy.asarray(_HostView(self))
        if not self.is_contiguous:
            raise ValueError(f"{self!r} is not contiguous: only contiguous arrays are copied from a GPU")
        result = numpy.empty(self.shape, self.dtype)
        copy(result.ctypes.data, self.address, self.nbytes, source_device=self.device)
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        result = self.numpy()
        if copy is False and (result.base is None or dtype not in (None, result.dtype)):
            raise ValueError("the elements can't be seen by NumPy without a copy")
        return result.astype(dtype or result.dtype, copy=bool(copy))

    def __dlpack__(self, **_: Any) -> Any:
        if self.device.kind != "cpu":
            raise BufferError(f"{self!r}: DLPack is for CPU devices so far; use numpy()")
        self.device.synchronize()
        return dlpack.export(self, self.address, self.shape, self.strides, self.dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    def __repr__(self) -> str:
        return f"Array(shape={self.shape}, dtype={self.dtype}, strides={self.strides}, device={self.device.index})"


class _HostView:
    """What NumPy makes a view from; keeps the array alive."""

    def __init__(self, array: Array) -> None:
        import numpy

        self.array = array
        item = ITEM_SIZES[array.dtype]
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": numpy.dtype(array.dtype).str,
            "data": (array.address, False),
            "strides": tuple(step * item for step in array.strides),
        }


def empty(
    shape: int | Sequence[int],
    dtype: Any = "float32",
    target: int | Device = 0,
    *,
    stream: Stream | None = None,
    pinned: bool = False,
) -> Array:
    """Returns a contiguous array with arbitrary elements.

    Args:
        shape: Sizes.
        dtype: The element type.
        target: The device.
        stream: Orders the reuse of the memory; by default the current one.
        pinned: In page-locked host memory, for copies to and from the device that don't block.

    Raises:
        OutOfMemoryError: There is not enough memory.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    name = dtype_name(dtype)
    place = device(target)
    size = math.prod(sizes) * ITEM_SIZES[name]
    memory = PinnedMemory(size, place) if pinned else Memory(size, place, stream)
    return Array(memory, place, memory.address, name, sizes, dlpack.row_major(sizes))


def array(values: Any, dtype: Any = None, target: int | Device = 0, *, pinned: bool = False) -> Array:
    """Returns an array with a copy of some values.

    Args:
        values: What `numpy.asarray` takes, or a contiguous CPU tensor of any library with DLPack.
        dtype: The element type; by default that of `values`.
        target: The device.
        pinned: In page-locked host memory instead.
    """
    if hasattr(values, "__dlpack__") and not hasattr(values, "__array_interface__") and dtype is None:
        source = from_dlpack(values, target)
        if not source.is_contiguous:
            raise ValueError(f"cannot copy {source!r}: it is not contiguous")
        shape, name, address = source.shape, source.dtype, source.address
        keep: Any = source
    else:
        import numpy

        keep = numpy.ascontiguousarray(values, None if dtype is None else dtype_name(dtype))
        shape, name, address = numpy.shape(values), dtype_name(keep.dtype), keep.ctypes.data
    result = empty(shape, name, target, pinned=pinned)
    copy(result.address, address, result.nbytes, destination_device=None if pinned else result.device)
    del keep
    return result


def from_dlpack(tensor: Any, target: int | Device = 0) -> Array:
    """Returns an array over the memory of another library's CPU tensor, for CPU devices.

    The device's streams do not know about uses by the other library: synchronize before it looks at results.

    Raises:
        ValueError: The tensor is not in host memory, or the device is a GPU.
    """
    place = device(target)
    if tensor.__dlpack_device__()[0] != dlpack.CPU or place.kind != "cpu":
        raise ValueError("only CPU tensors can be used without a copy, and only by CPU devices; use array() to copy")
    imported = dlpack.consume(tensor.__dlpack__())
    return Array(_Foreign(imported), place, imported.address, imported.dtype, imported.shape, imported.strides)
