"""Sorting in its other forms, and searching; `sort.stable` and `topk` are kernels' rows."""

from __future__ import annotations

from typing import Any

from max.graph import TensorValue

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.lowerings.table import Node, lowering


@lowering("sort.default")
def sort(node: Node, x: TensorValue, dim: int = -1, descending: bool = False) -> list[Any]:
    """Sorted elements and where they were."""
    return list(custom_mojo_ops.sort(x, dim % max(x.rank, 1), descending=descending))


@lowering("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    node: Node,
    sequence: TensorValue,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: TensorValue | None = None,
) -> TensorValue:
    """Where elements would be inserted into sorted sequences."""
    elements = node.tensor(x, sequence.dtype)
    after = right or side == "right"
    made = custom_mojo_ops.kernel(
        "searching:searchsorted",
        [(node.shape, node.dtype)],
        [elements, sequence, sorter],
        [after],
        dtype=sequence.dtype,
        out=node.dtype,
    )
    result: TensorValue = made[0]
    return result


@lowering("bucketize.Tensor", "bucketize.Scalar")
def bucketize(
    node: Node, x: Any, boundaries: TensorValue, *, out_int32: bool = False, right: bool = False
) -> TensorValue:
    """Which of the intervals between boundaries elements lie in."""
    return searchsorted(node, boundaries, x, right=right)
