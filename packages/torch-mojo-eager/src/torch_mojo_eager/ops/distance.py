"""Distances between rows, and the cross product."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_mojo_eager.ops.registry import op


@op("aten::linalg_cross.out")
def linalg_cross(self: Tensor, other: Tensor, *, dim: int = -1, out: Tensor) -> Tensor:
    """Cross product of vectors along a dimension of 3."""
    a, b = (tensor.expand(out.shape) for tensor in (self, other))
    following, preceding = ([tensor.roll(shift, dim) for tensor in (a, b)] for shift in (-1, 1))
    return out.copy_(following[0] * preceding[1] - preceding[0] * following[1])


def _differences(x1: Tensor, x2: Tensor) -> Tensor:
    return x1.unsqueeze(-2) - x2.unsqueeze(-3)


@op("aten::_cdist_forward")
def _cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Distances [..., m, n] between the rows of two matrices."""
    if p < 0:
        raise RuntimeError("cdist only supports non-negative p values")
    shape = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    x1, x2 = x1.expand(*shape, *x1.shape[-2:]), x2.expand(*shape, *x2.shape[-2:])
    if x1.shape[-1] == 0:
        return x1.new_zeros(*shape, x1.shape[-2], x2.shape[-2])
    norm: Tensor = torch.linalg.vector_norm(_differences(x1, x2), p, dim=-1)
    return norm


@op("aten::_cdist_backward")
def _cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """Gradient of `_cdist_forward` for the first matrices."""
    if x1.numel() == 0 or x2.numel() == 0 or grad.numel() == 0:
        return torch.zeros_like(x1)
    return (_norm_slope(_differences(x1, x2), p, cdist) * grad.unsqueeze(-1)).sum(-2)


def _norm_slope(difference: Tensor, p: float, distance: Tensor) -> Tensor:
    """The derivative of a norm of differences by each of them; 0 where the distance is 0."""
    length = distance.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return difference.sign()
    if math.isinf(p):
        return difference.sign() * (difference.abs() == length)
    slope = difference.sign() * (difference.abs() / length) ** (p - 1)
    return torch.where((length == 0) | (difference == 0), 0, slope)


def _pairs(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    first, second = torch.triu_indices(n, n, 1, device=device)
    return first, second


@op("aten::_pdist_forward")
def _pdist_forward(self: Tensor, p: float = 2) -> Tensor:
    """Distances between each two rows."""
    first, second = _pairs(self.shape[0], self.device)
    if self.shape[1] == 0:
        return self.new_zeros(first.shape)
    norm: Tensor = torch.linalg.vector_norm(self[first] - self[second], p, dim=-1)
    return norm


@op("aten::_pdist_backward")
def _pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
    """Gradient of `_pdist_forward`."""
    first, second = _pairs(self.shape[0], self.device)
    slope = _norm_slope(self[first] - self[second], p, pdist) * grad.unsqueeze(-1)
    return torch.zeros_like(self).index_add(0, first, slope).index_add(0, second, -slope)
