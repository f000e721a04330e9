"""Distances between rows, and the cross product."""

from __future__ import annotations

import torch
from torch import Tensor

from mojo_runtime.aten import formulas
from torch_mojo_eager.ops.registry import op


@op("aten::linalg_cross.out")
def linalg_cross(self: Tensor, other: Tensor, *, dim: int = -1, out: Tensor) -> Tensor:
    """Cross product of vectors along a dimension of 3."""
    a, b = (tensor.expand(out.shape) for tensor in (self, other))
    following, preceding = ([tensor.roll(shift, dim) for tensor in (a, b)] for shift in (-1, 1))
    return out.copy_(following[0] * preceding[1] - preceding[0] * following[1])


@op("aten::_cdist_forward")
def _cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Distances [..., m, n] between the rows of two matrices."""
    if p < 0:
        raise RuntimeError("cdist only supports non-negative p values")
    distances: Tensor = formulas.cdist(x1, x2, p)
    return distances


@op("aten::_cdist_backward")
def _cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """Gradient of `_cdist_forward` for the first matrices."""
    gradient: Tensor = formulas.cdist_gradient(grad, x1, x2, p, cdist)
    return gradient


def _pairs(x: Tensor) -> Tensor:
    return torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)


@op("aten::_pdist_forward")
def _pdist_forward(self: Tensor, p: float = 2) -> Tensor:
    """Distances between each two rows."""
    distances: Tensor = formulas.pdist(self, _pairs(self), p)
    return distances


@op("aten::_pdist_backward")
def _pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
    """Gradient of `_pdist_forward`."""
    gradient: Tensor = formulas.pdist_gradient(grad, self, _pairs(self), p, pdist)
    return gradient
