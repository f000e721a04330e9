"""Softmax, log-softmax and their gradients against torch."""

from __future__ import annotations

import pytest
import torch

NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16"}
OPS = ("softmax", "log_softmax")
VIEWS = {
    "contiguous": lambda x: x,
    "permuted": lambda x: x.permute(2, 0, 1),
    "sliced": lambda x: x[1:, ::2, 3:],
    "expanded": lambda x: x[:, :1].expand(-1, 6, -1),
}


def forward_key(op: str, dtype: torch.dtype, out: torch.dtype) -> str:
    return f"softmax:softmax[dtype={NAMES[dtype]},op={op},out={NAMES[out]}]"


def backward_key(op: str, dtype: torch.dtype, out: torch.dtype) -> str:
    return f"softmax:softmax_backward[dtype={NAMES[dtype]},op={op},out={NAMES[out]}]"


@pytest.fixture(scope="module")
def library(kernels):
    keys = [key(op, dtype, dtype) for key in (forward_key, backward_key) for op in OPS for dtype in NAMES]
    keys += [forward_key(op, torch.float16, torch.float32) for op in OPS]
    keys += [backward_key(op, torch.float32, torch.float16) for op in OPS]
    return kernels(keys)


def reference(op: str, x: torch.Tensor, dim: int) -> torch.Tensor:
    return getattr(torch, op)(x.double(), dim)


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("view", VIEWS)
def test_forward(library, op: str, dtype: torch.dtype, view: str) -> None:
    for shape in ((5, 7, 150), (3, 4, 9), (2, 40, 35)):
        x = VIEWS[view](torch.randn(shape, dtype=torch.float64).to(dtype) * 4)
        for dim in range(-1, x.ndim):
            for out in (torch.empty(x.shape, dtype=dtype), torch.empty_like(x.expand(3, *x.shape))[1]):
                library(forward_key(op, dtype, dtype), [out, x], [dim])
                torch.testing.assert_close(out, reference(op, x, dim).to(dtype))


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("view", VIEWS)
def test_backward(library, op: str, dtype: torch.dtype, view: str) -> None:
    for shape in ((5, 7, 150), (3, 4, 9), (2, 40, 35)):
        x = VIEWS[view](torch.randn(shape, dtype=torch.float64))
        gradient = VIEWS[view](torch.randn(shape, dtype=torch.float64).to(dtype))
        for dim in range(-1, x.ndim):
            y = reference(op, x, dim).to(dtype)
            if op == "softmax":
                expected = torch._softmax_backward_data(gradient.double(), y.double(), dim, torch.float64)
            else:
                expected = torch._log_softmax_backward_data(gradient.double(), y.double(), dim, torch.float64)
            out = torch.empty(x.shape, dtype=dtype)
            library(backward_key(op, dtype, dtype), [out, gradient, y], [dim])
            torch.testing.assert_close(out, expected.to(dtype))


@pytest.mark.parametrize("op", OPS)
def test_half_to_float(library, op: str) -> None:
    x = torch.randn(6, 100).half()
    out = torch.empty(6, 100)
    library(forward_key(op, torch.float16, torch.float32), [out, x], [1])
    torch.testing.assert_close(out, reference(op, x, 1).float())
    gradient = torch.empty(6, 100, dtype=torch.float16)
    library(backward_key(op, torch.float32, torch.float16), [gradient, torch.ones(6, 100), out], [1])
    y = out.double()
    expected = (1 - y.sum(1, keepdim=True)) * y if op == "softmax" else 1 - 100 * y.exp()
    torch.testing.assert_close(gradient, expected.half(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("op", OPS)
def test_special_values(library, op: str) -> None:
    """Masked rows, rows that are all masked, NaN, infinities, large values, one element, nothing."""
    inf, nan = float("inf"), float("nan")
    x = torch.randn(7, 70)
    x[0, 10:] = -inf
    x[1] = -inf
    x[2, 3] = nan
    x[3, 5] = inf
    x[4] *= 1e4
    x[5] = 88.0
    for view, dim in ((x, 1), (x.t().contiguous(), 0)):
        out = torch.empty_like(view)
        library(forward_key(op, torch.float32, torch.float32), [out, view], [dim])
        torch.testing.assert_close(out, getattr(torch, op)(view, dim), equal_nan=True)
    for shape in ((), (4, 1), (0, 3), (3, 0)):
        view = torch.randn(shape)
        out = torch.empty_like(view)
        library(forward_key(op, torch.float32, torch.float32), [out, view], [-1])
        torch.testing.assert_close(out, getattr(torch, op)(view, -1))


@pytest.mark.parametrize("op", OPS)
def test_parallel(library, op: str) -> None:
    for shape, dim in (((600, 300), 1), ((4, 50257), 1), ((40, 30, 500), 1)):
        x = torch.randn(shape)
        out = torch.empty_like(x)
        library(forward_key(op, torch.float32, torch.float32), [out, x], [dim])
        torch.testing.assert_close(out, reference(op, x, dim).float())
