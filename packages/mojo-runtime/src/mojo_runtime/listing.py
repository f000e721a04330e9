"""The kernels and ops of the installed frontends, which announce themselves through an entry point group."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, cast

GROUP = "torch_mojo_backend.kernels"
"""Entry points of this group name an object with the functions of `Frontend`."""
_KNOWN = {"eager": "torch_mojo_eager.ops.specs"}  # importable without being installed, as in a source tree


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


def frontends() -> dict[str, Frontend]:
    """Returns what is installed, by name."""
    modules = {point.name: point.value for point in importlib.metadata.entry_points(group=GROUP)}
    for name, module in _KNOWN.items():
        if name not in modules and importlib.util.find_spec(module.partition(".")[0]) is not None:
            modules[name] = module
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
