"""Copies that map coordinates: padding, flips, rolls and shuffles compute what they compute on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

SHAPES = ((2, 20, 7, 19), (3, 5, 6), (2, 3, 4, 5, 6))


def values(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def channels_last(x: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.ndim]) if x.ndim in formats else x


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": channels_last,
    "strided": lambda x: torch.stack((x, x), -1).flatten(-2)[..., 1::2],
}


def check(device: torch.device, function: Callable[[Tensor], Tensor], x: Tensor, strides: bool = True) -> None:
    """Compares the result, its strides, and the gradient of floating-point inputs."""
    on_device = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(x)
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in (on_device, x)]
    actual, expected = (function(leaf) for leaf in leaves)
    torch.testing.assert_close(actual.detach().cpu(), expected.detach())
    if strides:
        assert actual.stride() == expected.stride()
    if x.is_floating_point():
        weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
        (gradient,) = torch.autograd.grad(actual, leaves[0], weight.to(device))
        (wanted,) = torch.autograd.grad(expected, leaves[1], weight)
        torch.testing.assert_close(gradient.cpu(), wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("shape", SHAPES)
def test_padding(device, shape, mode, layout):
    rank = max(len(shape) - 2, 1)
    paddings = [(2, 1, 3, 0, 1, 2)[: 2 * rank]]
    if mode != "circular":
        paddings.append((-1, 3, 2, -2, 0, 1)[: 2 * rank])
    for padding in paddings:
        check(device, lambda x, p=padding: F.pad(x, p, mode), LAYOUTS[layout](values(shape)))


def test_constants_and_dtypes(device):
    cases = ((torch.bfloat16, 1.5), (torch.int64, -7), (torch.bool, True))
    tensors = [(values((3, 5)) * 4).to(dtype) for dtype, _ in cases]
    kept = [F.pad(x.to(device), (1, 1)) for x in tensors]  # asks for all kernels before the first is waited for
    for (_, value), x in zip(cases, tensors, strict=True):
        for padding in ((1, 2), (-1, 1, 0, 3), (-2, -1)):
            check(device, lambda x, p=padding, v=value: F.pad(x, p, value=v), x)
    del kept
    empty = values((0, 3))
    check(device, lambda x: F.pad(x, (0, 0, 2, 1), value=1.0), empty)
    check(device, lambda x: F.pad(x, (1, 1, 2, 0, 0, 1, 1, 1)), values((2, 3, 1, 4)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_flips_and_rolls(device, layout):
    x = LAYOUTS[layout](values(SHAPES[0]))
    check(device, lambda x: x.flip(0, -1), x, strides=layout != "strided")
    check(device, lambda x: x.roll((1, -5), (0, 3)), x)
    check(device, lambda x: x.roll(777), x)
    check(device, lambda x: x.rot90(1, (2, 3)), x, strides=False)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_shuffles(device, layout):
    x = LAYOUTS[layout](values((2, 18, 6, 9)))
    check(device, lambda x: F.pixel_shuffle(x, 3), x)
    check(device, lambda x: F.pixel_unshuffle(x, 3), x)
    with torch.no_grad():
        expected = F.channel_shuffle(x, 6)
        actual = F.channel_shuffle(x.to(device), 6)
    torch.testing.assert_close(actual.cpu(), expected)


def test_unfold_and_repeat(device):
    x = values((4, 11, 3))
    for size, step in ((3, 1), (3, 2), (2, 5), (11, 1)):
        check(device, lambda x, s=size, t=step: x.unfold(1, s, t) * 1, x, strides=False)
    repeats = torch.tensor([2, 0, 0, 3])
    check(device, lambda x: x.repeat_interleave(repeats.to(x.device), 0), x)
    assert torch.repeat_interleave(repeats.to(device), output_size=5).tolist() == [0, 0, 3, 3, 3]
    with pytest.raises(RuntimeError, match="can not be negative"):
        torch.repeat_interleave(-repeats.to(device))


def test_errors(device):
    x = torch.ones(2, 3, 4, 5, device=device)
    with pytest.raises(RuntimeError, match="Padding size should be less than the corresponding input dimension"):
        F.pad(x, (5, 0, 0, 0), "reflect")
    with pytest.raises(RuntimeError, match="negative"):
        F.pad(x, (-3, -4))
    with pytest.raises(RuntimeError, match="appears multiple times"):
        x.flip(1, -3)
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.roll(1, 4)
    with pytest.raises(RuntimeError, match="divisible"):
        F.pixel_shuffle(x, 2)
