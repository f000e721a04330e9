"""Losses and their gradients against torch."""

from __future__ import annotations

import pytest
import torch

NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16"}
IGNORED = -100


@pytest.fixture(scope="module")
def library(kernels):
    return kernels(
        [f"loss.nll:{name}[dtype={d}]" for name in ("nll_loss", "nll_loss_backward") for d in NAMES.values()]
    )


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(7, 5), (9000, 11), (1, 3), (5,)], ids=str)
def test_nll(library, dtype: torch.dtype, reduction: int, weighted: bool, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).log_softmax(-1).to(dtype)
    targets = torch.randint(0, shape[-1], shape[:-1])
    if len(shape) == 2 and shape[0] > 1:
        targets[::3] = IGNORED
    weight = torch.rand(shape[-1]).to(dtype) if weighted else None
    double_weight = None if weight is None else weight.double()
    expected = torch.ops.aten.nll_loss_forward(x.double(), targets, double_weight, reduction, IGNORED)
    for view in (x, x.t().contiguous().t() if x.ndim == 2 else x):
        out = torch.empty(expected[0].shape, dtype=dtype)
        total_weight = torch.empty((), dtype=dtype)
        library(
            f"loss.nll:nll_loss[dtype={NAMES[dtype]}]", [out, total_weight, view, targets, weight], [reduction, IGNORED]
        )
        torch.testing.assert_close(out, expected[0].to(dtype))
        if reduction != 0 or x.ndim == 1:
            torch.testing.assert_close(total_weight, expected[1].to(dtype))
    gradient = torch.randn(expected[0].shape).to(dtype)
    total = expected[1]
    expected_gradient = torch.ops.aten.nll_loss_backward(
        gradient.double(), x.double(), targets, double_weight, reduction, IGNORED, total
    )
    for dx in (
        torch.full_like(x, 7),
        torch.full_like(x, 7).t().contiguous().t() if x.ndim == 2 else torch.empty_like(x),
    ):
        library(
            f"loss.nll:nll_loss_backward[dtype={NAMES[dtype]}]",
            [dx, gradient, x, targets, weight, total.to(dtype)],
            [reduction, IGNORED],
        )
        torch.testing.assert_close(dx, expected_gradient.to(dtype))


def test_nll_of_nothing(library) -> None:
    x = torch.randn(3, 4)
    targets = torch.full((3,), IGNORED)
    out, total = torch.empty(()), torch.empty(())
    library("loss.nll:nll_loss[dtype=float32]", [out, total, x, targets, None], [1, IGNORED])
    assert out.isnan()
    assert total == 0
    library("loss.nll:nll_loss[dtype=float32]", [out, total, x[:0], targets[:0], None], [2, IGNORED])
    assert out == 0


def test_target_out_of_range(library) -> None:
    x, out, total = torch.randn(3, 4), torch.empty(()), torch.empty(())
    for bad in (4, -1):
        targets = torch.tensor([0, bad, 1])
        with pytest.raises(IndexError, match=f"Target {bad} is out of bounds."):
            library("loss.nll:nll_loss[dtype=float32]", [out, total, x, targets, None], [1, IGNORED])
        with pytest.raises(IndexError, match=f"Target {bad} is out of bounds."):
            library("loss.nll:nll_loss_backward[dtype=float32]", [x, out, x, targets, None, total], [1, IGNORED])
