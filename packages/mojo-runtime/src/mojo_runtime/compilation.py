"""Compiling kernels from Python: the functions of this process's compile service."""

from __future__ import annotations

from collections.abc import Callable

from mojo_runtime.devices import devices
from mojo_runtime.service import CompileService, Specs, service
from mojo_runtime.spec import KernelSpec
from mojo_runtime.store import Entry
from mojo_runtime.target import Target
from mojo_runtime.trace import Listener


def _service(target: Target | None) -> CompileService:
    if target is None:
        devices()  # which decide the target
    return service()


def compile(specs: Specs, target: Target | None = None) -> dict[KernelSpec, Entry]:
    """Compiles kernels, or finds them in the cache, and waits until all are there.

    Args:
        specs: One or several kernels, as specs or keys. One that failed before is tried again.
        target: What to compile for; by default this process's devices.

    Returns:
        Each kernel's library and symbol.

    Raises:
        ValueError: Not a key.
        CompileError: The first kernel that does not compile; the others are compiled all the same.
    """
    return _service(target).compile(specs, target)


def request(specs: Specs, target: Target | None = None) -> None:
    """Asks for kernels and returns at once; those that are not in the cache are compiled in the background.

    Args:
        specs: One or several kernels, as specs or keys.
        target: What to compile for; by default this process's devices.

    Raises:
        ValueError: Not a key.
    """
    _service(target).request(specs, target)


def wait_for_builds(timeout: float | None = None) -> bool:
    """Waits until no kernel is left to compile; False if `timeout` seconds went by before that."""
    return service().wait(timeout)


def builds() -> int:
    """Returns how often a compiler ran in this process."""
    return service().builds()


def add_listener(listener: Listener) -> Callable[[], None]:
    """Calls a function with every `CompileEvent` from now on, on the thread where it happens.

    Returns:
        A function that ends this.
    """
    return service().add_listener(listener)
