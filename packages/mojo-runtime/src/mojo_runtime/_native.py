"""The C interface of the native core (native/mojo_runtime.h) for Python.

`library()` builds the library if needed and loads it for all later libraries of the process, so that native frontends
find its symbols. Its functions have their C names and argument types; those that return a MojoStatus raise the
exception it stands for, with the core's message.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_double, c_int16, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from mojo_runtime.native_build import build_library

FOLDER = Path(__file__).parent / "native"
HOST = -1
"""MOJO_HOST, the device of host memory."""
HOST_SCALAR = 1
ABSENT = 2
"""Flags of a Tensor."""

DTYPE_CODES = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "complex64": 9,
    "complex128": 10,
    "bool": 11,
    "bfloat16": 15,
    "uint16": 27,
    "uint32": 28,
    "uint64": 29,
}
"""MojoDType: the code of each element type."""


class OutOfMemoryError(RuntimeError):
    """A device or the host has not enough memory; the message contains "out of memory" and the sizes."""


OK = 0
STATUSES: dict[type[Exception], int] = {
    NotImplementedError: 1,
    RuntimeError: 2,
    OutOfMemoryError: 3,
    IndexError: 4,
    ValueError: 5,
    TypeError: 6,
}
"""MojoStatus: the code of each exception."""
EXCEPTIONS = {status: exception for exception, status in STATUSES.items()}

EMPTY, REQUESTED, READY, FAILED = range(4)
"""MojoSlotState."""


class Tensor(Structure):
    """MojoTensor: a strided view."""

    _fields_ = [
        ("data", c_void_p),
        ("sizes", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("numel", c_int64),
        ("dtype", c_int32),
        ("ndim", c_int16),
        ("flags", c_int16),
    ]


TASK = ctypes.CFUNCTYPE(None, c_void_p, c_int64)
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)


class KernelCall(Structure):
    """MojoKernelCall: what a kernel is called with; the caller fills tensors and scalars."""

    _fields_ = [
        ("tensors", POINTER(Tensor)),
        ("n_tensors", c_int64),
        ("scalars", POINTER(c_int64)),
        ("n_scalars", c_int64),
        ("device_context", c_void_p),
        ("parallel_for", c_void_p),
        ("threads", c_int64),
        ("error", c_char_p),
        ("error_capacity", c_int64),
    ]


DRIVER_FUNCTIONS = (
    "open",
    "allocate",
    "release",
    "pinned_allocate",
    "pinned_release",
    "copy",
    "stream_create",
    "stream_synchronize",
    "event_create",
    "event_destroy",
    "event_record",
    "event_wait",
    "event_query",
    "event_synchronize",
    "event_elapsed",
    "memory_info",
    "stream_native",
)


class Driver(Structure):
    """MojoDriver: the functions of a GPU driver."""

    _fields_ = [(name, c_void_p) for name in DRIVER_FUNCTIONS]


class MemoryStatistics(Structure):
    """MojoMemoryStatistics: bytes and counts of a device's allocations."""

    _fields_ = [
        (name, c_int64)
        for name in (
            "allocated_current",
            "allocated_peak",
            "allocated_total",
            "freed_total",
            "reserved_current",
            "reserved_peak",
            "allocations_current",
            "allocations_peak",
            "allocations_total",
            "frees_total",
            "out_of_memory_count",
        )
    ]


class InterpreterLock(ctypes.Structure):
    """MojoInterpreterLock: how the core's waits give the GIL back."""

    _fields_ = [("held", c_void_p), ("release", c_void_p), ("acquire", c_void_p)]

    @classmethod
    def of_this_process(cls) -> InterpreterLock:
        """Returns the functions of the running interpreter."""
        names = ("PyGILState_Check", "PyEval_SaveThread", "PyEval_RestoreThread")
        return cls(*(ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p) for name in names))


