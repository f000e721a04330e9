"""Copies that map coordinates and whose outputs torch does not allocate: constant padding, flips, rolls, shuffles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mojo_runtime.aten.table import ALL
from torch_mojo_eager.ops.layout import suggested_memory_format
from torch_mojo_eager.ops.registry import launch, op

KERNELS = (("mapping:mapped_copy[dtype={0}]", (ALL,)),)

_REFLECT, _REPLICATE, _FLIP, _ROLL = 2, 3, 4, 5  # of mojo_kernels/resampling/axis.mojo


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


def _padded_shape(self: Tensor, padding: Sequence[int], rank: int, reflects: bool) -> list[int]:
    """The sizes of a result of padding with elements of the input over 2 or 3 dimensions."""
    if len(padding) != 2 * rank:
        raise RuntimeError(f"padding size is expected to be {2 * rank}, but got: {len(padding)}")
    batched = self.ndim == rank + 2
    if not (batched or self.ndim == rank + 1) or 0 in self.shape[1 if batched else 0 :]:
        raise RuntimeError(
            f"Expected {rank + 1}D or {rank + 2}D (batch mode) tensor with possibly 0 batch size and other non-zero "
            f"dimensions for input, but got: {list(self.shape)}"
        )
    shape = list(self.shape)
    for i in range(rank):
        d = self.ndim - 1 - i
        before, after = padding[2 * i : 2 * i + 2]
        if reflects and (before >= self.shape[d] or after >= self.shape[d]):
            raise RuntimeError(
                "Padding size should be less than the corresponding input dimension, "
                f"but got: padding ({before}, {after}) at dimension {d} of input {list(self.shape)}"
            )
        shape[d] += before + after
    if min(shape[-rank:]) < 1:
        raise RuntimeError(
            f"input of spatial sizes {list(self.shape[-rank:])} is too small. Calculated output sizes "
            f"{shape[-rank:]} must be >= 1 in every dimension"
        )
    return shape


def _register_padding(mode: str, kind: int, rank: int) -> None:
    """Padding with elements of the input, or only its gradient: the rest are rows in tables/resampling.py."""
    name = f"{mode}_pad{rank}d"
    reflects = kind == _REFLECT

    def pad_out(self: Tensor, padding: Sequence[int], *, out: Tensor) -> Tensor:
        shape = _padded_shape(self, padding, rank, reflects)
        if list(out.shape) != shape:
            out.resize_(shape)
        launch("mapping:mapped_copy", [out, self], [kind, len(padding), *padding], dtype=self.dtype)
        return out

    def pad(self: Tensor, padding: Sequence[int]) -> Tensor:
        shape = _padded_shape(self, padding, rank, reflects)
        return pad_out(self, padding, out=_empty_like_format_of(self, shape))

    def pad_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
        shape = _padded_shape(self, padding, rank, reflects)
        if list(grad_output.shape) != shape:
            raise RuntimeError(
                f"{name}_backward: sizes of grad_output unexpected. Expected: {shape}, Got: {list(grad_output.shape)}"
            )
        result = _empty_like_format_of(self, self.shape)
        scalars = [kind, len(padding), *padding]
        launch("resampling.separable:resample_backward", [result, grad_output], scalars, dtype=self.dtype)
        return result

    pad.__doc__ = pad_out.__doc__ = f"Padding by {mode} over {rank} dimensions."
    pad_backward.__doc__ = f"Gradient of padding by {mode} over {rank} dimensions."
    if reflects:
        op(f"aten::{name}")(pad)
        op(f"aten::{name}.out")(pad_out)
    op(f"aten::{name}_backward")(pad_backward)


# Torch's own meta functions of these are in Python and would not keep channels last, as its CPU kernels do.
_register_padding("reflection", _REFLECT, 2)
_register_padding("replication", _REPLICATE, 2)
_register_padding("replication", _REPLICATE, 3)


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
