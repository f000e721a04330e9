"""DLPack: tensors exchanged with other libraries without copying, as unversioned capsules."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

CPU = 1
"""DLDeviceType of host memory, which CPU devices use."""

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_TYPES = {
    "bool": (_BOOL, 8),
    "bfloat16": (_BFLOAT, 16),
    **{f"int{bits}": (_INT, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (_UINT, bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (_FLOAT, bits) for bits in (16, 32, 64)},
    **{f"complex{bits}": (_COMPLEX, bits) for bits in (64, 128)},
}
_NAMES = {value: name for name, value in _TYPES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _ManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]


_NEW, _USED = b"dltensor", b"used_dltensor"
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# Addresses instead of objects: the destructor gets a capsule whose count is zero already.
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))

# What exported capsules keep alive, until their consumer or the capsule itself gives it back.
_exported: dict[int, tuple[object, ...]] = {}


def _forget(address: int) -> None:
    _exported.pop(address, None)


def _forget_unused(capsule: int) -> None:
    if _is_valid(capsule, _NEW):
        _forget(_get_pointer(capsule, _NEW))


_delete = _DELETER(_forget)
_destroy = _DESTRUCTOR(_forget_unused)


@dataclasses.dataclass(frozen=True)
class Imported:
    """A tensor of another library.

    Attributes:
        address: Of the first element.
        shape: Sizes.
        strides: In elements.
        dtype: The element type's name.
        device_type: DLDeviceType.
        release: Tells the producer that the tensor is not used any more; to be called once.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device_type: int
    release: Callable[[], None]


def export(
    owner: object,
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: str,
    device: tuple[int, int] = (CPU, 0),
) -> Any:
    """Returns a capsule with a view of memory that `owner` keeps alive.

    Args:
        owner: Kept until the consumer is done.
        address: Of the first element.
        shape: Sizes.
        strides: In elements.
        dtype: The element type's name.
        device: DLDeviceType and its index.
    """
    words = ctypes.c_int64 * max(1, len(shape))
    sizes, steps = words(*shape), words(*strides)
    code, bits = _TYPES[dtype]
    tensor = _Tensor(address, *device, len(shape), code, bits, 1, sizes, steps, 0)
    managed = _ManagedTensor(tensor, None, _delete)
    location = ctypes.addressof(managed)
    _exported[location] = (owner, managed, sizes, steps)
    return _new_capsule(location, _NEW, _destroy)


def consume(capsule: Any) -> Imported:
    """Takes over the tensor in a capsule.

    Raises:
        ValueError: The capsule was consumed before, or its element type is unknown.
    """
    if not _is_valid(id(capsule), _NEW):
        raise ValueError("not a DLPack capsule, or one that was used already")
    managed = _ManagedTensor.from_address(_get_pointer(id(capsule), _NEW))
    tensor = managed.tensor
    dtype = _NAMES.get((tensor.type_code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise ValueError(f"DLPack type code {tensor.type_code} with {tensor.bits} bits is not supported")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else row_major(shape)
    _set_name(capsule, _USED)
    location = ctypes.addressof(managed)

    def release() -> None:
        if managed.deleter:
            managed.deleter(location)

    address = (tensor.data or 0) + tensor.byte_offset
    return Imported(address, shape, strides, dtype, tensor.device_type, release)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a contiguous tensor."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(1, shape[i + 1])
    return tuple(strides)
