"""Which ops are taken apart before lowering: those that torch can write in terms of others and nobody serves whole."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._decomp import core_aten_decompositions, decomposition_table

from torch_mojo_compile.decompositions import counting, indexing, linalg, products, sampling
from torch_mojo_compile.decompositions.registry import OWN
from torch_mojo_compile.lowerings.table import find


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns the table for AOTAutograd: torch's decompositions and ours, but none of ops that have a lowering."""
    table: dict[Any, Callable[..., Any]] = {**decomposition_table, **core_aten_decompositions(), **OWN}
    return {op: function for op, function in table.items() if find(op) is None}


__all__ = ["counting", "decompositions", "indexing", "linalg", "products", "sampling"]
