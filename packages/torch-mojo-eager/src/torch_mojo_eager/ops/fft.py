"""Fourier transforms. Numbers are pairs [..., 2] of real and imaginary part, so that both precisions are served.

Lengths without prime factors above 7 go to the kernel; others are convolutions of such lengths, by Bluestein's method.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mojo_eager.ops.registry import launch, op

KERNELS = (("fft:transform[dtype={0}]", (("float32", "float64"),)),)


@functools.cache
def _factors(length: int) -> tuple[int, ...]:
    """The stages of a length, () where the kernel has none for it."""
    found = []
    for factor in (4, 2, 3, 5, 7):
        while length % factor == 0:
            found.append(factor)
            length //= factor
    return tuple(found) if length == 1 else ()


@functools.lru_cache(maxsize=64)
def _roots(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """exp(-2 pi i k / length) for all k."""
    angles = [-2 * math.pi * k / length for k in range(length)]
    return torch.tensor([[math.cos(a), math.sin(a)] for a in angles], dtype=torch.float64).to(dtype).to(device)


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Product of complex numbers."""
    real = a[..., 0] * b[..., 0] - a[..., 1] * b[..., 1]
    return torch.stack([real, a[..., 0] * b[..., 1] + a[..., 1] * b[..., 0]], -1)


def _conjugate(pairs: Tensor) -> Tensor:
    return torch.stack([pairs[..., 0], -pairs[..., 1]], -1)


@functools.lru_cache(maxsize=64)
def _chirp(length: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """exp(-pi i k^2 / length), and the transform of what it is convolved with."""
    angles = [-math.pi * (k * k % (2 * length)) / length for k in range(length)]
    chirp = torch.tensor([[math.cos(a), math.sin(a)] for a in angles], dtype=torch.float64).to(dtype)
    padded = 1 << (2 * length - 2).bit_length()
    filter_ = torch.zeros(padded, 2, dtype=dtype)
    filter_[:length] = _conjugate(chirp)
    filter_[padded - length + 1 :] = _conjugate(chirp)[1:].flip(0)
    return chirp.to(device), _rows(filter_.to(device)[None], False)[0]


def _rows(pairs: Tensor, inverse: bool) -> Tensor:
    """Transforms contiguous rows [count, length, 2], unscaled."""
    count, length = pairs.shape[:2]
    if length == 1 or count == 0:
        return pairs.clone()
    factors = _factors(length)
    if factors:
        result = torch.empty_like(pairs)
        roots = _roots(length, pairs.dtype, pairs.device)
        scalars = [inverse, len(factors), *factors]
        launch("fft:transform", [result, pairs, torch.empty_like(pairs), roots], scalars, dtype=pairs.dtype)
        return result
    chirp, spectrum = _chirp(length, pairs.dtype, pairs.device)
    if inverse:
        return _conjugate(_rows(_conjugate(pairs), False))
    padded = pairs.new_zeros(count, spectrum.shape[0], 2)
    padded[:, :length] = _times(pairs, chirp)
    convolved = _rows(_times(_rows(padded, False), spectrum), True)[:, :length] / spectrum.shape[0]
    return _times(convolved, chirp)


def _along(pairs: Tensor, dim: int, inverse: bool) -> Tensor:
    """Transforms a dimension of [..., 2]."""
    moved = pairs.movedim(dim, -2).contiguous()
    return _rows(moved.view(-1, *moved.shape[-2:]), inverse).view(moved.shape).movedim(-2, dim)


def _scale(pairs: Tensor, lengths: Sequence[int], normalization: int) -> Tensor:
    """Divides by nothing, by the root of the number of values, or by that number."""
    if normalization == 0:
        return pairs
    count = math.prod(lengths)
    return pairs / (math.sqrt(count) if normalization == 1 else count)


def _complex(pairs: Tensor) -> Tensor:
    return torch.view_as_complex(pairs.contiguous())


@op("aten::_fft_c2c")
def _fft_c2c(self: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    """Complex Fourier transform over dimensions."""
    pairs = torch.view_as_real(self.resolve_conj())
    dims = [d % self.ndim for d in dim] if self.ndim else []
    for d in dims:
        pairs = _along(pairs, d, not forward)
    return _complex(_scale(pairs, [self.shape[d] for d in dims], normalization)).clone()


@op("aten::_fft_r2c")
def _fft_r2c(self: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    """Fourier transform of real numbers over dimensions; onesided: the last one's redundant half is left out."""
    dims = [d % self.ndim for d in dim]
    pairs = torch.stack([self, torch.zeros_like(self)], -1)
    pairs = _along(pairs, dims[-1], False)
    if onesided:
        pairs = pairs.narrow(dims[-1], 0, self.shape[dims[-1]] // 2 + 1)
    for d in dims[:-1]:
        pairs = _along(pairs, d, False)
    return _complex(_scale(pairs, [self.shape[d] for d in dims], normalization))


@op("aten::_fft_c2r")
def _fft_c2r(self: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    """Inverse Fourier transform to real numbers; the last dimension's other half is the conjugate."""
    dims = [d % self.ndim for d in dim]
    pairs = torch.view_as_real(self.resolve_conj())
    for d in dims[:-1]:
        pairs = _along(pairs, d, True)
    last = dims[-1]
    half = pairs.narrow(last, 0, last_dim_size // 2 + 1)
    rest = _conjugate(half.narrow(last, 1, (last_dim_size - 1) // 2).flip(last))
    real = _along(torch.cat([half, rest], last), last, True)[..., 0]
    lengths = [self.shape[d] for d in dims[:-1]] + [last_dim_size]
    return _scale(real, lengths, normalization).contiguous()
