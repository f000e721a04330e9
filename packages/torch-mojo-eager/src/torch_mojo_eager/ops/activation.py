"""Activations that draw, split or have parameters."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from torch_mojo_eager.ops.registry import op


@op("aten::glu.out")
def glu(self: Tensor, dim: int = -1, *, out: Tensor) -> Tensor:
    """One half of a dimension times the sigmoid of the other."""
    first, second = self.chunk(2, dim)
    return torch.mul(first, torch.sigmoid(second), out=out)


@op("aten::glu_backward")
def glu_backward(grad_output: Tensor, self: Tensor, dim: int) -> Tensor:
    """The gradient of glu."""
    if self.ndim == 0:
        raise RuntimeError("glu does not support 0-dimensional tensors")
    size = self.shape[dim]
    if size % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {dim} is size {size}")
    result = torch.empty_like(self, memory_format=torch.contiguous_format)
    first, second = self.chunk(2, dim)
    grad_first, grad_second = result.chunk(2, dim)
    gate = torch.sigmoid(second)
    torch.mul(grad_output, gate, out=grad_first)
    torch.ops.aten.sigmoid_backward.grad_input(grad_output * first, gate, grad_input=grad_second)
    return result


@op("aten::_prelu_kernel_backward")
def prelu_backward(grad_output: Tensor, self: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weight, which broadcasts to x."""
    positive = self > 0
    grad_input = torch.where(positive, grad_output, grad_output * weight)
    return grad_input, (grad_output * self).masked_fill_(positive, 0)


@op("aten::rrelu_with_noise")
def rrelu_with_noise(
    self: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Leaky ReLU, in training with a slope drawn for each element, which `noise` keeps."""
    if not training:
        return torch.where(self <= 0, self * ((lower + upper) / 2), self)
    if noise.shape != self.shape:
        raise RuntimeError(
            f"noise tensor shape must match self tensor shape. Got self.shape = {list(self.shape)}, "
            f"noise.shape = {list(noise.shape)}"
        )
    noise.uniform_(lower, upper, generator=generator)
    noise.masked_fill_(self > 0, 1)
    return self * noise


@op("aten::rrelu_with_noise_")
def rrelu_with_noise_(
    self: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Leaky ReLU in place, in training with a slope drawn for each element."""
    return self.copy_(rrelu_with_noise(self, noise, lower, upper, training, generator))
