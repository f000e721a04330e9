"""Convolutions, their gradients and what torch builds on them, compared with the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
# Input, weight, options; the sizes leave remainders of tiles and of slices of the depth.
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 6, 20), (4, 3, 3), {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}),
    "2d": ((2, 3, 17, 19), (5, 3, 7, 5), {"stride": 2, "padding": 3}),
    "2d_same": ((3, 20, 9, 11), (50, 20, 3, 3), {"padding": 1}),
    "2d_pointwise": ((2, 33, 6, 7), (40, 33, 1, 1), {}),
    "2d_pointwise_stride": ((2, 9, 9, 8), (7, 9, 1, 1), {"stride": 3}),
    "2d_groups": ((3, 6, 10, 10), (9, 2, 3, 2), {"stride": (2, 3), "padding": (1, 0), "dilation": (2, 1), "groups": 3}),
    "2d_small_images": ((5, 90, 3, 3), (33, 90, 3, 3), {"padding": 1}),
    "2d_depthwise": ((2, 21, 9, 10), (21, 1, 3, 3), {"padding": 1, "groups": 21}),
    "2d_depthwise_multiplied": ((2, 5, 9, 10), (10, 1, 3, 5), {"stride": 2, "padding": 2, "groups": 5}),
    "2d_few_channels": ((2, 12, 7, 9), (12, 2, 3, 3), {"padding": 1, "groups": 6}),
    "2d_one_channel": ((2, 1, 13, 13), (1, 1, 5, 5), {"padding": 2}),
    "3d": ((2, 3, 6, 7, 8), (6, 3, 3, 2, 3), {"stride": (1, 2, 1), "padding": 1}),
}


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.to(memory_format=formats[tensor.ndim]) if tensor.ndim in formats else tensor


def _results(
    device: torch.device | str, case: str, dtype: torch.dtype, channels_last: bool, transposed: bool
) -> list[torch.Tensor]:
    """Output and gradients of input, weight and bias."""
    shape, weight_shape, options = SHAPES[case]
    generator = torch.Generator().manual_seed(0)
    if transposed:  # the other direction: what the convolution would return is the input
        shape = (shape[0], weight_shape[0], *shape[2:])
    channels = weight_shape[1] * options.get("groups", 1) if transposed else weight_shape[0]
    operands = [torch.randn(size, generator=generator) for size in (shape, weight_shape, (channels,))]
    if channels_last:
        operands = [_channels_last(tensor) for tensor in operands]
    x, weight, bias = (tensor.to(device, dtype).requires_grad_() for tensor in operands)
    name = f"conv_transpose{len(shape) - 2}d" if transposed else f"conv{len(shape) - 2}d"
    y = getattr(functional, name)(x, weight, bias, **options)
    y.backward(torch.randn(y.shape, generator=generator).to(device, dtype))
    return [tensor for tensor in (y.detach(), x.grad, weight.grad, bias.grad) if tensor is not None]


@pytest.mark.parametrize("transposed", [False, True], ids=["convolution", "transposed"])
@pytest.mark.parametrize("channels_last", [False, True], ids=["planar", "channels_last"])
@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_convolution(device, case: str, dtype: torch.dtype, channels_last: bool, transposed: bool) -> None:
    actual = _results(device, case, dtype, channels_last, transposed)
    for result, exact, same in zip(
        actual,
        _results("cpu", case, torch.float64, channels_last, transposed)
        if dtype == torch.float32
        else _results("cpu", case, torch.float32, channels_last, transposed),
        # Of bfloat16 CPU torch keeps the layout only where the CPU has instructions for it.
        _results("cpu", case, torch.float32, channels_last, transposed),
        strict=True,
    ):
        assert result.device.type == device.type
        assert result.dtype == dtype
        assert result.stride() == same.stride()
        tolerance = TOLERANCES[dtype]
        scale = max(1.0, exact.abs().max().item())
        expected = exact if dtype == torch.float32 else exact.to(dtype).float()
        torch.testing.assert_close(result.cpu().to(expected.dtype), expected, rtol=tolerance, atol=tolerance * scale)


def test_operands_of_any_layout(device) -> None:
    """Strided, expanded and mixed operands; a gradient that is expanded; no batch; an empty batch."""
    wide = torch.randn(2, 12, 9, 20, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(6, 3, 3, 8, generator=torch.Generator().manual_seed(1)).transpose(0, 1)[:, :, :, ::2]
    for x in (wide[:, ::2, :, 1::2], wide[:1, :6, :, :9].expand(3, 6, 9, 9), wide[0, :6], wide[:0, :6]):
        for w in (weight, _channels_last(weight.contiguous())):
            leaves = [t.to(device).requires_grad_() for t in (x, w)]
            expected_leaves = [t.detach().clone().requires_grad_() for t in (x, w)]
            y = functional.conv2d(*leaves, stride=2, padding=1)
            expected = functional.conv2d(*expected_leaves, stride=2, padding=1)
            y.sum().backward()
            expected.sum().backward()
            torch.testing.assert_close(y.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
            for leaf, other in zip(leaves, expected_leaves, strict=True):
                torch.testing.assert_close(leaf.grad.cpu(), other.grad, rtol=1e-5, atol=1e-4)


def test_second_gradient(device) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=generator) for size in ((2, 4, 6, 5), (6, 2, 3, 3)))

    def penalty(where: torch.device | str) -> list[torch.Tensor]:
        leaves = [t.to(where).requires_grad_() for t in (x, weight)]
        y = functional.conv2d(*leaves, padding=1, stride=2, groups=2)
        (grad,) = torch.autograd.grad((y * y).sum(), leaves[0], create_graph=True)
        (grad * grad).sum().backward()
        return [leaf.grad.cpu() for leaf in leaves]

    for actual, expected in zip(penalty(device), penalty("cpu"), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-3)


def test_not_a_number_does_not_spread(device) -> None:
    """Targets that do not meet a NaN stay finite."""
    x, weight = torch.ones(1, 2, 8, 9), torch.ones(3, 2, 3, 3)
    x[0, 1, 2, 3] = torch.nan
    for layout in (lambda t: t, _channels_last):
        actual = functional.conv2d(layout(x).to(device), layout(weight).to(device), padding=1).cpu()
        torch.testing.assert_close(actual, functional.conv2d(x, weight, padding=1), equal_nan=True)


def test_long_sums_and_integers(device) -> None:
    """The depth is cut into slices; the gradient's depth into parts; int64 is exact."""
    x, weight = torch.arange(2 * 60 * 900).reshape(2, 60, 900) % 7, torch.arange(5 * 60 * 31).reshape(5, 60, 31) % 5
    expected = functional.conv1d(x, weight, padding=3)
    assert torch.equal(functional.conv1d(x.to(device), weight.to(device), padding=3).cpu(), expected)
    actual = functional.conv1d(x.to(device, torch.float32), weight.to(device, torch.float32), padding=3)
    assert torch.equal(actual.cpu(), expected.float())


