"""Indexing ops whose outputs torch does not allocate."""

from __future__ import annotations

import torch

from torch_mojo_eager.ops.registry import launch, op


def _wrap(dim: int, ndim: int) -> int:
    count = max(ndim, 1)
    if not -count <= dim < count:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})")
    return dim % count


@op("aten::index_select")
def index_select(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """Slices at the positions that a vector of int64 or int32 gives."""
    dim = _wrap(dim, self.ndim)
    if index.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("index_select(): Expected dtype int32 or int64 for index")
    shape = list(self.shape)
    if shape:
        shape[dim] = index.numel()
    elif index.numel() != 1:
        raise RuntimeError(f"index_select(): Index to scalar can have only 1 value, got {index.numel()} value(s)")
    result = self.new_empty(shape)
    launch(
        "indexing.gather_scatter:gather",
        [result, self, index],
        [dim],
        dtype=self.dtype,
        index=index.dtype,
        indices="slices",
    )
    return result


@op("aten::embedding_dense_backward")
def embedding_dense_backward(
    grad_output: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> torch.Tensor:
    """The gradient [num_weights, columns] of an embedding table."""
    columns = grad_output.shape[-1]
    result = grad_output.new_empty((num_weights, columns))
    launch(
        "embedding:embedding_backward",
        [result, grad_output.reshape(-1, columns).contiguous(), indices.reshape(-1).contiguous()],
        [padding_idx, scale_grad_by_freq],
        dtype=grad_output.dtype,
        index=indices.dtype,
    )
    return result
