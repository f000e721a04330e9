"""Embedding bags and what else embedding tables need."""

from __future__ import annotations

import torch
from torch import Tensor

from mojo_runtime.aten.table import FLOATING
from torch_mojo_eager.ops.registry import launch, op

_INDEX = ("int64", "int32")
KERNELS = (
    ("embedding:embedding_backward[dtype={0},index={1}]", (FLOATING, _INDEX)),
    ("embedding_bag:embedding_bag[dtype={0},index={1}]", (FLOATING, _INDEX)),
    ("embedding_bag:weights_backward[dtype={0},index={1}]", (FLOATING, _INDEX)),
)
_SUM, _MEAN, _MAX = 0, 1, 2

Bags = tuple[Tensor, Tensor, Tensor, Tensor]


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


def _check(weight: Tensor, indices: Tensor, offsets: Tensor, mode: int, per_sample_weights: Tensor | None) -> None:
    if weight.ndim != 2:
        raise RuntimeError(f"'weight' must be 2-D, but got {weight.ndim} dimensions")
    if indices.ndim not in (1, 2):
        raise RuntimeError(f"input has to be a 1D or 2D Tensor, but got Tensor of dimension {indices.ndim}")
    if offsets.ndim != 1:
        raise RuntimeError(f"offsets has to be a 1D Tensor, but got Tensor of dimension {offsets.ndim}")
    for name, tensor in (("indices", indices), ("offsets", offsets)):
        if tensor.dtype not in (torch.int64, torch.int32):
            raise RuntimeError(
                f"Expected tensor for argument '{name}' to have one of the following scalar types: Long, Int; but got "
                f"{tensor.dtype} instead"
            )
    if per_sample_weights is not None:
        if mode != _SUM:
            raise RuntimeError("embedding_bag: per_sample_weights only supported with mode='sum'")
        if per_sample_weights.dtype != weight.dtype:
            raise RuntimeError(
                f"expected per_sample_weights of dtype {weight.dtype} as the weight, got {per_sample_weights.dtype}"
            )
        if per_sample_weights.numel() != indices.numel():
            raise RuntimeError("expected as many per_sample_weights as indices")
    if str(weight.dtype).removeprefix("torch.") not in FLOATING:
        raise NotImplementedError(f'"embedding_bag" not implemented for {weight.dtype}; convert the table to float32')


@op("aten::_embedding_bag_forward_only")
@op("aten::_embedding_bag")
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Bags:
    """Sums, means or maxima of the rows that bags look up; the bag of each lookup, bag sizes, rows of maxima."""
    _check(weight, indices, offsets, mode, per_sample_weights)
    dtype = torch.promote_types(indices.dtype, offsets.dtype)
    indices, offsets = indices.to(dtype).reshape(-1).contiguous(), offsets.to(dtype).contiguous()
    if include_last_offset and offsets.numel() < 1:
        raise RuntimeError("include_last_offset: number of offset should be at least 1")
    bags = offsets.numel() - int(include_last_offset)
    columns = weight.shape[1]
    output = weight.new_empty((bags, columns))
    bag_of = torch.empty_like(indices)
    bag_size = offsets.new_empty(bags)
    maxima = offsets.new_empty((bags, columns) if mode == _MAX else 0)
    if bags:
        launch(
            "embedding_bag:embedding_bag",
            [
                output,
                bag_of,
                bag_size,
                maxima if mode == _MAX else None,
                weight,
                indices,
                offsets,
                None if per_sample_weights is None else per_sample_weights.reshape(-1).contiguous(),
            ],
            [bags, include_last_offset, mode, padding_idx],
            dtype=weight.dtype,
            index=dtype,
        )
    return output, bag_of, bag_size, maxima


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
        # Rows -1, of bags without lookups, are one more row, which is cut off.
        result = grad.new_zeros((num_weights + 1, grad.shape[1]))
        rows = torch.where(maximum_indices < 0, num_weights, maximum_indices).to(torch.int64)
        return result.scatter_add_(0, rows, grad)[:num_weights]
    bags = offset2bag.to(torch.int64)
    if mode == _MEAN:
        grad = grad / bag_size.clamp(min=1).unsqueeze(1).to(grad.dtype)
    of_lookups = grad.index_select(0, bags)
    if per_sample_weights is not None:
        of_lookups = of_lookups * per_sample_weights.reshape(-1, 1)
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
