"""The kernels and ops of the installed frontends, which announce themselves through an entry point group."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, cast, runtime_checkable

GROUP = "torch_mojo_backend.kernels"
"""Entry points of this group name an object with the functions of `Frontend`."""


class Kernel(Protocol):
    """A kernel that a frontend can ask for."""

    @property
    def key(self) -> str:
        """The KernelSpec's key."""


class Operation(Protocol):
    """An op that a frontend serves."""

    @property
    def name(self) -> str:
        """The aten overload."""

    @property
    def dtypes(self) -> Sequence[str]:
        """The dtypes it takes; empty where it does not say."""

    @property
    def path(self) -> str:
        """ "native" or "Python"."""

    @property
    def doc(self) -> str:
        """One line."""


class Frontend(Protocol):
    """What a frontend lists."""

    def kernels(self, dtypes: Sequence[str] | None = None) -> Iterable[Kernel]:
        """Returns the kernels all of whose dtypes are among those given."""

    def listing(self) -> Iterable[Operation]:
        """Returns the ops."""

    def missing(self, script: str, arguments: Sequence[str]) -> Iterable[str]:
        """Runs a program to its end; returns lines that say which ops it lacks, the last one with their number."""


@runtime_checkable
class KeepsModels(Protocol):
    """A frontend that stores more than kernels."""

    def cache_summary(self) -> str:
        """Returns a line on what is stored."""

    def clean_cache(self) -> int:
        """Removes it; returns how many models."""


def frontends() -> dict[str, Frontend]:
    """Returns what is installed, by name."""
    modules = {point.name: point.value for point in importlib.metadata.entry_points(group=GROUP)}
    return {name: cast(Frontend, importlib.import_module(module)) for name, module in sorted(modules.items())}


def kernel_keys(dtypes: Sequence[str] | None = None) -> list[str]:
    """Returns the keys of all kernels that the frontends can ask for.

    Args:
        dtypes: Only kernels all of whose dtypes are among these.
    """
    keys = (kernel.key for frontend in frontends().values() for kernel in frontend.kernels(dtypes))
    return list(dict.fromkeys(keys))


def operations() -> Iterator[tuple[str, Operation]]:
    """Yields each frontend's name with each of its ops."""
    for name, frontend in frontends().items():
        for operation in frontend.listing():
            yield name, operation
