"""Normal draws around tensors. The fills are in csrc/random.cpp."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from torch_mojo_eager.ops.registry import op


def _check(std: Tensor) -> None:
    """Raises torch's error for negative deviations; looking at them waits for the device, as on CUDA."""
    if std.numel() and not bool((std.min() >= 0).item()):
        raise RuntimeError("normal expects all elements of std >= 0.0")


@op("aten::normal.Tensor_float")
def normal_tensor_float(mean: Tensor, std: float = 1, generator: Generator | None = None) -> Tensor:
    """Normal draws around the elements of a tensor."""
    return torch.empty_like(mean).normal_(0, std, generator=generator).add_(mean)


@op("aten::normal.float_Tensor")
def normal_float_tensor(mean: float, std: Tensor, generator: Generator | None = None) -> Tensor:
    """Normal draws with the elements of a tensor as deviations."""
    _check(std)
    return torch.empty_like(std).normal_(generator=generator).mul_(std).add_(mean)


@op("aten::normal.Tensor_Tensor")
def normal_tensor_tensor(mean: Tensor, std: Tensor, generator: Generator | None = None) -> Tensor:
    """Normal draws with means and deviations from tensors."""
    _check(std)
    shape = torch.broadcast_shapes(mean.shape, std.shape)
    return mean.new_empty(shape).normal_(generator=generator).mul_(std).add_(mean)


@op("aten::bernoulli.out")
def bernoulli_out(self: Tensor, *, generator: Generator | None = None, out: Tensor) -> Tensor:
    """1 with the probability that each element has, else 0."""
    return out.resize_(self.shape).bernoulli_(self, generator=generator)
