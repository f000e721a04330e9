"""Devices: which there are, and what they are.

The environment variable MOJO_RUNTIME_DEVICES chooses: `auto` (the default: the GPUs that MAX finds, else the host CPU),
`gpu`, `cpu`, or `cpu:N` for N virtual CPU devices, which share the cores but have memory and streams of their own.
"""

from __future__ import annotations

import ctypes
import dataclasses
import platform
import re
import threading
from pathlib import Path
from typing import Literal

from mojo_runtime import _native
from mojo_runtime.config import config

_lock = threading.Lock()
_devices: tuple[Device, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Device:
    """One device, numbered from 0.

    Attributes:
        index: Its number.
        kind: "cpu" or "gpu".
        name: The product's name.
        cores: CPU: how many threads a kernel can use. GPU: multiprocessors (compute units).
        memory: In bytes.
        architecture: GPU: the name that Mojo compiles for, e.g. "sm_90a"; CPU: the machine's architecture.
    """

    index: int
    kind: Literal["cpu", "gpu"]
    name: str
    cores: int
    memory: int
    architecture: str

    def synchronize(self) -> None:
        """Waits for all streams of the device.

        Raises:
            Exception: What failed first in one of the queues: a kernel's error or a failed compilation.
        """
        _native.library().mojo_device_synchronize(self.index)

    def __str__(self) -> str:
        return f"mojo:{self.index} ({self.name})"


def _processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(errors="replace"), re.MULTILINE)
        if match:
            return match[1].strip()
    return platform.processor() or platform.machine()


def _requested_cpus(choice: str) -> int | None:
    """Returns the number of CPU devices that a choice names, None where it asks for GPUs."""
    if choice in ("auto", "gpu"):
        return None
    match = re.fullmatch(r"cpu(?::([1-9]\d*))?", choice)
    if match is None:
        raise ValueError(f"MOJO_RUNTIME_DEVICES={choice!r}: must be auto, gpu, cpu or cpu:N with N from 1")
    return int(match[1] or 1)


def _open() -> tuple[Device, ...]:
    choice = config.devices
    cpus = _requested_cpus(choice)
    native = _native.library()
    if cpus is None:
        from mojo_runtime import driver

        gpus = driver.open_gpus()
        if gpus is not None:
            native.mojo_initialize(ctypes.byref(gpus.table), len(gpus.properties), config.threads or 0)
            return tuple(
                Device(index, "gpu", gpu.name, gpu.multiprocessors, gpu.memory, gpu.architecture)
                for index, gpu in enumerate(gpus.properties)
            )
        if choice == "gpu":
            return ()
        cpus = 1
    native.mojo_initialize(None, cpus, config.threads or 0)
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    native.mojo_memory_info(0, free, total)
    name, cores = _processor_name(), native.mojo_threads()
    return tuple(Device(index, "cpu", name, cores, total.value, platform.machine()) for index in range(cpus))


def _serve_kernels(device: Device) -> None:
    from mojo_runtime.launch import NativeCore
    from mojo_runtime.service import service
    from mojo_runtime.target import Target

    service().attach(NativeCore(), Target.parse(device.architecture) if device.kind == "gpu" else Target.host())


def initialize() -> tuple[Device, ...]:
    """Opens the devices. Calling it again does nothing.

    Returns:
        The devices; none where MOJO_RUNTIME_DEVICES asks for GPUs and there are none.

    Raises:
        ValueError: MOJO_RUNTIME_DEVICES is not understood.
        RuntimeError: The native core or the GPU driver cannot be built or does not work.
    """
    global _devices
    with _lock:
        if _devices is None:
            opened = _open()
            if opened:
                _serve_kernels(opened[0])
            _devices = opened
        return _devices


def devices() -> tuple[Device, ...]:
    """Returns all devices; opens them at the first call."""
    return _devices if _devices is not None else initialize()


def device(index: int | Device = 0) -> Device:
    """Returns a device by its number.

    Raises:
        RuntimeError: There are no devices.
        ValueError: There is none with this number.
    """
    if isinstance(index, Device):
        return index
    found = devices()
    if not found:
        raise RuntimeError(f"no GPU was found and MOJO_RUNTIME_DEVICES is {config.devices!r}; set it to cpu or auto")
    if not 0 <= index < len(found):
        raise ValueError(f"invalid device index {index}: there are {len(found)} mojo devices")
    return found[index]


def in_bad_fork() -> bool:
    """Whether this process was forked after the devices were opened, so that it can't use them."""
    return _devices is not None and bool(_native.library().mojo_in_bad_fork())


def synchronize(index: int | Device | None = None) -> None:
    """Waits for all work of one device, or of all.

    Raises:
        Exception: What failed first in one of the queues.
    """
    for target in devices() if index is None else (device(index),):
        target.synchronize()


def set_threads(threads: int | None) -> None:
    """Sets how many threads a CPU kernel may use, the caller included; None: the cores that this process may use."""
    _native.library().mojo_set_threads(0 if threads is None else threads)
