"""Sampling from distributions that tensors hold."""

from __future__ import annotations

import math
from collections.abc import Iterator

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


def _philox(seed: int, subsequence: int, offset: int) -> Iterator[int]:
    """The 32-bit draws of one thread of CUDA's Philox 4x32-10 generator; `offset` counts draws, a multiple of 4."""
    word = 2**32 - 1
    counter = offset // 4
    while True:
        c = [counter & word, counter >> 32, subsequence & word, subsequence >> 32]
        k = [seed & word, seed >> 32 & word]
        for _ in range(10):
            low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [high >> 32 ^ c[1] ^ k[0], high & word, low >> 32 ^ c[3] ^ k[1], low & word]
            k = [k[0] + 0x9E3779B9 & word, k[1] + 0xBB67AE85 & word]
        yield from c
        counter += 1


def _shuffle_equals(keys: torch.Tensor, order: torch.Tensor, seed: int, offset: int) -> torch.Tensor:
    """Shuffles the positions of equal keys, which are sorted, as CUDA does; the host waits to learn of them."""
    follows = keys[1:] == keys[:-1]
    if not bool(follows.any()):
        return order
    shuffled = order.tolist()
    equal = [place + 1 for place in follows.nonzero().flatten().tolist()]
    start, run = equal[0] - 1, 1
    for place, following in zip(equal, [*equal[1:], None], strict=True):
        run += 1
        if following == place + 1:
            continue
        draws = _philox(seed, start, offset)
        for i in range(run - 1, 0, -1):
            other = next(draws) % (i + 1)
            shuffled[start + i], shuffled[start + other] = shuffled[start + other], shuffled[start + i]
        if following is not None:
            start, run = following - 1, 1
    return torch.tensor(shuffled, dtype=order.dtype).to(order.device)


@op("aten::randperm.generator_out")
def randperm(n: int, *, generator: torch.Generator | None = None, out: torch.Tensor) -> torch.Tensor:
    """The integers below n in random order: the order of random keys, with as many bits and ties broken as on CUDA."""
    if n < 0:
        raise RuntimeError("n must be non-negative")
    if out.dtype.is_floating_point and n > 2 / torch.finfo(out.dtype).eps:
        raise RuntimeError(f"n is too large for result tensor type: '{out.dtype}'")
    if not out.dtype.is_floating_point and n - 1 > torch.iinfo(out.dtype).max:
        raise RuntimeError(f"n is too large for result tensor type: '{out.dtype}'")
    out.resize_(n)
    if n == 0:
        return out
    # So many bits that all keys differ with a probability of 0.9.
    bits = min(64, math.ceil(math.log2(n - (6 * n * n + 1) / (12 * math.log(0.9)))))
    kind = torch.int32 if bits <= 32 else torch.int64
    limits = torch.iinfo(kind)
    drawn = torch.empty(n, dtype=kind, device=out.device).random_(limits.min, limits.max, generator=generator)
    keys = drawn.to(torch.int64)
    if bits not in (32, 64):
        keys = keys & ((1 << bits) - 1)
    keys, order = torch.sort(keys, stable=True)
    seed, offset = torch.ops.mojo.philox_state(generator, out.device.index, n + -n % 4)
    return out.copy_(_shuffle_equals(keys, order, seed % 2**64, offset))
