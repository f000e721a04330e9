"""The installed Mojo compiler, its linker and its runtime libraries, found without running anything."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib.metadata
import shutil
import sys
import sysconfig
from pathlib import Path

from mojo_runtime.config import config

# Kernel libraries name them as NEEDED without a folder, so they must be loaded before.
RUNTIME_LIBRARIES = ("KGENCompilerRTShared", "AsyncRTMojoBindings")
_EXTENSION = ".dylib" if sys.platform == "darwin" else ".so"


class ToolchainError(RuntimeError):
    """The Mojo compiler or a part of it is not installed; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Toolchain:
    """What a build needs.

    Attributes:
        mojo: The compiler driver.
        linker: The LLVM linker that comes with it; None where it is not, as with a compiler of the user's own.
        version: Of the compiler and, as kernels inline its modules, of MAX; e.g. "mojo 1.2.0, max 26.7.0".
    """

    mojo: Path
    linker: Path | None
    version: str


@functools.cache
def package_root() -> Path | None:
    """Returns the folder of the compiler's wheel that holds `bin` and `lib`, or None where it is not installed."""
    try:
        root = Path(str(importlib.metadata.distribution("mojo-compiler").locate_file("modular")))
    except importlib.metadata.PackageNotFoundError:
        return None
    return root.resolve() if root.is_dir() else None


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def installed_version() -> str | None:
    """Returns the version of the compiler's wheels, e.g. "mojo 1.2.0, max 26.7.0", or None where there is none."""
    if package_root() is None:
        return None
    return f"mojo {_version('mojo-compiler')}, max {_version('max-core')}"


def find_toolchain() -> Toolchain:
    """Finds the compiler: the configured one, the one beside this Python, the one on PATH.

    Raises:
        ToolchainError: There is none.
    """
    configured = config.compiler
    scripts = Path(sysconfig.get_path("scripts"))
    candidates = [configured] if configured else [Path(sys.executable).parent / "mojo", scripts / "mojo"]
    mojo = next((path for path in candidates if path.is_file()), None)
    if mojo is None and configured is None:
        on_path = shutil.which("mojo")
        mojo = Path(on_path) if on_path else None
    if mojo is None:
        where = f"{configured} (TORCH_MOJO_BACKEND_MOJO)" if configured else f"{scripts} and PATH"
        raise ToolchainError(
            f"no Mojo compiler in {where}: install the mojo package into this environment (uv add mojo)"
        )
    root = package_root()
    version = installed_version()
    if configured is not None or version is None or mojo.parent not in (scripts, Path(sys.executable).parent):
        # Not the wheel's: its identity is the file, as asking it would cost a process at every start.
        status = mojo.stat()
        version = f"{mojo.resolve()} {status.st_size} {status.st_mtime_ns}"
    linker = root / "bin" / "lld" if root else None
    return Toolchain(mojo, linker if linker and linker.is_file() else None, version)


@functools.cache
def preload_runtime_libraries() -> tuple[Path, ...]:
    """Loads Mojo's runtime libraries for all later `dlopen`s, so that kernel libraries need no search path inside.

    Returns:
        The libraries that were found.

    Raises:
        ToolchainError: One is there but can't be loaded.
    """
    root = package_root()
    loaded = []
    for name in RUNTIME_LIBRARIES if root else ():
        library = Path(str(root)) / "lib" / f"lib{name}{_EXTENSION}"
        if library.is_file():
            try:
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise ToolchainError(f"Mojo's runtime library {library} can't be loaded: {error}") from error
            loaded.append(library)
    return tuple(loaded)


@functools.cache
def link_libraries() -> tuple[Path, ...]:
    """Returns what kernel libraries are linked against: Mojo's runtime and the parts of the C library.

    The latter are those that this process has loaded, so that symbols get the versions of this machine.
    """
    libraries = list(preload_runtime_libraries())
    if sys.platform == "linux":
        # Mojo's runtime libraries need libm and libgcc_s: all three are mapped by now.
        maps = Path("/proc/self/maps").read_text().splitlines()
        paths = {line.split(maxsplit=5)[5] for line in maps if "/" in line}
        for name in ("libm.so.6", "libgcc_s.so.1", "libc.so.6"):
            libraries += [Path(path) for path in paths if path.endswith(f"/{name}")][:1]
    return tuple(libraries)