@pytest.mark.parametrize("layout", [lambda t: t, _channels_last], ids=["planar", "channels_last"])
def test_threads_do_not_meet(device, layout) -> None:
    """Enough work for all threads gives the same bits every time, and the right ones."""
    generator = torch.Generator().manual_seed(0)
    x = layout(torch.randn(8, 64, 20, 20, generator=generator)).to(device).requires_grad_()
    weight = layout(torch.randn(64, 64, 3, 3, generator=generator)).to(device).requires_grad_()
    grad = layout(torch.randn(8, 64, 20, 20, generator=generator)).to(device)
    runs = []
    for _ in range(30):
        y = functional.conv2d(x, weight, padding=1)
        runs.append([t.cpu() for t in (y.detach(), *torch.autograd.grad(y, (x, weight), grad))])
    for results in runs[1:]:
        for actual, expected in zip(results, runs[0], strict=True):
            assert torch.equal(actual, expected)
    expected = functional.conv2d(x.detach().cpu().double(), weight.detach().cpu().double(), padding=1)
    torch.testing.assert_close(runs[0][0].double(), expected, rtol=1e-5, atol=1e-3)


def test_errors(device) -> None:
    x = torch.randn(1, 3, 8, 8, device=device)
    with pytest.raises(RuntimeError, match="to have 2 channels, but got 3"):
        functional.conv2d(x, torch.randn(4, 2, 3, 3, device=device))
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        functional.conv2d(x, torch.randn(4, 3, 9, 3, device=device))
    with pytest.raises(RuntimeError, match="should be the same"):
        functional.conv2d(x, torch.randn(4, 3, 3, 3, device=device, dtype=torch.bfloat16))


def test_network_learns(device) -> None:
    """A small network follows the same losses as on the CPU."""

    def losses(where: torch.device | str) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, bias=False),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, groups=32),
            nn.Flatten(),
            nn.Linear(32 * 16, 5),
        ).to(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, y = torch.randn(8, 3, 13, 13).to(where), torch.randint(5, (8,)).to(where)
        steps = []
        for _ in range(5):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append(loss.detach())
        return [loss.item() for loss in steps]

    actual, expected = losses(device), losses("cpu")
    assert expected[-1] < expected[0]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


FOLDS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 3},
    "strided": {"kernel_size": (2, 3), "dilation": (2, 1), "padding": (1, 2), "stride": (3, 2)},
}


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("case", FOLDS)
def test_unfold_and_fold(device, case: str, batched: bool) -> None:
    x = torch.randn(2, 3, 10, 12, generator=torch.Generator().manual_seed(0))
    x = x if batched else x[0]

    def results(where: torch.device | str) -> list[torch.Tensor]:
        leaf = x.to(where).requires_grad_()
        columns = functional.unfold(leaf, **FOLDS[case])
        image = functional.fold(columns.square(), (10, 12), **FOLDS[case])
        image.square().sum().backward()
        return [t.detach().cpu() for t in (columns, image, leaf.grad) if t is not None]

    for actual, expected in zip(results(device), results("cpu"), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)


def test_unfold_errors(device) -> None:
    x = torch.randn(1, 3, 8, 8, device=device)
    with pytest.raises(RuntimeError, match="array of sliding blocks"):
        functional.unfold(x, 9)
    with pytest.raises(RuntimeError, match="divisible by the product of kernel_size"):
        functional.fold(torch.randn(1, 10, 4, device=device), (4, 4), 3)
