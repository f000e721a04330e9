"""Layer normalization and its gradients against torch in float64."""

from __future__ import annotations

import pytest
import torch

NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16"}
SHAPES = ((6, 384), (3, 5), (1, 1), (40, 1), (2, 1027), (700, 33))
EPS = 1e-5


@pytest.fixture(scope="module")
def library(kernels):
    return kernels(
        [
            f"normalization.layer_norm:{name}[dtype={dtype}]"
            for name in ("forward", "backward")
            for dtype in NAMES.values()
        ]
    )


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def exact(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    parameters = [None if p is None else p.double() for p in (weight, bias)]
    return torch.native_layer_norm(x.double(), (x.shape[1],), *parameters, EPS)


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
@pytest.mark.parametrize(("has_weight", "has_bias"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(library, dtype: torch.dtype, has_weight: bool, has_bias: bool, shape: tuple[int, int]) -> None:
    x = (torch.randn(shape) * 2 + 1).to(dtype)
    weight = torch.randn(shape[1]).to(dtype) if has_weight else None
    bias = torch.randn(shape[1]).to(dtype) if has_bias else None
    y = torch.empty_like(x)
    mean, rstd = (torch.empty(shape[0], dtype=statistics_dtype(dtype)) for _ in range(2))
    library(f"normalization.layer_norm:forward[dtype={NAMES[dtype]}]", [y, mean, rstd, x, weight, bias], [*shape, EPS])
    expected = exact(x, weight, bias)
    torch.testing.assert_close(y, expected[0].to(dtype))
    torch.testing.assert_close(mean, expected[1].flatten().to(mean.dtype))
    torch.testing.assert_close(rstd, expected[2].flatten().to(rstd.dtype))


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, True), (False, False, True)])
@pytest.mark.parametrize("has_weight", [True, False])
def test_backward(library, dtype: torch.dtype, mask: tuple[bool, bool, bool], has_weight: bool) -> None:
    for shape in SHAPES:
        x, dy = ((torch.randn(shape) * 2 + 1).to(dtype) for _ in range(2))
        weight = torch.randn(shape[1]).to(dtype) if has_weight else None
        _, mean, rstd = exact(x, None, None)
        gradients = [
            torch.full((shape if i == 0 else shape[1:]), 77.0).to(dtype) if wanted else None
            for i, wanted in enumerate(mask)
        ]
        library(
            f"normalization.layer_norm:backward[dtype={NAMES[dtype]}]",
            [
                *gradients,
                dy,
                x,
                mean.flatten().to(statistics_dtype(dtype)),
                rstd.flatten().to(statistics_dtype(dtype)),
                weight,
            ],
            [*shape],
        )
        ones = torch.ones(shape[1], dtype=torch.float64)
        expected = torch.ops.aten.native_layer_norm_backward(
            dy.double(),
            x.double(),
            (shape[1],),
            mean,
            rstd,
            ones if weight is None else weight.double(),
            ones,
            (True,) * 3,
        )
        for gradient, e in zip(gradients, expected, strict=True):
            if gradient is not None:
                torch.testing.assert_close(
                    gradient,
                    e.to(dtype),
                    rtol=None if dtype != torch.float32 else 1e-5,
                    # Sums of 700 terms of magnitude 5, of which some nearly cancel.
                    atol=None if dtype != torch.float32 else 1e-4,
                )


def test_large_mean_does_not_cancel(library) -> None:
    x = torch.randn(4, 1000) + 1000
    y, mean, rstd = torch.empty_like(x), torch.empty(4), torch.empty(4)
    library("normalization.layer_norm:forward[dtype=float32]", [y, mean, rstd, x, None, None], [4, 1000, EPS])
    torch.testing.assert_close(y, exact(x, None, None)[0].float(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(rstd, exact(x, None, None)[2].flatten().float(), rtol=1e-4, atol=0)


def test_parallel(library) -> None:
    x, dy, weight = torch.randn(2000, 100), torch.randn(2000, 100), torch.randn(100)
    y, mean, rstd = torch.empty_like(x), torch.empty(2000), torch.empty(2000)
    library("normalization.layer_norm:forward[dtype=float32]", [y, mean, rstd, x, weight, None], [2000, 100, EPS])
    torch.testing.assert_close(y, exact(x, weight, None)[0].float())
    gradients = [torch.empty_like(x), torch.empty(100), torch.empty(100)]
    library("normalization.layer_norm:backward[dtype=float32]", [*gradients, dy, x, mean, rstd, weight], [2000, 100])
    _, m, r = exact(x, None, None)
    expected = torch.ops.aten.native_layer_norm_backward(
        dy.double(), x.double(), (100,), m, r, weight.double(), weight.double(), (True,) * 3
    )
    for gradient, e in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, e.float(), rtol=1e-5, atol=1e-4)
