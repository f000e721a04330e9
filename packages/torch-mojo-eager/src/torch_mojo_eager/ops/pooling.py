"""Unpooling. Pooling is rows in mojo_runtime/aten/tables/pooling.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mojo_eager.ops.layout import suggested_memory_format
from torch_mojo_eager.ops.registry import op


def _check_not_empty(name: str, what: str, tensor: Tensor, dimensions: Sequence[int]) -> None:
    for d in dimensions:
        if tensor.shape[d] == 0:
            raise RuntimeError(
                f"{name}(): Expected {what} to have non-zero size for non-batch dimensions, but {what} has sizes "
                f"{list(tensor.shape)} with dimension {d % tensor.ndim} being empty"
            )


def _unpool(self: Tensor, indices: Tensor, output_size: Sequence[int], rank: int) -> Tensor:
    if indices.dtype != torch.int64:
        raise RuntimeError(f"elements in indices should be type int64 but got: {indices.dtype}")
    if self.ndim not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"Input to max_unpooling{rank}d should be a {rank + 1}d or {rank + 2}d Tensor, "
            f"but got a tensor with {self.ndim} dimensions."
        )
    if indices.shape != self.shape:
        raise RuntimeError(
            f"Expected shape of indices to be same as that of the input tensor ({list(self.shape)}) "
            f"but got indices tensor with shape: {list(indices.shape)}"
        )
    _check_not_empty(f"max_unpooling{rank}d_forward_out", "input", self, range(self.ndim - rank - 1, self.ndim))
    result = self.new_zeros((*self.shape[:-rank], *output_size))
    result.flatten(-rank).scatter_(-1, indices.flatten(-rank), self.flatten(-rank))
    return result.contiguous(memory_format=suggested_memory_format(self)) if rank == 2 else result


@op("aten::max_unpool2d")
def max_unpool2d(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """Zeros with the elements at given positions over 2 dimensions."""
    if len(output_size) != 2:
        raise RuntimeError(
            f"There should be exactly two elements (height, width) in output_size, but got {len(output_size)} elements."
        )
    return _unpool(self, indices, output_size, 2)


@op("aten::max_unpool3d")
def max_unpool3d(
    self: Tensor, indices: Tensor, output_size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Zeros with the elements at given positions over 3 dimensions."""
    for name, values in (("output_size", output_size), ("stride", stride), ("padding", padding)):
        if len(values) != 3:
            raise RuntimeError(
                f"There should be exactly three elements (depth, height, width) in {name}, "
                f"but got: {len(values)} elements."
            )
    if min(stride) <= 0:
        raise RuntimeError(f"strides should be greater than zero, but got stride: {list(stride)}")
    return _unpool(self, indices, output_size, 3)
