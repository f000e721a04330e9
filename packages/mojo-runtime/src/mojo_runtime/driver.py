"""GPUs: whether there are any, and the driver that the native core reaches them through.

The driver is a Mojo library (native/driver.mojo) over MAX's DeviceContext. Nothing is compiled or loaded where the
operating system shows no GPU.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from mojo_runtime import _native
from mojo_runtime.compiler import compile_library
from mojo_runtime.config import config
from mojo_runtime.native_build import SUFFIX, NativeBuildError, include_directory, install_library
from mojo_runtime.target import Target
from mojo_runtime.toolchain import find_toolchain, preload_runtime_libraries

SOURCE = include_directory() / "driver.mojo"
_TEXT_CAPACITY = 256


@dataclasses.dataclass(frozen=True)
class GpuProperties:
    """What the driver says about a GPU.

    Attributes:
        name: The product's name.
        multiprocessors: Streaming multiprocessors or compute units.
        memory: In bytes.
        architecture: Mojo's name, e.g. "sm_90a".
    """

    name: str
    multiprocessors: int
    memory: int
    architecture: str


@dataclasses.dataclass(frozen=True)
class Gpus:
    """The driver and the GPUs it found, numbered as their vendor numbers them."""

    table: _native.Driver
    properties: tuple[GpuProperties, ...]
    library: ctypes.CDLL


def has_gpu_device_files() -> bool:
    """Whether the operating system shows a GPU that MAX could use: looks at device files only."""
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def build_driver(target: Target) -> Path:
    """Returns the driver's library for a GPU; compiles it where it is not in the cache.

    Raises:
        NativeBuildError: It does not compile.
        ToolchainError: There is no Mojo compiler.
    """
    toolchain = find_toolchain()
    key = hashlib.sha256("\0".join([SOURCE.read_text(), toolchain.version, str(target)]).encode()).hexdigest()[:32]

    def compile_to(library: Path) -> None:
        with tempfile.TemporaryDirectory(dir=library.parent) as name:
            folder = Path(name)
            shutil.copy(SOURCE, folder)
            run = compile_library(SOURCE.name, folder, [], target, toolchain)
            if run.status != 0:
                raise NativeBuildError(f"the GPU driver does not compile:\n{run.output.strip()}")
            run.library.replace(library)

    return install_library(config.cache_dir / "native" / f"libmojo_driver-{key}{SUFFIX}", compile_to)


def open_gpus() -> Gpus | None:
    """Returns the driver of this machine's GPUs, None where there are none.

    Raises:
        RuntimeError: There are GPUs, and the driver cannot be built or does not work.
    """
    if not has_gpu_device_files():
        return None
    try:
        target = Target.parse("gpu")
    except RuntimeError:
        return None  # a device file, but no GPU that MAX supports or may use
    preload_runtime_libraries()
    library = ctypes.CDLL(str(build_driver(target)))
    table = _native.Driver()
    library.mojo_driver_table(ctypes.byref(table))
    properties = []
    for index in range(library.mojo_driver_count()):
        name, error = (ctypes.create_string_buffer(_TEXT_CAPACITY) for _ in range(2))
        multiprocessors, memory = ctypes.c_int64(), ctypes.c_int64()
        status = library.mojo_driver_properties(
            index, name, _TEXT_CAPACITY, ctypes.byref(multiprocessors), ctypes.byref(memory), error, _TEXT_CAPACITY
        )
        if status != _native.OK:
            raise RuntimeError(f"GPU {index}: {error.value.decode(errors='replace')}")
        properties.append(
            GpuProperties(name.value.decode(errors="replace"), multiprocessors.value, memory.value, target.accelerator)
        )
    return Gpus(table, tuple(properties), library) if properties else None
