"""Convolutions in both directions and the gradient of their weight, over layouts that frontends rarely pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

# Relative to the result's largest element; sums of half types are float32, rounded once.
TOLERANCES = {"float32": 2e-6, "bfloat16": 4e-3}
# Input, weight, stride, padding, dilation, groups.
CASES = [
    ((2, 5, 9, 11), (7, 5, 3, 2), (1, 2), (1, 0), (2, 1), 1),
    ((2, 40, 6, 5), (50, 40, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((3, 33, 1, 1), (20, 33, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((2, 12, 7, 8), (8, 3, 3, 3), (2, 2), (2, 1), (1, 1), 4),
    ((2, 37, 7, 20), (37, 1, 3, 5), (1, 1), (1, 2), (1, 1), 37),
    ((2, 3, 8, 9), (6, 1, 4, 2), (3, 2), (1, 1), (1, 2), 3),
    # Several regions of targets to a task, several tasks, blocks of channels, rows longer than a region, an odd batch.
    ((5, 70, 6, 7), (150, 70, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((3, 3, 23, 41), (64, 3, 7, 7), (2, 2), (3, 3), (1, 1), 1),
    ((4, 17, 3, 600), (31, 17, 2, 3), (1, 1), (0, 2), (1, 2), 1),
    ((3, 64, 30, 28), (48, 64, 1, 1), (2, 1), (0, 0), (1, 1), 1),
    ((1, 512, 5, 5), (64, 512, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((2, 70, 7, 9), (70, 1, 3, 3), (1, 1), (1, 1), (1, 1), 70),
    ((4, 96, 9, 9), (96, 24, 3, 3), (1, 1), (1, 1), (1, 1), 4),
]
LAYOUTS = ("planar", "channels last", "strided")


def _convolve(dtype: str) -> str:
    return f"convolution.convolve:convolve[dtype={dtype}]"


def _weight(dtype: str) -> str:
    return f"convolution.weight:weight_gradient[dtype={dtype}]"


@pytest.fixture(scope="module")
def library(kernels: Callable[[list[str]], Any]) -> Any:
    return kernels([key(dtype) for dtype in TOLERANCES for key in (_convolve, _weight)])


def _tensor(shape: tuple[int, ...], layout: str, dtype: str) -> torch.Tensor:
    x = torch.randn(shape).to(getattr(torch, dtype))
    if layout == "channels last":
        return x.to(memory_format=torch.channels_last)
    if layout == "strided":
        wide = torch.randn(shape[0], 2 * shape[1], shape[3], 2 * shape[2] + 1).to(x.dtype)
        return wide[:, ::2, :, 1::2].transpose(2, 3).copy_(x)
    return x


def _check(actual: torch.Tensor, expected: torch.Tensor, dtype: str) -> None:
    tolerance = TOLERANCES[dtype] * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_convolution(library: Any, dtype: str, case: int) -> None:
    torch.manual_seed(0)
    shape, weight_shape, stride, padding, dilation, groups = CASES[case]
    scalars = [groups, stride, padding, dilation]
    for input_layout, output_layout in itertools.product(LAYOUTS, repeat=2):
        x = _tensor(shape, input_layout, dtype)
        weight = _tensor(weight_shape, output_layout, dtype)
        bias = torch.randn(2 * weight_shape[0]).to(x.dtype)[::2]
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        leaves = [t.double().requires_grad_() for t in (x, weight)]
        expected = functional.conv2d(*leaves, bias.double(), **options)
        output = _tensor(tuple(expected.shape), output_layout, dtype)
        library(_convolve(dtype), [output, x, weight, bias], [0, *scalars])
        _check(output, expected, dtype)

        gradient = _tensor(tuple(expected.shape), input_layout, dtype)
        expected.backward(gradient.double())
        grad_x, grad_weight = _tensor(shape, output_layout, dtype), _tensor(weight_shape, input_layout, dtype)
        library(_convolve(dtype), [grad_x, gradient, weight, None], [1, *scalars])
        _check(grad_x, leaves[0].grad, dtype)
        library(_weight(dtype), [grad_weight, gradient, x], scalars)
        _check(grad_weight, leaves[1].grad, dtype)


def test_no_taps_meet(library: Any) -> None:
    """Positions that no tap reaches get the bias, or zero."""
    x, weight, bias = torch.randn(1, 2, 3, 3), torch.randn(2, 4, 1, 1), torch.randn(4)
    expected = functional.conv_transpose2d(x, weight, bias, stride=3, output_padding=2)
    output = torch.full_like(expected, torch.nan)
    library(_convolve("float32"), [output, x, weight, bias], [1, 1, (3, 3), (0, 0), (1, 1)])
    torch.testing.assert_close(output, expected)


def test_sizes_that_do_not_fit(library: Any) -> None:
    with pytest.raises(ValueError, match="do not fit together"):
        library(
            _convolve("float32"),
            [torch.zeros(1, 4, 3, 3), torch.zeros(1, 2, 3, 3), torch.zeros(4, 3, 1, 1), None],
            [0, 1, (1, 1), (0, 0), (1, 1)],
        )
