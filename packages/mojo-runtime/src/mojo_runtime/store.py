"""The store of compiled kernels on disk, keyed by content.

Layout of a cache folder (0700, its owner's alone):

    libs/<digest>.so     a shared library with one or many kernels
    libs/<digest>.json   its manifest; a library without one does not exist
    builds/              folders of builds that run, or failed and are kept for a day
    lock                 byte-range locks, one byte per kernel that is being built

Both files are written under temporary names and renamed, the manifest last: whatever is interrupted, a manifest that
can be read describes a library that is complete, which its size and SHA-256 confirm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mojo_runtime.compiler import LIBRARY_SUFFIX, Build, CompileError
from mojo_runtime.sources import source_index
from mojo_runtime.spec import KernelSpec, module_of

FORMAT = 1
KERNEL_ABI_VERSION = 1
_KEEP_BUILDS_SECONDS = 24 * 3600


class CacheRefused(PermissionError):
    """A folder or file of the cache that others own or can write: loading it would run their code."""


@dataclasses.dataclass(frozen=True)
class Versions:
    """What must agree for a library to be used, beside the sources of its kernels.

    Attributes:
        compiler: The toolchain's version; None where no compiler is installed, which agrees with any.
        target: The target's canonical text.
        abi: The version of the kernel's calling convention.
    """

    compiler: str | None
    target: str
    abi: int = KERNEL_ABI_VERSION

    def agrees(self, other: Versions) -> bool:
        """Whether a library with the other versions can be used here."""
        compiler = self.compiler is None or self.compiler == other.compiler
        return compiler and self.target == other.target and self.abi == other.abi


@dataclasses.dataclass(frozen=True)
class Entry:
    """A compiled kernel.

    Attributes:
        library: The shared library that holds it.
        symbol: Its C function's name there.
        sources: The digest of the Mojo sources that it was built from.
    """

    library: Path
    symbol: str
    sources: str


@dataclasses.dataclass
class Report:
    """What a scan found: kernels, and why files were left out, in one line each."""

    kernels: dict[str, Entry] = dataclasses.field(default_factory=dict)
    libraries: int = 0
    ignored: list[str] = dataclasses.field(default_factory=list)


def kernel_digest(spec: KernelSpec, versions: Versions) -> str:
    """Returns the cache key of a kernel: its spec, the content of the sources it reaches, and the versions.

    Raises:
        FileNotFoundError: The spec's module does not exist.
    """
    parts = (
        spec.key,
        source_index().digest(spec.module),
        str(versions.compiler),
        versions.target,
        str(versions.abi),
        str(FORMAT),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def check_private(path: Path, status: os.stat_result, owners: Iterable[int] | None = None) -> None:
    """Refuses what others own or can write.

    Args:
        path: For the message.
        status: Of the folder or file, links not followed.
        owners: The user ids that are trusted; by default this process's own.

    Raises:
        CacheRefused: Others could have put code there.
    """
    trusted = set(owners) if owners is not None else {os.geteuid()}
    if stat.S_ISLNK(status.st_mode):
        raise CacheRefused(f"{path} is a symbolic link")
    if status.st_uid not in trusted:
        raise CacheRefused(f"{path} belongs to user {status.st_uid}, not to {os.geteuid()}: its code is not loaded")
    if status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        raise CacheRefused(f"{path} can be written by others (mode {mode:04o}): its code is not loaded; chmod go-w it")


class Store:
    """One folder of libraries and manifests.

    Args:
        folder: The folder that holds `libs`.
        read_only: Part of an installation, such as libraries in a wheel: nothing is created, and root and the owner of
            the installation are trusted.
    """

    def __init__(self, folder: Path, read_only: bool = False) -> None:
        self.folder = folder
        self.libraries = folder / "libs"
        self.read_only = read_only
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._owners = {os.geteuid(), 0, Path(__file__).stat().st_uid} if read_only else {os.geteuid()}

    def open(self) -> None:
        """Creates the folder where needed and checks it.

        Raises:
            CacheRefused: It is not private.
            OSError: It can't be created or written.
        """
        if self.read_only:
            check_private(self.folder, self.folder.stat(), self._owners)
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_private(self.folder, self.folder.stat(), self._owners)
        self.folder.chmod(0o700)
        for folder in (self.libraries, self.folder / "builds"):
            folder.mkdir(exist_ok=True, mode=0o700)
            check_private(folder, folder.lstat(), self._owners)
        if not os.access(self.libraries, os.W_OK):
            raise PermissionError(f"cache folder {self.folder} can't be written")

    def scan(self, versions: Versions) -> Report:
        """Reads the manifests that are new since the last scan.

        Args:
            versions: What this process needs; libraries of others are left alone without a word.
        """
        report = Report()
        try:
            names = sorted(entry.name for entry in os.scandir(self.libraries) if entry.name.endswith(".json"))
        except FileNotFoundError:
            return report
        except OSError as error:
            report.ignored.append(f"{self.libraries}: {error.strerror}")
            return report
        for name in names:
            path = self.libraries / name
            try:
                status = path.lstat()
                identity = (status.st_ino, status.st_size, status.st_mtime_ns)
                if self._seen.get(name) == identity:
                    continue
                self._seen[name] = identity
                check_private(path, status, self._owners)
                self._read(path, versions, report)
            except FileNotFoundError:
                continue  # cleaned by another process meanwhile
            except (CacheRefused, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                report.ignored.append(f"{name}: {error}" if not isinstance(error, CacheRefused) else str(error))
        return report

    def _read(self, path: Path, versions: Versions, report: Report) -> None:
        manifest = json.loads(path.read_text())
        if manifest["format"] != FORMAT:
            return
        written = Versions(manifest["compiler"], manifest["target"], manifest["abi"])
        if not versions.agrees(written):
            return
        kernels = {str(key): (str(item["symbol"]), str(item["sources"])) for key, item in manifest["kernels"].items()}
        library = path.with_suffix(LIBRARY_SUFFIX)
        current: dict[str, Entry] = {}
        for key, (symbol, sources) in kernels.items():
            with contextlib.suppress(FileNotFoundError, ValueError):  # a user's module that is gone
                if source_index().digest(module_of(key)) == sources:
                    current[key] = Entry(library, symbol, sources)
        if not current:
            return
        verify(library, int(manifest["size"]), str(manifest["sha256"]), self._owners)
        report.libraries += 1
        report.kernels.update(current)

    def install(self, build: Build, versions: Versions) -> dict[KernelSpec, Entry]:
        """Moves a finished build into the store.

        Args:
            build: The library and its symbols, in a folder of the same file system.
            versions: What it was built with.

        Raises:
            OSError: The folder can't be written or the disk is full; nothing is left behind that could be mistaken for
                a library.
        """
        digests = {spec: kernel_digest(spec, versions) for spec in build.symbols}
        name = hashlib.sha256("".join(sorted(digests.values())).encode()).hexdigest()[:32]
        library = self.libraries / f"{name}{LIBRARY_SUFFIX}"
        content = build.library.read_bytes()
        sources = {spec.module: source_index().digest(spec.module) for spec in build.symbols}
        entries = {spec: Entry(library, symbol, sources[spec.module]) for spec, symbol in build.symbols.items()}
        manifest = {
            "format": FORMAT,
            "abi": versions.abi,
            "compiler": versions.compiler,
            "target": versions.target,
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "kernels": {
                spec.key: {"symbol": entry.symbol, "sources": entry.sources} for spec, entry in entries.items()
            },
        }
        self._write(library, content, 0o500)
        self._write(library.with_suffix(".json"), json.dumps(manifest, indent=1).encode(), 0o400)
        return entries

    def _write(self, path: Path, content: bytes, mode: int) -> None:
        descriptor, temporary = tempfile.mkstemp(prefix=".", dir=self.libraries)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    @contextlib.contextmanager
    def build_folder(self) -> Iterator[Path]:
        """Gives a folder for a build, removed at the end; one that does not compile is kept to be inspected."""
        folder = Path(tempfile.mkdtemp(dir=self.folder / "builds"))
        try:
            yield folder
        except CompileError as error:
            if not error.command:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)

    def remove_stale(self) -> None:
        """Removes what killed processes left, and failed builds older than a day."""
        before = time.time() - _KEEP_BUILDS_SECONDS
        for path in [*(self.folder / "builds").glob("*"), *self.libraries.glob(".*")]:
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def size(self) -> tuple[int, int]:
        """Returns how many libraries there are and their bytes."""
        sizes = [path.stat().st_size for path in self.libraries.glob(f"*{LIBRARY_SUFFIX}")]
        return len(sizes), sum(sizes)

    def clean(self) -> int:
        """Removes all libraries and kept builds; processes that have loaded some go on with them.

        Returns:
            How many libraries were removed.
        """
        count = 0
        for path in self.libraries.glob("*.json"):  # first, so that no manifest is without its library
            path.unlink(missing_ok=True)
        for path in [*self.libraries.glob("*"), *self.libraries.glob(".*")]:
            count += path.suffix == LIBRARY_SUFFIX
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "builds", ignore_errors=True)
        (self.folder / "builds").mkdir(mode=0o700, exist_ok=True)
        return count


def verify(library: Path, size: int, sha256: str, owners: Iterable[int]) -> None:
    """Checks that a library is what its manifest says.

    Raises:
        CacheRefused: Others own or can write it.
        ValueError: It has another size or content.
        OSError: It can't be read.
    """
    descriptor = os.open(library, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        check_private(library, status, owners)
        if status.st_size != size:
            raise ValueError(f"{library.name} has {status.st_size} bytes instead of {size}")
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise ValueError(f"{library.name} has changed since it was built")


class KernelLocks:
    """Locks of kernels against other processes: one byte of one file each, given back when a process ends.

    POSIX record locks belong to the process and would all be lost if any descriptor of the file were closed, so there
    is one per file and process, and it stays open.
    """

    _descriptors: dict[tuple[int, int], int] = {}
    _guard = threading.Lock()

    def __init__(self, file: Path) -> None:
        with self._guard:
            file.touch(0o600)
            status = file.stat()
            identity = (status.st_dev, status.st_ino)
            if identity not in self._descriptors:
                self._descriptors[identity] = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._descriptor = self._descriptors[identity]

    def acquire(self, digests: Sequence[str]) -> list[str]:
        """Takes the locks that no other process has, without waiting.

        Args:
            digests: Kernels' cache keys.

        Returns:
            Those whose locks this process now has.
        """
        acquired = []
        for digest in digests:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._offset(digest))
            except (BlockingIOError, PermissionError):
                continue
            except OSError:
                pass  # a file system without locks: at worst a kernel is built twice
            acquired.append(digest)
        return acquired

    def release(self, digests: Sequence[str]) -> None:
        """Gives locks back."""
        for digest in digests:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._offset(digest))

    @staticmethod
    def _offset(digest: str) -> int:
        return int(digest[:15], 16)  # 60 bits: two kernels on one byte would only wait for each other
