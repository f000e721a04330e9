"""Embedding tables."""

from __future__ import annotations

from typing import Any

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.lowerings.table import Node, cast, gather, lowering


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


def _vector(node: Node, position: int, value: TensorValue) -> TensorValue:
    return ops.reshape(value, [node.dim(node.argument(position).numel())])


@lowering("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(
    node: Node,
    weight: TensorValue,
    indices: TensorValue,
    offsets: TensorValue,
    scale_grad_by_freq: bool = False,
    mode: Any = 0,
    sparse: bool = False,
    per_sample_weights: TensorValue | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> list[TensorValue | None]:
    """Sums, means or maxima of the rows that bags look up, and what their gradients need."""
    kind = DType.int64 if DType.int64 in (indices.dtype, offsets.dtype) else DType.int32
    lookups, starts = cast(_vector(node, 1, indices), kind), cast(offsets, kind)
    made = custom_mojo_ops.embedding_bag(
        weight,
        lookups,
        starts,
        per_sample_weights,
        node.shape[0],
        mode,
        padding_idx,
        includes_last=include_last_offset,
    )
    # torch's CPU leaves some of these out, and gives others sizes of its own; nobody reads them but backward passes.
    for i, value in enumerate(made):
        if node.is_used(i) and (value is None or list(value.shape) != node.symbols.dims(node.result(i).shape)):
            raise NotImplementedError(f"result {i} of bags with mode {mode}, which torch does not define")
    return [value if node.is_used(i) else None for i, value in enumerate(made)]