_SLOT = c_void_p
_OUT = POINTER
# Functions that return a MojoStatus.
_CHECKED: dict[str, Sequence[Any]] = {
    "mojo_initialize": (POINTER(Driver), c_int32, c_int32),
    "mojo_set_threads": (c_int32,),
    "mojo_check_device": (c_int32,),
    "mojo_allocate": (c_int32, c_uint64, c_int64, _OUT(c_void_p)),
    "mojo_record_stream": (c_void_p, c_int64),
    "mojo_memory_statistics": (c_int32, _OUT(MemoryStatistics)),
    "mojo_reset_peak_statistics": (c_int32,),
    "mojo_reset_accumulated_statistics": (c_int32,),
    "mojo_empty_cache": (c_int32,),
    "mojo_memory_info": (c_int32, _OUT(c_uint64), _OUT(c_uint64)),
    "mojo_pinned_allocate": (c_int32, c_uint64, _OUT(c_void_p)),
    "mojo_copy": (c_void_p, c_int32, c_void_p, c_int32, c_uint64, c_int64, c_int32),
    "mojo_stream_create": (c_int32, c_int32, _OUT(c_int64)),
    "mojo_stream_query": (c_int32, c_int64, _OUT(c_int32)),
    "mojo_stream_synchronize": (c_int32, c_int64),
    "mojo_device_synchronize": (c_int32,),
    "mojo_stream_call": (c_int32, c_int64, c_void_p, c_void_p),
    "mojo_event_create": (c_int32, c_int32, _OUT(c_void_p)),
    "mojo_event_record": (c_void_p, c_int32, c_int64),
    "mojo_event_wait": (c_void_p, c_int32, c_int64),
    "mojo_event_query": (c_void_p, _OUT(c_int32)),
    "mojo_event_synchronize": (c_void_p,),
    "mojo_event_elapsed": (c_void_p, c_void_p, _OUT(c_double)),
    "mojo_slot_request": (_SLOT,),
    "mojo_slot_wait": (_SLOT,),
    "mojo_launch": (_SLOT, POINTER(KernelCall), c_int32, c_int64),
    "mojo_index_add": (c_char_p, c_char_p, c_char_p),
    "mojo_slot_load": (_SLOT, c_char_p, c_char_p),
}
# Functions that return a value, or nothing.
_PLAIN: dict[str, tuple[Any, Sequence[Any]]] = {
    "mojo_last_error": (c_char_p, ()),
    "mojo_set_interpreter_lock": (None, (POINTER(InterpreterLock),)),
    "mojo_device_count": (c_int32, ()),
    "mojo_is_cpu": (c_int32, ()),
    "mojo_in_bad_fork": (c_int32, ()),
    "mojo_parallel_for": (None, (TASK, c_void_p, c_int64)),
    "mojo_threads": (c_int32, ()),
    "mojo_team_begin": (None, (c_int32,)),
    "mojo_team_end": (c_int32, ()),
    "mojo_use_openmp_of": (None, (c_char_p,)),
    "mojo_free": (None, (c_void_p,)),
    "mojo_pointer_device": (c_int32, (c_void_p,)),
    "mojo_pinned_free": (None, (c_void_p,)),
    "mojo_is_pinned": (c_int32, (c_void_p,)),
    "mojo_stream_native_handle": (c_void_p, (c_int32, c_int64)),
    "mojo_stream_pending": (c_int64, (c_int32, c_int64)),
    "mojo_event_destroy": (None, (c_void_p,)),
    "mojo_slot": (_SLOT, (c_char_p,)),
    "mojo_call_site": (c_int32, (c_char_p, POINTER(c_int64), c_int64, c_void_p, c_char_p, c_int64)),
    "mojo_slot_key": (c_char_p, (_SLOT,)),
    "mojo_slot_state": (c_int32, (_SLOT,)),
    "mojo_launch_count": (c_int64, ()),
    "mojo_index_clear": (None, ()),
    "mojo_index_size": (c_int64, ()),
    "mojo_next_requests": (c_int32, (c_int32, _OUT(_SLOT), c_int32)),
    "mojo_interrupt_requests": (None, ()),
    "mojo_slot_fail": (None, (_SLOT, c_int32, c_char_p)),
    "mojo_slot_reset": (None, (_SLOT,)),
}


def library_path() -> Path:
    """Returns the native core's library; compiles it where it is neither prebuilt nor cached.

    Raises:
        NativeBuildError: It has to be compiled and that is not possible.
    """
    return build_library(
        "mojo_runtime", [FOLDER / "library.cpp"], libraries=["dl"], prebuilt_directories=[FOLDER.parent / "prebuilt"]
    )


@functools.cache
def library() -> ctypes.CDLL:
    """Returns the loaded native core, with the types of all its functions declared.

    Raises:
        NativeBuildError: It has to be compiled and that is not possible.
        OSError: It can't be loaded.
    """
    native = ctypes.CDLL(str(library_path()), mode=ctypes.RTLD_GLOBAL)
    last_error: Callable[[], bytes] = native.mojo_last_error

    def check(status: int, _function: object, _arguments: object) -> int:
        if status != OK:
            raise EXCEPTIONS.get(status, RuntimeError)(last_error().decode(errors="replace"))
        return status

    for name, arguments in _CHECKED.items():
        function = getattr(native, name)
        function.restype, function.argtypes = c_int32, list(arguments)
        function.errcheck = check
    for name, (result, arguments) in _PLAIN.items():
        function = getattr(native, name)
        function.restype, function.argtypes = result, list(arguments)
    native.mojo_set_interpreter_lock(ctypes.byref(InterpreterLock.of_this_process()))
    return native
