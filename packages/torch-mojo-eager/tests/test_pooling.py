"""Pooling: values, indices, gradients and memory formats are those of CPU torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x,
    "strided": lambda x: torch.stack((x, x), -1).flatten(-2)[..., 1::2],
}

# Sizes: rows longer than a vector with a tail, channels with a tail, both below a vector.
IMAGES = (2, 21, 23, 37)
SMALL = (2, 3, 7, 6)

MAXIMA: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "3x3/2": (IMAGES, {"kernel_size": 3, "stride": 2, "padding": 1}),
    "3x3/1": (IMAGES, {"kernel_size": 3, "stride": 1, "padding": 1}),
    "dilated": (IMAGES, {"kernel_size": (2, 3), "stride": (3, 1), "padding": (0, 1), "dilation": (2, 3)}),
    "ceil": (SMALL, {"kernel_size": 2, "ceil_mode": True}),
    "far apart": (SMALL, {"kernel_size": 2, "stride": 3}),
    "without batch": (SMALL[1:], {"kernel_size": 3, "padding": 1}),
    "3d": ((2, 3, 6, 7, 9), {"kernel_size": (2, 3, 2), "stride": 2, "padding": (1, 1, 0)}),
    "1d": ((2, 3, 40), {"kernel_size": 3, "stride": 2}),
}
AVERAGES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "2x2/2": (IMAGES, {"kernel_size": 2}),
    "3x3/1": (IMAGES, {"kernel_size": 3, "stride": 1, "padding": 1}),
    "padding left out": (IMAGES, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
    "ceil": (SMALL, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    "divisor": (SMALL, {"kernel_size": 2, "divisor_override": 3}),
    "3d": ((2, 3, 6, 7, 9), {"kernel_size": (2, 3, 2), "stride": 2, "padding": (1, 1, 0)}),
}
ADAPTIVE = ((IMAGES, (5, 7)), ((2, 17, 8, 12), (4, 6)), (SMALL, (1, 9)), ((3, 4, 6, 5), (2, 3, 5)))


def check(device: torch.device, function: Callable[[Tensor], Any], x: Tensor) -> None:
    """Compares results, the gradient for the first of them, and strides."""

    def run(x: Tensor) -> list[Tensor]:
        leaf = x.detach().requires_grad_(x.is_floating_point())
        result = function(leaf)
        results = list(result) if isinstance(result, tuple) else [result]
        if leaf.requires_grad:
            generator = torch.Generator().manual_seed(1)
            weight = torch.randn(results[0].shape, generator=generator).to(x.dtype)
            results += torch.autograd.grad(results[0], leaf, weight.to(x.device))
        return [r.detach() for r in results]

    on_device = x.to(device)
    if not x.is_contiguous() and on_device.stride() != x.stride():
        on_device = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x)
    for actual, expected in zip(run(on_device), run(x), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)
        if 1 not in expected.shape:
            assert actual.stride() == expected.stride()


def pool(kind: str, rank: int) -> Callable[..., Any]:
    return getattr(F, f"{kind}_pool{rank}d")


def rank_of(name: str, shape: tuple[int, ...]) -> int:
    return int(name[0]) if name[1:] == "d" else 2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MAXIMA)
def test_maximum(device, name, layout):
    shape, arguments = MAXIMA[name]
    x = LAYOUTS[layout](torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    check(device, lambda x: pool("max", rank_of(name, shape))(x, return_indices=True, **arguments), x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", AVERAGES)
def test_average(device, name, layout):
    shape, arguments = AVERAGES[name]
    x = LAYOUTS[layout](torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    check(device, lambda x: pool("avg", rank_of(name, shape))(x, **arguments), x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "output_size"), ADAPTIVE)
def test_adaptive(device, shape, output_size, layout):
    x = LAYOUTS[layout](torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    rank = len(output_size)
    check(device, lambda x: pool("adaptive_avg", rank)(x, output_size), x)
    check(device, lambda x: pool("adaptive_max", rank)(x, output_size, return_indices=True), x)


@pytest.mark.parametrize("rank", [2, 3])
def test_fractional(device, rank):
    x = torch.randn((2, 3, 9, 8, 11)[: rank + 2], generator=torch.Generator().manual_seed(0))
    samples = torch.rand((2, 3, rank), generator=torch.Generator().manual_seed(1))

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        size = (4, 3, 5)[:rank]
        return pool("fractional_max", rank)(x, 2, size, None, True, samples.to(x.device))

    check(device, run, x)


def test_unpool(device):
    x = torch.randn(SMALL, generator=torch.Generator().manual_seed(0))
    check(device, lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), x)
    with pytest.raises(RuntimeError):
        F.max_unpool2d(torch.ones(1, 1, 2, 2, device=device), torch.full((1, 1, 2, 2), 16, device=device), 2).cpu()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_nan_and_ties(device, layout):
    """The last NaN of a window counts, else the first of equal elements."""
    x = torch.randint(0, 3, IMAGES, generator=torch.Generator().manual_seed(0)).float()
    x[:, :, ::5, ::3] = torch.nan
    x[:, :, 10:] = -torch.inf
    check(device, lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), LAYOUTS[layout](x))


def test_integers(device):
    x = torch.randint(-9, 9, SMALL, generator=torch.Generator().manual_seed(0))
    check(device, lambda x: F.max_pool2d(x, 2, return_indices=True), x)
    check(device, lambda x: F.avg_pool2d(x, 3, 2, 1), x)


def test_half_type_accumulates_in_float32(device):
    """CPU torch rounds the sums of some gradients at every step: the reference is its float32."""
    x = torch.randn(IMAGES, generator=torch.Generator().manual_seed(0)).bfloat16()
    for function in (lambda x: F.max_pool2d(x, 3, 1, 1), lambda x: F.avg_pool2d(x, 3, 1, 1)):
        wide, narrow = x.float().requires_grad_(), x.to(device).requires_grad_()
        (expected,) = torch.autograd.grad(function(wide).sum(), wide)
        (actual,) = torch.autograd.grad(function(narrow).sum(), narrow)
        torch.testing.assert_close(actual.cpu(), expected.bfloat16())


def test_errors(device):
    x = torch.ones(SMALL, device=device)
    with pytest.raises(RuntimeError, match="pad should be at most half of effective kernel size"):
        F.max_pool2d(x, 3, padding=2)
    with pytest.raises(RuntimeError, match="divisor must be not zero"):
        F.avg_pool2d(x, 2, divisor_override=0)
    with pytest.raises(RuntimeError, match="non-zero size"):
        F.adaptive_avg_pool2d(x[:, :, :0], 2)
    with pytest.raises(NotImplementedError, match="avg_pool2d"):
        F.avg_pool2d(x.int(), 2)
