"""The table of this package's own decompositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch_mojo_compile import rows

Decomposition = TypeVar("Decomposition", bound=Callable[..., Any])

OWN: dict[Any, Callable[..., Any]] = {}
"""By overload."""


def decomposition(*names: str) -> Callable[[Decomposition], Decomposition]:
    """Registers a function of an overload's arguments, e.g. `@decomposition("histc.default")`.

    It calls ops that write to nothing, as they are traced after torch's removal of writes. What it can't take it
    answers with NotImplemented: the op stays, and is named as one that has no lowering.
    """

    def decorate(function: Decomposition) -> Decomposition:
        for name in names:
            op = rows.overload(name)
            if op is not None:
                OWN[op] = function
        return function

    return decorate
