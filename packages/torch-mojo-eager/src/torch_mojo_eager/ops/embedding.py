"""Embedding bags and what else embedding tables need."""

from __future__ import annotations

import torch
from torch import Tensor

from mojo_runtime.aten import formulas
from mojo_runtime.aten.table import FLOATING
from torch_mojo_eager.ops.registry import launch, op

_INDEX = ("int64", "int32")
KERNELS = (
    ("embedding:embedding_backward[dtype={0},index={1}]", (FLOATING, _INDEX)),
    ("embedding_bag:embedding_bag[dtype={0},index={1}]", (FLOATING, _INDEX)),
    ("embedding_bag:weights_backward[dtype={0},index={1}]", (FLOATING, _INDEX)),
)
_SUM, _MEAN, _MAX = 0, 1, 2


@op("aten::embedding_renorm_")
def embedding_renorm_(self: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Scales the rows of a table that are looked up and whose norm is larger down to it."""
    if indices.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(f"embedding_renorm_: expected indices of int64 or int32, got {indices.dtype}")
    chosen = torch.unique(indices)
    rows = self.index_select(0, chosen)
    norms = torch.linalg.vector_norm(rows, norm_type, [1], True)
    factors = torch.where(norms > max_norm, max_norm / (norms + 1e-7), 1.0).to(self.dtype)
    return self.index_copy_(0, chosen.to(torch.int64), rows * factors)


@op("aten::_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient [rows, columns] of the table."""
    if mode == _MAX:
        gradient: Tensor = formulas.gradient_of_maxima(grad, maximum_indices, num_weights)
        return gradient
    bags = offset2bag.to(torch.int64)
    of_lookups = formulas.gradients_of_lookups(grad, bags, bag_size, mode == _MEAN, per_sample_weights)
    flat = indices.reshape(-1)
    table: Tensor = torch.ops.aten.embedding_dense_backward(
        of_lookups, flat, num_weights, padding_idx, scale_grad_by_freq
    )
    return table


@op("aten::_embedding_bag_backward")
def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient of the table."""
    if sparse:
        raise NotImplementedError("embedding_bag on mojo has no sparse gradients; use sparse=False")
    return embedding_bag_dense_backward(
        grad,
        indices,
        offset2bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@op("aten::_embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    """The gradients of the lookups' weights."""
    if mode != _SUM:
        raise RuntimeError("embedding_bag_backward: per_sample_weights only supported for mode='sum'")
    flat = indices.reshape(-1).to(offset2bag.dtype).contiguous()
    result = grad.new_empty(flat.numel())
    if flat.numel():
        launch(
            "embedding_bag:weights_backward",
            [result, grad, weight, flat, offset2bag.contiguous()],
            [padding_idx],
            dtype=grad.dtype,
            index=flat.dtype,
        )
    return result
