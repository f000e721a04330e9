"""Interpolation and sampling on a grid: results, gradients and memory formats are those of CPU torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

MODES: dict[str, dict[str, Any]] = {
    "nearest": {},
    "nearest-exact": {},
    "bilinear": {},
    "bilinear aligned": {"align_corners": True},
    "bilinear antialiased": {"antialias": True},
    "bicubic": {},
    "bicubic antialiased": {"antialias": True},
}
SIZES: dict[str, dict[str, Any]] = {
    "twice": {"scale_factor": 2},
    "more and fewer": {"size": (17, 8)},
    "factors": {"scale_factor": (0.6, 1.7)},
    "one": {"size": (1, 1)},
}
SAMPLES = (
    ("bilinear", "zeros"),
    ("bilinear", "border"),
    ("bilinear", "reflection"),
    ("nearest", "zeros"),
    ("bicubic", "zeros"),
    ("bicubic", "reflection"),
)


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check(device: torch.device, function: Callable[..., Tensor], *operands: Tensor) -> None:
    """Compares the result, its strides, and the gradients."""
    leaves = [[t.to(where).detach().requires_grad_() for t in operands] for where in (device, torch.device("cpu"))]
    actual, expected = (function(*given) for given in leaves)
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-5, atol=2e-5)
    if 1 not in expected.shape:
        assert actual.stride() == expected.stride()
    weight = values(*expected.shape, seed=1).to(expected.dtype)
    gradients = torch.autograd.grad(actual, leaves[0], weight.to(device))
    for gradient, wanted in zip(gradients, torch.autograd.grad(expected, leaves[1], weight), strict=True):
        torch.testing.assert_close(gradient.cpu(), wanted, rtol=1e-4, atol=1e-4)
        if 1 not in wanted.shape:
            assert gradient.stride() == wanted.stride()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", MODES)
def test_interpolation(device, mode, size, layout):
    x = values(2, 19, 9, 21)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    arguments = {"mode": mode.partition(" ")[0], **MODES[mode], **SIZES[size]}
    check(device, lambda x: F.interpolate(x, **arguments), x)


def test_other_ranks(device):
    check(device, lambda x: F.interpolate(x, 31, mode="linear"), values(2, 3, 13))
    check(device, lambda x: F.interpolate(x, 31), values(2, 3, 13))
    check(device, lambda x: F.interpolate(x, (9, 3, 12), mode="trilinear"), values(2, 3, 4, 5, 6))
    check(device, lambda x: F.interpolate(x, (9, 3, 12), mode="nearest-exact"), values(2, 3, 4, 5, 6))


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("mode", "padding"), SAMPLES)
def test_grid_sample(device, mode, padding, aligned):
    def sample(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=aligned)

    grid = values(2, 5, 9, 2, seed=2)
    check(device, sample, values(2, 3, 7, 6), grid)
    check(device, sample, values(2, 20, 7, 6).contiguous(memory_format=torch.channels_last), grid)
    if mode != "bicubic":
        check(device, sample, values(2, 3, 4, 5, 6), values(2, 3, 4, 5, 3, seed=2))


def test_positions_that_are_no_numbers(device):
    """They reach no memory outside of the tensor, and give what CPU torch gives."""
    x = values(1, 2, 5, 5)
    grid = torch.tensor([[[[torch.nan, 0.0], [torch.inf, 0.3], [-torch.inf, 0.0], [0.0, 0.0]]]])
    for padding in ("zeros", "border"):
        expected = F.grid_sample(x, grid, padding_mode=padding, align_corners=False)
        actual = F.grid_sample(x.to(device), grid.to(device), padding_mode=padding, align_corners=False)
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)


def test_affine_grid(device):
    check(device, lambda t: F.affine_grid(t, [2, 3, 4, 5], align_corners=False), values(2, 2, 3))


def test_half_type(device):
    x = values(2, 3, 9, 8).bfloat16()
    for mode in ("nearest", "bilinear", "bicubic"):
        actual = F.interpolate(x.to(device), (5, 20), mode=mode)
        torch.testing.assert_close(actual.cpu(), F.interpolate(x.float(), (5, 20), mode=mode).bfloat16())


def test_errors(device):
    x = torch.ones(2, 3, 4, 5, device=device)
    with pytest.raises(RuntimeError, match="Input and output sizes should be greater than 0"):
        torch.ops.aten.upsample_bilinear2d(x, [0, 3], False)
    with pytest.raises(RuntimeError, match="size 2 in last dimension"):
        F.grid_sample(x, torch.zeros(2, 1, 1, 3, device=device), align_corners=False)
    with pytest.raises(NotImplementedError, match="upsample_nearest2d"):
        F.interpolate(x.long(), scale_factor=2)
