"""Compiles C++ sources to a shared library at first use, and finds it again.

A library is named by what it is made from, its *content key*: the files in the folders of its sources, the flags, the
platform and an extra key. A prebuilt library with that key is used as it is, so that no compiler is needed; one that is
built here is kept in the cache folder under the content key and the compiler's identity.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from mojo_runtime.config import config
from mojo_runtime.store import CacheRefused, check_private

PUBLIC_HEADERS = ("kernel_abi.h", "mojo_runtime.h")
COMPILERS = ("g++", "clang++", "c++")
SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
DEFAULT_FLAGS = ("-std=c++20", "-O2")
_SHARED_FLAGS = ("-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-g0")
_SOURCE_SUFFIXES = (".h", ".hpp", ".inc", ".cpp", ".cc", ".c")


class NativeBuildError(RuntimeError):
    """A native library cannot be built: there is no C++ compiler, or it failed."""


def find_compiler() -> Path | None:
    """Returns the C++ compiler that the environment variable CXX names, else the first of g++, clang++ and c++."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    for name in names:
        found = shutil.which(name)
        if found:
            return Path(found)
    return None


def include_directory() -> Path:
    """Returns the folder of `mojo_runtime.h` and `kernel_abi.h`, for native frontends."""
    return Path(__file__).parent / "native"


def content_key(
    sources: Sequence[Path],
    include_directories: Sequence[Path] = (),
    libraries: Sequence[str] = (),
    flags: Sequence[str] = DEFAULT_FLAGS,
    key_extra: str = "",
) -> str:
    """Returns the key of what a library is made from, 32 hexadecimal digits.

    Args:
        sources: The files to compile. All C and C++ files in their folders count, since they may be included.
        include_directories: Of these only `include_directory()` counts.
        libraries: Names of libraries to link.
        flags: For the compiler.
        key_extra: What else the result depends on, such as the version of a package whose headers are included.
    """
    digest = hashlib.sha256()
    for text in (sys.platform, platform.machine(), key_extra, *flags, "", *libraries, "", *(s.name for s in sources)):
        digest.update(text.encode() + b"\0")
    files = [path for folder in sorted({source.parent for source in sources}) for path in sorted(folder.iterdir())]
    if include_directory() in include_directories:
        files += [include_directory() / header for header in PUBLIC_HEADERS]
    for file in files:
        if file.suffix in _SOURCE_SUFFIXES:
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:32]


def prebuilt_name(name: str, key: str) -> str:
    """Returns the file name of a prebuilt library with the content key `key`."""
    return f"lib{name}-{key}{SUFFIX}"


def build_library(
    name: str,
    sources: Sequence[Path],
    include_directories: Sequence[Path] = (),
    library_directories: Sequence[Path] = (),
    libraries: Sequence[str] = (),
    flags: Sequence[str] = DEFAULT_FLAGS,
    key_extra: str = "",
    prebuilt_directories: Sequence[Path] = (),
) -> Path:
    """Returns a shared library made from C++ sources: a prebuilt one, the cached one, or one compiled now.

    Several processes that ask at once compile once. The result is installed by a rename, so that nobody sees a part.

    Args:
        name: The library is `lib<name>`, also as its SONAME.
        sources: The files to compile, all in one run of the compiler.
        include_directories: Searched for headers; but for `include_directory()`, `key_extra` must cover their content.
        library_directories: Searched for `libraries`, when linking and when loading.
        libraries: Names to link, e.g. "c10".
        flags: For the compiler, beside those that make a shared library with hidden symbols.
        key_extra: Part of the key, e.g. the version of what the include directories hold.
        prebuilt_directories: Folders that may hold a library named by `prebuilt_name`.

    Raises:
        NativeBuildError: There is no compiler and no prebuilt library, or the compiler failed.
        CacheRefused: The cached library belongs to somebody else or can be written by others.
        OSError: The cache folder can't be written.
    """
    key = content_key(sources, include_directories, libraries, flags, key_extra)
    for directory in prebuilt_directories:
        prebuilt = directory / prebuilt_name(name, key)
        if prebuilt.is_file():
            return prebuilt
    folder = config.cache_dir / "native"
    compiler = find_compiler()
    if compiler is None:
        # Whatever compiler made it: better than none.
        for candidate in sorted(folder.glob(f"lib{name}-{key}-*{SUFFIX}")):
            return _checked(candidate)
        raise NativeBuildError(
            f"lib{name} has to be compiled for this machine, and there is no C++ compiler: install g++ or clang++ "
            "(Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install), or set "
            "CXX to one"
        )
    command = [
        str(compiler),
        *_SHARED_FLAGS,
        *flags,
        *(f"-I{directory}" for directory in include_directories),
        *map(str, sources),
        *(f"-L{directory}" for directory in library_directories),
        *(f"-Wl,-rpath,{directory}" for directory in library_directories),
        *(f"-l{library}" for library in libraries),
        f"-Wl,-install_name,@rpath/lib{name}{SUFFIX}" if sys.platform == "darwin" else f"-Wl,-soname,lib{name}{SUFFIX}",
    ]

    def compile_to(library: Path) -> None:
        result = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise NativeBuildError(
                f"compiling lib{name} failed with exit status {result.returncode}:\n{result.stderr.strip()}\n"
                f"Command: {' '.join(command)}"
            )

    return install_library(folder / f"lib{name}-{key}-{_identity(compiler)}{SUFFIX}", compile_to)


def install_library(target: Path, build: Callable[[Path], None]) -> Path:
    """Returns a library of the cache folder; builds it where it is missing.

    Processes that ask for it at once build it once. It is installed by a rename, so that nobody sees a part of it.

    Args:
        target: The library. Its name holds the key of what it is made from.
        build: Writes the library to the path that it is given, in the same folder.

    Raises:
        CacheRefused: The folder or the library belongs to somebody else or can be written by others.
        OSError: The folder can't be written.
    """
    if target.exists():
        return _checked(target)
    for folder in (target.parent.parent, target.parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_private(folder, folder.stat())
    with open(target.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file is closed, also by a kill
        if target.exists():
            return _checked(target)
        descriptor, name = tempfile.mkstemp(prefix=".", suffix=SUFFIX, dir=target.parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            build(temporary)
            temporary.chmod(0o500)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    return target


def _checked(library: Path) -> Path:
    check_private(library.parent, library.parent.stat())
    check_private(library, library.lstat())
    return library


def _identity(compiler: Path) -> str:
    # Asking the compiler for its version would cost a process at every start.
    resolved = compiler.resolve()
    status = resolved.stat()
    return hashlib.sha256(f"{resolved} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:8]


__all__ = [
    "DEFAULT_FLAGS",
    "CacheRefused",
    "NativeBuildError",
    "build_library",
    "content_key",
    "find_compiler",
    "include_directory",
    "install_library",
    "prebuilt_name",
]
