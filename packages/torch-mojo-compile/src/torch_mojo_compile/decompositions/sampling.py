"""Random ops in terms of fills, in the order in which eager ones draw."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from torch_mojo_compile.decompositions.registry import decomposition

_aten = torch.ops.aten


@decomposition("multinomial.default")
def multinomial(
    x: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Positions [..., num_samples] drawn with probabilities that rows are proportional to; nothing checks them."""
    if not replacement or num_samples == 1:
        scores: Tensor = x / _aten.exponential.default(x)
        return scores.argmax(-1, keepdim=True) if num_samples == 1 else scores.topk(num_samples, -1).indices
    cumulative = x.cumsum(-1, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
    uniform = torch.rand((*x.shape[:-1], num_samples), dtype=cumulative.dtype, device=x.device)
    thresholds = uniform * cumulative[..., -1:]
    positions = (cumulative.unsqueeze(-2) <= thresholds.unsqueeze(-1)).sum(-1)
    return positions.clamp(max=x.shape[-1] - 1)


@decomposition("rrelu_with_noise_functional.default")
def rrelu(
    x: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Leaky ReLU, in training with a slope drawn for each element, and the slopes."""
    if not training:
        return torch.where(x <= 0, x * ((lower + upper) / 2), x), noise.clone()
    drawn = _aten.uniform.default(noise, lower, upper).masked_fill(x > 0, 1)
    return x * drawn, drawn
