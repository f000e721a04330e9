"""`torch-mojo-backend doctor`: whether everything that is needed is there and works."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.metadata
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mojo_runtime.config import Config, config
from mojo_runtime.native_build import find_compiler
from mojo_runtime.spec import KernelSpec
from mojo_runtime.store import CacheRefused, Store
from mojo_runtime.target import Target
from mojo_runtime.toolchain import RUNTIME_LIBRARIES, ToolchainError, find_toolchain, preload_runtime_libraries

SMOKE_KERNEL = Path(__file__).with_name("smoke.mojo")
_ELEMENTS = 1000
_FREE_BYTES = 1 << 30
_PACKAGES = (
    "torch-mojo-backend",
    "mojo-runtime",
    "mojo-kernels",
    "torch-mojo-eager",
    "torch-mojo-compile",
    "torch",
    "mojo",
    "max",
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        ok: Whether it is as it should be.
        text: What was found.
        advice: What to do where it is not.
    """

    ok: bool
    text: str
    advice: str = ""

    def __str__(self) -> str:
        return f"[ok]  {self.text}" if self.ok else f"[fix] {self.text}\n      -> {self.advice}"


def diagnose() -> Iterator[Finding]:
    """Yields the findings one by one; the last ones compile and run a kernel on each device."""
    yield _versions()
    yield from _settings()
    yield from _compilers()
    yield _cache()
    yield from _devices()


def _versions() -> Finding:
    versions = [f"Python {platform.python_version()} on {platform.platform(terse=True)} {platform.machine()}"]
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Finding(True, ", ".join(versions))


def _settings() -> Iterator[Finding]:
    for variable in Config.variables():
        try:
            getattr(config, variable.name)
        except ValueError as error:
            yield Finding(False, str(error), f"unset or change {variable.variable}")


def _compilers() -> Iterator[Finding]:
    try:
        toolchain = find_toolchain()
    except ToolchainError as error:
        yield Finding(False, "no Mojo compiler: only kernels that are in the cache can run", str(error))
    else:
        yield Finding(True, f"Mojo compiler {toolchain.mojo} ({toolchain.version})")
        if toolchain.linker is None and shutil.which("cc") is None:
            yield Finding(False, "no linker for kernels", "install the mojo package, or a C compiler")
    try:
        libraries = preload_runtime_libraries()
    except ToolchainError as error:
        yield Finding(False, str(error), "reinstall the mojo and max packages")
    else:
        missing = RUNTIME_LIBRARIES[len(libraries) :]
        advice = "install the mojo and max packages into this environment"
        yield Finding(not missing, f"Mojo runtime libraries: {len(libraries)} of {len(RUNTIME_LIBRARIES)}", advice)
    compiler = find_compiler()
    yield Finding(
        compiler is not None,
        f"C++ compiler {compiler}" if compiler else "no C++ compiler: only prebuilt native libraries can be used",
        "install g++ or clang++ (on macOS: xcode-select --install)",
    )
    yield Finding(True, f"CPU target {Target.host()}")


def _cache() -> Finding:
    folder = config.cache_dir
    store = Store(folder)
    try:
        store.open()
    except CacheRefused as error:
        return Finding(False, f"cache {folder} is not used", str(error))
    except OSError as error:
        return Finding(
            False, f"cache {folder} is not used: {error}", "set TORCH_MOJO_BACKEND_CACHE_DIR to another folder"
        )
    count, size = store.size()
    free = shutil.disk_usage(folder).free
    text = f"cache {folder}: {count} libraries, {size / 1e6:.1f} MB, {free / 1e9:.1f} GB free"
    return Finding(free > _FREE_BYTES, text, "make room on this disk, or set TORCH_MOJO_BACKEND_CACHE_DIR")


def _devices() -> Iterator[Finding]:
    from mojo_runtime.devices import devices

    try:
        found = devices()
    except Exception as error:
        yield Finding(False, f"no devices: {error}", f"MOJO_RUNTIME_DEVICES={config.devices!r}; cpu always works")
        return
    if not found:
        yield Finding(False, "no GPU was found", "check its driver, or set MOJO_RUNTIME_DEVICES=cpu")
    for device in found:
        text = f"{device}: {device.kind}, {device.cores} cores, {device.memory / 2**30:.1f} GiB, {device.architecture}"
        yield _attempt(text, lambda index=device.index: _smoke(index))  # type: ignore[misc]


def _attempt(text: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(True, f"{text}; {check()}")
    except Exception as error:
        return Finding(False, f"{text}; the smoke kernel fails", f"{type(error).__name__}: {error}")


def _smoke(index: int) -> str:
    from mojo_runtime.arrays import empty
    from mojo_runtime.devices import device
    from mojo_runtime.launch import launch
    from mojo_runtime.memory import copy

    begin = time.monotonic()
    array = empty(_ELEMENTS, "int32", index)
    launch(KernelSpec(SMOKE_KERNEL, "smoke"), [array])
    values = (ctypes.c_int32 * _ELEMENTS)()
    copy(ctypes.addressof(values), array.address, array.nbytes, source_device=device(index))
    if list(values) != [3 * i + 1 for i in range(_ELEMENTS)]:
        raise RuntimeError("its results are wrong")
    return f"smoke kernel right after {time.monotonic() - begin:.1f} s"
