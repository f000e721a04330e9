"""Running sums and products against torch."""

from __future__ import annotations

import pytest
import torch

NAMES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
}
OPS = ("cumsum", "cumprod")
PAIRS = [
    (torch.float32, torch.float32),
    (torch.float64, torch.float64),
    (torch.bfloat16, torch.bfloat16),
    (torch.int32, torch.int64),
    (torch.bool, torch.int64),
    (torch.float32, torch.int64),
    (torch.int64, torch.float32),
]


def key(op: str, dtype: torch.dtype, out: torch.dtype) -> str:
    return f"cumulative:cumulative[dtype={NAMES[dtype]},op={op},out={NAMES[out]}]"


@pytest.fixture(scope="module")
def library(kernels):
    return kernels([key(op, *pair) for op in OPS for pair in PAIRS])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("dtype", "out_dtype"), PAIRS, ids=NAMES.get)
def test_cumulative(library, op: str, dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    for shape in ((3, 40, 21), (5, 300), (7,), (), (0, 3), (2000, 40)):
        x = (torch.randn(shape, dtype=torch.float64) * (1 if op == "cumsum" else 1.5)).to(dtype)
        for view in (x, x.permute(list(range(x.ndim))[::-1]), x[..., ::2] if x.ndim else x):
            for dim in range(-1, max(view.ndim - 1, 0)):
                exact = view.double() if dtype.is_floating_point and out_dtype.is_floating_point else view
                wide = torch.float64 if out_dtype.is_floating_point else out_dtype
                expected = getattr(torch, op)(exact, dim, dtype=wide).to(out_dtype)
                out = torch.empty(view.shape, dtype=out_dtype)
                library(key(op, dtype, out_dtype), [out, view], [dim])
                torch.testing.assert_close(out, expected, equal_nan=True)


def test_dimension_out_of_range(library) -> None:
    with pytest.raises(IndexError, match="Dimension out of range"):
        library(key("cumsum", torch.float32, torch.float32), [torch.empty(2), torch.empty(2)], [1])
