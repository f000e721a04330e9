"""Which ops are taken apart before lowering: those that torch can write in terms of others and nobody serves whole."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table

from torch_mojo_compile.lowerings.table import find


def histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """How many elements lie in each of `bins` equal parts of a range; without one, of that of the elements."""
    flat = x.reshape(-1)
    wide = flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat.double()
    low, high = wide.new_full((), min), wide.new_full((), max)
    if min == max and x.numel():
        low, high = wide.amin(), wide.amax()
        # A range without an extent is one to either side.
        low, high = torch.where(low == high, low - 1, low), torch.where(low == high, high + 1, high)
    inside = (wide >= low) & (wide <= high)
    place = ((wide - low) * bins / (high - low)).clamp(0, bins - 1).nan_to_num(0).to(torch.int64)
    counts = torch.zeros(bins, dtype=torch.int64, device=x.device).scatter_add(0, place, inside.to(torch.int64))
    return counts.to(x.dtype)


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns the table for AOTAutograd: torch's decompositions and ours, but none of ops that have a lowering."""
    own = {torch.ops.aten.histc.default: histc}
    table: dict[Any, Callable[..., Any]] = {**decomposition_table, **core_aten_decompositions(), **own}
    return {op: function for op, function in table.items() if find(op) is None}
