"""Sampling from distributions that tensors hold."""

from __future__ import annotations

import torch

from torch_mojo_eager.ops.registry import op


@op("aten::multinomial")
def multinomial(
    self: torch.Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Positions [..., num_samples] drawn with the probabilities that rows are proportional to.

    Without replacement, and for one sample, the largest of probability / exponential noise win, as on CUDA.
    """
    if not self.is_floating_point():
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {self.dtype}")
    if self.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    categories = self.shape[-1]
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and num_samples > categories:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if self.numel() == 0:
        return self.new_empty((*self.shape[:-1], num_samples), dtype=torch.int64)
    if not bool(((self >= 0) & (self < float("inf"))).all()):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if not bool((self.sum(-1) > 0).all()):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    if not replacement or num_samples == 1:
        noise = torch.empty_like(self).exponential_(1, generator=generator)
        scores = self / noise
        if num_samples == 1:
            return scores.argmax(-1, keepdim=True)
        return scores.topk(num_samples, -1).indices
    # The position of a uniform number among the cumulative sums, which count zeros as never passed.
    cumulative = self.to(torch.float32 if self.dtype != torch.float64 else self.dtype).cumsum(-1)
    uniform = torch.empty((*self.shape[:-1], num_samples), dtype=cumulative.dtype, device=self.device)
    uniform.uniform_(generator=generator)
    thresholds = uniform * cumulative[..., -1:]
    positions = (cumulative.unsqueeze(-2) <= thresholds.unsqueeze(-1)).sum(-1)
    return positions.clamp_(max=categories - 1)
