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
    """The driver and the GPUs it found, numbered as their vendor numbers them.

    Attributes:
        table: The driver's functions.
        properties: What the GPUs are.
        target: What kernels are compiled for.
        library: Keeps the functions loaded.
    """

    table: _native.Driver
    properties: tuple[GpuProperties, ...]
    target: Target
    library: ctypes.CDLL


def has_gpu_device_files() -> bool:
    """Whether the operating system shows a GPU that MAX could use: looks at device files only."""
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def build_driver(target: Target) -> Path:
    """Returns the driver's library; compiles it where it is not in the cache.

    Args:
        target: With the GPU, whose vendor's devices the driver counts and opens.

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


def load_driver(path: Path) -> tuple[ctypes.CDLL, _native.Driver]:
    """Loads a driver's library.

    Args:
        path: A library that exports `mojo_driver_` and the name of each function of MojoDriver.

    Returns:
        The library, which must be kept, and its functions.
    """
    preload_runtime_libraries()
    library = ctypes.CDLL(str(path))
    table = _native.Driver()
    for name in _native.DRIVER_FUNCTIONS:
        setattr(table, name, ctypes.cast(getattr(library, f"mojo_driver_{name}"), ctypes.c_void_p))
    return library, table


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
    return describe_gpus(build_driver(target), target)


def describe_gpus(path: Path, target: Target) -> Gpus | None:
    """Returns a driver and the GPUs it finds, None where it finds none.

    Args:
        path: The driver's library.
        target: What kernels are compiled for.

    Raises:
        RuntimeError: The driver cannot describe a GPU.
    """
    library, table = load_driver(path)
    properties = []
    for index in range(library.mojo_driver_count()):
        name, error = (ctypes.create_string_buffer(_TEXT_CAPACITY) for _ in range(2))
        capacity = ctypes.c_int64(_TEXT_CAPACITY)
        multiprocessors, memory = ctypes.c_int64(), ctypes.c_int64()
        status = library.mojo_driver_properties(
            index, name, capacity, ctypes.byref(multiprocessors), ctypes.byref(memory), error, capacity
        )
        if status != _native.OK:
            raise RuntimeError(f"GPU {index}: {error.value.decode(errors='replace')}")
        properties.append(
            GpuProperties(name.value.decode(errors="replace"), multiprocessors.value, memory.value, target.accelerator)
        )
    return Gpus(table, tuple(properties), target, library) if properties else None
