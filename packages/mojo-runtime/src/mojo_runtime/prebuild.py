"""Compiling many kernels ahead of time, into the cache or into a folder that can be copied to other machines."""

from __future__ import annotations

import shutil
from pathlib import Path

from mojo_runtime.jobs import Counters, default_workers
from mojo_runtime.service import CompileService, Specs
from mojo_runtime.spec import KernelSpec, as_specs
from mojo_runtime.target import Target
from mojo_runtime.trace import Event, Listener

KERNELS_PER_LIBRARY = 100
_MAXIMUM_COMPILERS = 2  # builds of this size take the memory of several small ones


def prebuild(
    specs: Specs,
    target: Target | None = None,
    folder: Path | None = None,
    *,
    listener: Listener | None = None,
    jobs: int | None = None,
) -> tuple[Counters, dict[KernelSpec, str]]:
    """Compiles kernels into a few libraries, about a hundred kernels to a library, unless they are there already.

    Args:
        specs: The kernels, as specs or keys.
        target: What to compile for; by default this machine's CPU.
        folder: Where to; by default the cache. Another folder gets the modes of installed files, so that it can be
            part of a package; copied over the `libs` of a cache, its files serve there too.
        listener: Called with every event.
        jobs: How many compilers run at the same time; by default at most two.

    Returns:
        What was done, and the compiler's message for each kernel that does not compile.

    Raises:
        ValueError: Not a key.
        OSError: The folder can't be written.
    """
    # Kernels of one module have most of their code in common.
    wanted = sorted(as_specs(specs), key=lambda spec: (spec.module, spec.function))
    failures: dict[KernelSpec, str] = {}
    service = CompileService(
        target, folder, workers=jobs or min(default_workers(), _MAXIMUM_COMPILERS), batch=KERNELS_PER_LIBRARY
    )

    def note_failure(event: Event) -> None:
        if event.kind == "failed":
            failures.update(dict.fromkeys(event.specs, event.message))

    try:
        service.add_listener(note_failure)
        if listener is not None:
            service.add_listener(listener)
        if folder is not None and service.cache(target).folder != folder:
            raise OSError(f"{folder} can't be used as a folder of kernels")
        service.request(wanted, target)
        service.wait()
    finally:
        service.close()
    if folder is not None:
        _open_to_readers(folder)
    return service.counters, failures


def _open_to_readers(folder: Path) -> None:
    """Gives a folder of kernels the modes of installed files and removes what only a cache needs."""
    shutil.rmtree(folder / "builds", ignore_errors=True)
    (folder / "lock").unlink(missing_ok=True)
    for path in (folder, folder / "libs"):
        path.chmod(0o755)
    for path in (folder / "libs").iterdir():
        path.chmod(0o644)
