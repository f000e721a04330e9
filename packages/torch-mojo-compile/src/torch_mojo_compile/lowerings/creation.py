"""Tensors made from sizes and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_mojo_compile import rows
from torch_mojo_compile.lowerings.table import AnyLowering, Node, lowering


def _full(node: Node, value: Any) -> TensorValue:
    filled = node.tensor(value)
    return ops.broadcast_to(filled, node.shape) if node.result().dim() else filled


FILLS: set[Any] = set()
"""Overloads that read no elements of their arguments: what they make is constant."""


def _fills(*names: str) -> Callable[[AnyLowering], AnyLowering]:
    FILLS.update(rows.overload(name) for name in names)
    return lowering(*names)


@_fills("full.default", "full_like.default", "new_full.default")
def full(node: Node, _: Any, *values: Any, **__: Any) -> TensorValue:
    """A tensor of one number."""
    return _full(node, values[-1])


@lowering("scalar_tensor.default")
def scalar_tensor(node: Node, value: Any, **_: Any) -> TensorValue:
    """A number as a tensor."""
    return _full(node, value)


@_fills(
    "zeros.default",
    "zeros_like.default",
    "new_zeros.default",
    "empty.memory_format",
    "empty_like.default",
    "new_empty.default",
    "empty_strided.default",
    "new_empty_strided.default",
    "empty_permuted.default",
)
def zeros(node: Node, *_: Any, **__: Any) -> TensorValue:
    """A tensor of zeros, which also serves where any content will do."""
    return _full(node, 0)


@_fills("ones.default", "ones_like.default", "new_ones.default")
def ones(node: Node, *_: Any, **__: Any) -> TensorValue:
    """A tensor of ones."""
    return _full(node, 1)


@lowering("arange.start_step", "arange.start", "arange.default")
def arange(node: Node, *bounds: Any, **_: Any) -> TensorValue:
    """Numbers in equal steps."""
    start, step = (0, 1) if len(bounds) == 1 else (bounds[0], bounds[2] if len(bounds) > 2 else 1)
    size = node.shape[0]
    dtype = node.dtype
    positions = node.positions(size, _counting(node))
    scaled = positions if step == 1 else positions * node.tensor(step, positions.dtype)
    shifted = scaled if isinstance(start, int) and start == 0 else scaled + node.tensor(start, positions.dtype)
    return ops.cast(shifted, dtype)


def _counting(node: Node) -> DType:
    """The dtype in which a range is computed."""
    return DType.int64 if node.dtype.is_integral() else node.dtype if node.dtype.size_in_bytes >= 4 else DType.float32


@lowering("eye.default", "eye.m")
def eye(node: Node, *_: Any, **__: Any) -> TensorValue:
    """Ones on the diagonal."""
    rows, columns = node.shape

    line, column = ops.reshape(node.positions(rows), [rows, 1]), ops.reshape(node.positions(columns), [1, columns])
    return ops.cast(ops.equal(line, column), node.dtype)
