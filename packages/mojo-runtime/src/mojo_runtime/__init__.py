"""mojo-runtime: devices, memory, streams and just-in-time compiled Mojo kernels, without PyTorch."""

from __future__ import annotations

from mojo_runtime._native import OutOfMemoryError
from mojo_runtime.arrays import Array, array, empty, from_dlpack
from mojo_runtime.compilation import add_listener, builds, compile, request, wait_for_builds
from mojo_runtime.compiler import CompileError
from mojo_runtime.config import config
from mojo_runtime.devices import Device, device, devices, in_bad_fork, initialize, set_threads, synchronize
from mojo_runtime.generator import PhiloxGenerator
from mojo_runtime.launch import Number, Slot, launch, launch_count, slot
from mojo_runtime.memory import (
    Memory,
    MemoryStatistics,
    PinnedMemory,
    empty_cache,
    memory_info,
    memory_statistics,
    reset_accumulated_memory_statistics,
    reset_peak_memory_statistics,
)
from mojo_runtime.prebuild import prebuild
from mojo_runtime.sources import register_include
from mojo_runtime.spec import KernelSpec
from mojo_runtime.streams import Event, Stream, current_stream, default_stream, set_stream
from mojo_runtime.target import Target
from mojo_runtime.trace import Event as CompileEvent

__version__ = "0.1.0"

__all__ = [
    "Array",
    "CompileError",
    "CompileEvent",
    "Device",
    "Event",
    "KernelSpec",
    "Memory",
    "MemoryStatistics",
    "Number",
    "OutOfMemoryError",
    "PhiloxGenerator",
    "PinnedMemory",
    "Slot",
    "Stream",
    "Target",
    "__version__",
    "add_listener",
    "array",
    "builds",
    "compile",
    "config",
    "current_stream",
    "default_stream",
    "device",
    "devices",
    "empty",
    "empty_cache",
    "from_dlpack",
    "in_bad_fork",
    "initialize",
    "launch",
    "launch_count",
    "memory_info",
    "memory_statistics",
    "prebuild",
    "register_include",
    "request",
    "reset_accumulated_memory_statistics",
    "reset_peak_memory_statistics",
    "set_stream",
    "set_threads",
    "slot",
    "synchronize",
    "wait_for_builds",
]
