"""Pooling whose outputs torch does not allocate. The other ops are rows in tables/pooling.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mojo_eager.ops.layout import suggested_memory_format
from torch_mojo_eager.ops.registry import launch, op

_ADAPTIVE, _FRACTIONAL = 1, 2


def _check_not_empty(name: str, what: str, tensor: Tensor, dimensions: Sequence[int]) -> None:
    for d in dimensions:
        if tensor.shape[d] == 0:
            raise RuntimeError(
                f"{name}(): Expected {what} to have non-zero size for non-batch dimensions, but {what} has sizes "
                f"{list(tensor.shape)} with dimension {d % tensor.ndim} being empty"
            )


def _adaptive_average(self: Tensor, output_size: Sequence[int], rank: int) -> Tensor:
    name = f"adaptive_avg_pool{rank}d"
    if len(output_size) != rank:
        raise RuntimeError(f"{name}: output_size must be {rank}")
    if self.ndim not in (rank + 1, rank + 2):
        raise RuntimeError(f"{name}(): Expected {rank + 1}D or {rank + 2}D tensor, but got {list(self.shape)}")
    _check_not_empty(name, "input", self, range(-rank, 0))
    if min(output_size) < 0:
        raise RuntimeError(f"{name}: elements of output_size must be greater than or equal to 0, got {output_size}")
    # Over 3 dimensions CPU torch gives contiguous results.
    layout = suggested_memory_format(self) if rank == 2 else torch.contiguous_format
    shape = (*self.shape[:-rank], *output_size)
    result = torch.empty(shape, dtype=self.dtype, device=self.device, memory_format=layout)
    launch("pooling.average:avg_pool", [result, self], [_ADAPTIVE, rank], dtype=self.dtype)
    return result


def _adaptive_average_backward(grad_output: Tensor, self: Tensor, rank: int) -> Tensor:
    name = f"adaptive_avg_pool{rank}d_backward"
    if self.ndim not in (rank + 1, rank + 2):
        raise RuntimeError(f"{name}(): Expected {rank + 1}D or {rank + 2}D tensor, but got {list(self.shape)}")
    if grad_output.ndim != self.ndim or grad_output.shape[:-rank] != self.shape[:-rank]:
        raise RuntimeError(
            f"{name}(): Expected grad_output of sizes {[*self.shape[:-rank], *['*'] * rank]}, "
            f"but got {list(grad_output.shape)}"
        )
    if grad_output.dtype != self.dtype:
        raise RuntimeError(f"{name}(): Expected dtype {self.dtype} for grad_output but got dtype {grad_output.dtype}")
    _check_not_empty(name, "grad_output", grad_output, range(-rank, 0))
    layout = suggested_memory_format(self) if rank == 2 else torch.contiguous_format
    result = torch.empty(self.shape, dtype=self.dtype, device=self.device, memory_format=layout)
    launch("pooling.average:avg_pool_backward", [result, grad_output], [_ADAPTIVE, rank], dtype=self.dtype)
    return result


@op("aten::_adaptive_avg_pool2d")
def adaptive_avg_pool2d(self: Tensor, output_size: Sequence[int]) -> Tensor:
    """Averages of as many windows as asked for over 2 dimensions."""
    return _adaptive_average(self, output_size, 2)


@op("aten::_adaptive_avg_pool3d")
def adaptive_avg_pool3d(self: Tensor, output_size: Sequence[int]) -> Tensor:
    """Averages of as many windows as asked for over 3 dimensions."""
    return _adaptive_average(self, output_size, 3)


@op("aten::_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """Gradient of those averages over 2 dimensions."""
    return _adaptive_average_backward(grad_output, self, 2)


@op("aten::_adaptive_avg_pool3d_backward")
def adaptive_avg_pool3d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """Gradient of those averages over 3 dimensions."""
    return _adaptive_average_backward(grad_output, self, 3)


@op("aten::adaptive_avg_pool2d.out")
def adaptive_avg_pool2d_out(self: Tensor, output_size: Sequence[int], *, out: Tensor) -> Tensor:
    """Averages of as many windows as asked for over 2 dimensions, into a tensor."""
    return out.resize_((*self.shape[:-2], *output_size)).copy_(_adaptive_average(self, output_size, 2))


@op("aten::adaptive_avg_pool3d.out")
def adaptive_avg_pool3d_out(self: Tensor, output_size: Sequence[int], *, out: Tensor) -> Tensor:
    """Averages of as many windows as asked for over 3 dimensions, into a tensor."""
    return out.resize_((*self.shape[:-3], *output_size)).copy_(_adaptive_average(self, output_size, 3))


@op("aten::fractional_max_pool3d_backward")
def fractional_max_pool3d_backward(
    grad_output: Tensor, self: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], indices: Tensor
) -> Tensor:
    """Gradient of fractional maximum pooling over 3 dimensions."""
    expected = [*self.shape[:-3], *output_size]
    for name, tensor in (("grad_output", grad_output), ("indices", indices)):
        if list(tensor.shape) != expected:
            raise RuntimeError(
                f"fractional_max_pool3d_backward(): Expected {name} of sizes {expected}, but got {list(tensor.shape)}"
            )
    result = self.new_empty(self.shape)
    scalars = [_FRACTIONAL, 3, len(kernel_size), *kernel_size]
    launch("pooling.maximum:max_pool_backward", [result, grad_output, indices], scalars, dtype=self.dtype)
    return result


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
