"""Indexing, and bags of embeddings, which are lookups that are summed."""

from __future__ import annotations

import torch
from torch import Tensor

from mojo_runtime.aten import formulas
from torch_mojo_compile.decompositions.registry import decomposition

_MEAN, _MAX = 1, 2


@decomposition("index_reduce.default")
def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Combines slices at given positions of a dimension with those that are there, or only with one another."""
    if x.ndim == 0:
        return index_reduce(x[None], 0, index, source.reshape(1), reduce, include_self=include_self)[0]
    places = index.reshape([-1 if d == dim % x.ndim else 1 for d in range(x.ndim)]).expand(source.shape)
    return x.scatter_reduce(dim, places, source, reduce, include_self=include_self)


@decomposition("put.default")
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Writes elements at positions of the flattened tensor, or adds them there."""
    written = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return written.view(x.shape)


def _ranks(flags: Tensor) -> Tensor:
    """How many elements of a flat mask are set up to each one, itself not counted."""
    return flags.cumsum(0) - 1


@decomposition("masked_scatter.default")
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Writes consecutive elements of a source where a mask is set."""
    x, mask = torch.broadcast_tensors(x, mask)
    if source.numel() == 0:
        return x.clone()
    places = _ranks(mask.reshape(-1)).clamp(0, source.numel() - 1)
    return torch.where(mask, source.reshape(-1)[places].view(x.shape), x)


@decomposition("nonzero_static.default")
def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Coordinates [size, dimensions] of the first elements that are not zero; rows beyond them hold a fill value."""
    flags = (x != 0).reshape(-1)
    # What is not wanted goes to one more place, which is cut off.
    ranks = torch.where(flags, _ranks(flags).clamp(max=size), size)
    numbers = torch.arange(flags.numel(), device=x.device)
    found = numbers.new_full((size + 1,), -1).scatter(0, ranks, numbers)[:size]
    coordinates, rest = [], found
    for length in reversed(x.shape):
        coordinates.append(rest % length)
        rest = rest // length
    if not coordinates:
        return numbers.new_empty((size, 0))
    return torch.where(found[:, None] < 0, fill_value, torch.stack(coordinates[::-1], 1))


@decomposition("_embedding_bag_dense_backward.default")
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
    of_lookups = formulas.gradients_of_lookups(grad, offset2bag, bag_size, mode == _MEAN, per_sample_weights)
    table: Tensor = torch.ops.aten.embedding_dense_backward(
        of_lookups, indices.reshape(-1), num_weights, padding_idx, scale_grad_by_freq
    )
    return table


def _bags(offsets: Tensor, lookups: int) -> Tensor:
    """The bag of each lookup, which CPU torch's own forward does not always say."""
    numbers = torch.arange(lookups, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets, numbers, right=True) - 1


@decomposition("_embedding_bag_backward.default")
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
        return NotImplemented  # type: ignore[no-any-return]
    return embedding_bag_dense_backward(
        grad,
        indices,
        _bags(offsets, indices.numel()),
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@decomposition("_embedding_bag_per_sample_weights_backward.default")
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
    flat = indices.reshape(-1)
    of_lookups = grad.index_select(0, _bags(offsets, flat.numel()))
    # Half types are summed in float32.
    dtype = torch.float64 if grad.dtype == torch.float64 else torch.float32
    products = of_lookups.to(dtype) * weight.index_select(0, flat).to(dtype)
    return products.sum(-1).masked_fill(flat == padding_idx, 0).to(grad.dtype)
