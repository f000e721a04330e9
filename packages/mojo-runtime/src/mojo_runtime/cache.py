"""The kernels that exist for a target: prebuilt, in the user's cache, or in a private folder where that is unusable."""

from __future__ import annotations

import errno
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import mojo_kernels
from mojo_runtime.compiler import CompileError, CompilerProcesses, build
from mojo_runtime.config import config
from mojo_runtime.sources import source_index
from mojo_runtime.spec import KernelSpec
from mojo_runtime.store import Entry, KernelLocks, Report, Store, Versions, kernel_digest
from mojo_runtime.target import Target, compatible_targets
from mojo_runtime.toolchain import ToolchainError, find_toolchain


def prebuilt_folders() -> list[Path]:
    """Returns the read-only folders of compiled kernels that installed packages bring."""
    return [folder for folder in (mojo_kernels.include_path() / "mojo_kernels" / "prebuilt",) if folder.is_dir()]


class KernelCache:
    """Finds and builds the kernels of one target. Every method may be called from any thread.

    Args:
        target: What the kernels are for.
        warn: Called with a line of text where files or folders can't be used.
        folder: The cache folder; by default the configured one.
    """

    def __init__(self, target: Target, warn: Callable[[str], None], folder: Path | None = None) -> None:
        self.target = target
        self._warn = warn
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        try:
            compiler: str | None = find_toolchain().version
        except ToolchainError:
            compiler = None
        self.versions = Versions(compiler, str(target))
        self._private: Store | None = None
        self._locks: KernelLocks | None = None
        self._store = Store(folder or config.cache_dir)
        try:
            self._store.open()
            self._store.remove_stale()
            self._locks = KernelLocks(self._store.folder / "lock")
        except OSError as error:
            self._leave_cache(error)
        # A package's libraries serve whatever compiler the user has, and run on better CPUs than they were made for.
        self._prebuilt = [
            [(Store(folder, read_only=True), Versions(None, str(lesser))) for lesser in compatible_targets(target)]
            for folder in prebuilt_folders()
        ]

    def refresh(self) -> dict[str, Entry]:
        """Reads what is new on disk.

        Returns:
            The kernels that were not known before, by their spec's key.
        """
        with self._lock:
            new: dict[str, Entry] = {}
            while self._prebuilt:  # they don't change: once
                for store, versions in self._prebuilt.pop():
                    report = store.scan(versions)
                    self._take(report, new)
                    if report.kernels:
                        break  # the best that the package has
            self._take(self._store.scan(self.versions), new)
            self._entries.update(new)
            return new

    def _take(self, report: Report, new: dict[str, Entry]) -> None:
        new.update((key, entry) for key, entry in report.kernels.items() if self._entries.get(key) != entry)
        if report.ignored:
            more = f" (and {len(report.ignored) - 1} more)" if len(report.ignored) > 1 else ""
            self._warn(f"ignored in the kernel cache, to be built again: {report.ignored[0]}{more}")

    def find(self, spec: KernelSpec) -> Entry | None:
        """Returns a kernel that was found or built before and whose sources are unchanged.

        Raises:
            FileNotFoundError: The spec's module does not exist.
        """
        with self._lock:
            entry = self._entries.get(spec.key)
            if entry is None or entry.sources != source_index().digest(spec.module):
                return None
            return entry

    def entries(self) -> dict[str, Entry]:
        """Returns all kernels that are known, by their spec's key."""
        with self._lock:
            return dict(self._entries)

    def forget(self, spec: KernelSpec) -> None:
        """Drops what is known of a kernel: its library can't be loaded, or its sources are being mended."""
        with self._lock:
            self._entries.pop(spec.key, None)
        source_index().forget(spec.module)

    def acquire(self, specs: Sequence[KernelSpec]) -> dict[KernelSpec, str]:
        """Takes the right to build kernels, against other processes, without waiting.

        Returns:
            The kernels that no other process builds now, each with the lock to give to `release`.

        Raises:
            FileNotFoundError: A spec's module does not exist.
        """
        locks = {kernel_digest(spec, self.versions): spec for spec in specs}
        acquired = self._locks.acquire(list(locks)) if self._locks is not None else list(locks)
        return {locks[lock]: lock for lock in acquired}

    def release(self, locks: Sequence[str]) -> None:
        """Gives locks back."""
        if self._locks is not None:
            self._locks.release(locks)

    def build(self, specs: Sequence[KernelSpec], processes: CompilerProcesses) -> dict[KernelSpec, Entry]:
        """Compiles kernels into one library and keeps it: in the cache, else in a folder of this process.

        Raises:
            CompileError: They do not compile, or there is no compiler.
        """
        try:
            toolchain = find_toolchain()
        except ToolchainError as error:
            raise CompileError(specs, self.target, str(error)) from error
        store = self._private or self._store
        try:
            try:
                sources = self._read_sources(specs)
                with store.build_folder() as folder:
                    built = build(specs, self.target, folder, toolchain, processes)
                    if self._read_sources(specs) != sources:
                        # Somebody is editing: what was compiled may be neither the one nor the other.
                        return self.build(specs, processes)
                    entries = store.install(built, self.versions)
            except CompileError as error:
                if "No space left on device" in error.diagnostics:
                    raise OSError(errno.ENOSPC, "No space left on device", str(store.folder)) from error
                raise
        except (OSError, ToolchainError) as error:
            if store is self._private or isinstance(error, ToolchainError):
                raise CompileError(specs, self.target, f"the library can't be kept: {error}") from error
            self._leave_cache(error)
            return self.build(specs, processes)
        with self._lock:
            self._entries.update((spec.key, entry) for spec, entry in entries.items())
        return entries

    def _read_sources(self, specs: Sequence[KernelSpec]) -> dict[str, str]:
        """Returns the digests of the specs' modules as they are now, which the index then has too."""
        index = source_index()
        for module in {spec.module for spec in specs}:
            index.forget(module)
        try:
            return {spec.module: index.digest(spec.module) for spec in specs}
        except OSError as error:
            raise CompileError(specs, self.target, str(error)) from error

    def _leave_cache(self, error: OSError) -> None:
        with self._lock:
            if self._private is not None:
                return
            folder = Path(tempfile.mkdtemp(prefix="torch-mojo-backend-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._private = Store(folder)
            self._private.open()
            reason = str(error) if error.errno is None else f"{error.strerror}: {error.filename or self._store.folder}"
            self._warn(f"kernel cache not used: {reason}; this process compiles into {folder} and removes it at exit")

    @property
    def folder(self) -> Path:
        """Where new kernels go."""
        return (self._private or self._store).folder
