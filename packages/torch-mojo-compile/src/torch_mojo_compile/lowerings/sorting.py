"""Sorting in its other forms; `sort.stable` and `topk` are kernels' rows."""

from __future__ import annotations

from typing import Any

from max.graph import TensorValue

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.lowerings.table import Node, lowering


@lowering("sort.default")
def sort(node: Node, x: TensorValue, dim: int = -1, descending: bool = False) -> list[Any]:
    """Sorted elements and where they were."""
    return list(custom_mojo_ops.sort(x, dim % max(x.rank, 1), descending=descending))
