"""Embedding tables."""

from __future__ import annotations

from typing import Any

from max.graph import TensorValue, ops

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.lowerings.table import Node, gather, lowering


@lowering("embedding.default")
def embedding(node: Node, weight: TensorValue, indices: TensorValue, *_: Any) -> TensorValue:
    """Rows of a table."""
    return gather(weight, indices, axis=0)


@lowering("embedding_dense_backward.default")
def embedding_dense_backward(
    node: Node, grad: TensorValue, indices: TensorValue, rows: Any, padding: int, by_frequency: bool
) -> TensorValue:
    """The gradient of a table."""
    count, columns = node.dim(node.argument(1).numel()), node.shape[1]
    flat = ops.reshape(grad, [count, columns])
    return custom_mojo_ops.embedding_gradient(
        flat, ops.reshape(indices, [count]), node.shape[0], int(padding), by_frequency=by_frequency
    )
