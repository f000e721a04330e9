"""Copies that map coordinates: flips, rolls, shuffles. Padding is rows in mojo_runtime/aten/tables/resampling.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mojo_runtime.aten.table import MOVED
from torch_mojo_eager.ops.layout import suggested_memory_format
from torch_mojo_eager.ops.registry import launch, op

KERNELS = (("mapping:mapped_copy[dtype={0}]", (MOVED,)),)

_FLIP, _ROLL = 4, 5  # of mojo_kernels/resampling/axis.mojo


def _wrap(dim: int, ndim: int) -> int:
    count = max(ndim, 1)
    if not -count <= dim < count:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})")
    return dim % count


def _empty_like_format_of(self: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, dtype=self.dtype, device=self.device, memory_format=suggested_memory_format(self))


@op("aten::flip")
def flip(self: Tensor, dims: Sequence[int]) -> Tensor:
    """Reverses dimensions."""
    flipped = [_wrap(d, self.ndim) for d in dims]
    if len(set(flipped)) != len(flipped):
        raise RuntimeError(f"dim {flipped[-1]} appears multiple times in the list of dims")
    result = torch.empty_like(self)
    if self.numel():
        scalars = [_FLIP, self.ndim, *(int(d in flipped) for d in range(self.ndim))]
        launch("mapping:mapped_copy", [result, self], scalars, dtype=self.dtype)
    return result


@op("aten::roll")
def roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Rotates dimensions, or the flattened tensor."""
    if not shifts:
        raise RuntimeError("`shifts` required")
    if not dims and len(shifts) == 1:
        return roll(self.reshape(-1), shifts, (0,)).view(self.shape)
    if len(shifts) != len(dims):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    distances = [0] * self.ndim
    for shift, dim in zip(shifts, dims, strict=True):
        if not self.ndim:
            raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
        d = _wrap(dim, self.ndim)
        distances[d] = (distances[d] + shift) % max(self.shape[d], 1)
    result = _empty_like_format_of(self, self.shape)
    if self.numel():
        launch("mapping:mapped_copy", [result, self], [_ROLL, self.ndim, *distances], dtype=self.dtype)
    return result


@op("aten::channel_shuffle")
def channel_shuffle(self: Tensor, groups: int) -> Tensor:
    """Takes a channel of each group in turn."""
    if self.ndim <= 2:
        raise RuntimeError(f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(self.shape)}")
    if groups <= 0:
        raise RuntimeError(f"Number of groups to divide channels in must be positive. Value of groups:{groups}")
    channels = self.shape[1]
    if channels % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {channels} channels and {groups} groups."
        )
    result = _empty_like_format_of(self, self.shape)
    if self.numel():
        result.unflatten(1, (channels // groups, groups)).copy_(
            self.unflatten(1, (groups, channels // groups)).transpose(1, 2)
        )
    return result


def _check_shuffle(name: str, what: str, self: Tensor, factor: int) -> None:
    if self.ndim < 3:
        raise RuntimeError(
            f"{name} expects input to have at least 3 dimensions, but got input with {self.ndim} dimension(s)"
        )
    if factor <= 0:
        raise RuntimeError(f"{name} expects a positive {what}_factor, but got {factor}")


@op("aten::pixel_shuffle")
def pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
    """Makes rows and columns of groups of channels."""
    _check_shuffle("pixel_shuffle", "upscale", self, upscale_factor)
    r = upscale_factor
    *batch, channels, height, width = self.shape
    if channels % r**2:
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
            f"but input.size(-3)={channels} is not divisible by {r**2}"
        )
    shape = (*batch, channels // r**2, height * r, width * r)
    result = _empty_like_format_of(self, shape)
    if self.numel():
        blocks = self.unflatten(-3, (channels // r**2, r, r)).movedim((-4, -3), (-3, -1))
        result.unflatten(-1, (width, r)).unflatten(-3, (height, r)).copy_(blocks)
    return result


@op("aten::pixel_unshuffle")
def pixel_unshuffle(self: Tensor, downscale_factor: int) -> Tensor:
    """Makes groups of channels of rows and columns."""
    _check_shuffle("pixel_unshuffle", "downscale", self, downscale_factor)
    r = downscale_factor
    *batch, channels, height, width = self.shape
    for name, size, d in (("height", height, -2), ("width", width, -1)):
        if size % r:
            raise RuntimeError(
                f"pixel_unshuffle expects {name} to be divisible by downscale_factor, "
                f"but input.size({d})={size} is not divisible by {r}"
            )
    shape = (*batch, channels * r**2, height // r, width // r)
    result = _empty_like_format_of(self, shape)
    if self.numel():
        blocks = self.unflatten(-1, (width // r, r)).unflatten(-3, (height // r, r)).movedim((-3, -1), (-4, -3))
        result.unflatten(-3, (channels, r, r)).copy_(blocks)
    return result
