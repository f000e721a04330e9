"""Products whose outputs torch does not allocate; the others are rows of tables/matmul.py."""

from __future__ import annotations

import torch
from torch import Tensor

from mojo_runtime.aten.table import NUMERIC
from torch_mojo_eager.ops.registry import launch, op

KERNELS = (("matmul.products:dot[dtype={0}]", (NUMERIC,)),)


@op("aten::dot")
def dot(self: Tensor, tensor: Tensor) -> Tensor:
    """Scalar product of two vectors."""
    if self.ndim != 1 or tensor.ndim != 1:
        raise RuntimeError(f"1D tensors expected, but got {self.ndim}D and {tensor.ndim}D tensors")
    if self.dtype != tensor.dtype:
        raise RuntimeError(f"dot : expected both vectors to have same dtype, but found {self.dtype} and {tensor.dtype}")
    if self.shape != tensor.shape:
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor [{self.numel()}] and src [{tensor.numel()}] to have the same "
            f"number of elements, but got {self.numel()} and {tensor.numel()} elements respectively"
        )
    if self.is_complex():
        return (self * tensor).sum()
    if str(self.dtype).removeprefix("torch.") not in NUMERIC:
        raise NotImplementedError(f"aten::dot is not implemented on mojo for dtype {self.dtype}; convert with .to()")
    result = self.new_empty(())
    launch("matmul.products:dot", [result, self, tensor], dtype=self.dtype)
    return result


@op("aten::vdot")
def vdot(self: Tensor, other: Tensor) -> Tensor:
    """Scalar product of two vectors, the first conjugated."""
    return dot(self.conj().resolve_conj(), other)


@op("aten::addbmm")
def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Sum of a batch's matrix products, added to a matrix."""
    if batch1.ndim != 3 or batch2.ndim != 3:
        raise RuntimeError(f"batch1 and batch2 must be 3D tensors, got {batch1.ndim}D and {batch2.ndim}D")
    if batch1.shape[0] != batch2.shape[0] or batch1.shape[2] != batch2.shape[1]:
        raise RuntimeError(
            f"batch1 and batch2 do not fit together: {tuple(batch1.shape)} and {tuple(batch2.shape)}; expected "
            f"[b, m, k] and [b, k, n]"
        )
    # The sum over the batch is part of one longer sum over columns.
    rows, columns = batch1.shape[1], batch2.shape[2]
    length = batch1.shape[0] * batch1.shape[2]
    left = batch1.transpose(0, 1).reshape(rows, length)
    right = batch2.reshape(length, columns)
    return torch.addmm(self, left, right, beta=beta, alpha=alpha)


@op("aten::addbmm_")
def addbmm_(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Sum of a batch's matrix products, added in place."""
    return self.copy_(addbmm(self, batch1, batch2, beta=beta, alpha=alpha))
