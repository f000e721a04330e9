"""Products of three tensors, and distances."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mojo_runtime.aten import formulas
from torch_mojo_compile.decompositions.registry import decomposition


@decomposition("_trilinear.default")
def trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The product of three tensors summed over dimensions, each tensor without some of them."""
    dims = range(i1.ndim + len(expand1))
    letters = [[chr(ord("a") + d) for d in dims if d not in without] for without in (expand1, expand2, expand3, sumdim)]
    left, middle, right, out = ("".join(part) for part in letters)
    return torch.einsum(f"{left},{middle},{right}->{out}", i1, i2, i3)


@decomposition("_cdist_forward.default")
def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Distances [..., m, n] between the rows of two matrices."""
    distances: Tensor = formulas.cdist(x1, x2, p)
    return distances


@decomposition("_cdist_backward.default")
def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """The gradient of distances by the first matrices."""
    gradient: Tensor = formulas.cdist_gradient(grad, x1, x2, p, cdist)
    return gradient


def _pairs(x: Tensor) -> Tensor:
    return torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)


@decomposition("_pdist_forward.default")
def pdist(x: Tensor, p: float = 2) -> Tensor:
    """Distances between each two rows."""
    distances: Tensor = formulas.pdist(x, _pairs(x), p)
    return distances


@decomposition("_pdist_backward.default")
def pdist_backward(grad: Tensor, x: Tensor, p: float, pdist: Tensor) -> Tensor:
    """The gradient of distances between each two rows."""
    gradient: Tensor = formulas.pdist_gradient(grad, x, _pairs(x), p, pdist)
    return gradient
