"""Sorting and the first k against torch's stable sort."""

from __future__ import annotations

import pytest
import torch

NAMES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


@pytest.fixture(scope="module")
def library(kernels):
    return kernels([f"sorting:sort[dtype={name}]" for name in NAMES.values()])


def make(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        x = (torch.randn(shape) * 4).round().to(dtype)
        if x.numel() > 10:
            x.view(-1)[3::11] = float("nan")
            x.view(-1)[4::17] = float("-inf")
        return x
    return torch.randint(0, 2 if dtype == torch.bool else 9, shape).to(dtype)


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
@pytest.mark.parametrize("descending", [False, True])
def test_sort(library, dtype: torch.dtype, descending: bool) -> None:
    for shape in ((5, 40, 7), (3, 1000), (1,), (), (0, 3), (2, 16)):
        x = make(shape, dtype)
        for view in (x, x.mT if x.ndim > 1 else x):
            for dim in range(-1, max(view.ndim - 1, 0)):
                values, indices = torch.sort(view, dim=dim, descending=descending, stable=True)
                length = view.shape[dim] if view.ndim else 1
                for k in {length, min(length, 3), length // 9}:
                    out = torch.empty_like(values.narrow(dim, 0, k) if view.ndim else values)
                    positions = torch.empty(out.shape, dtype=torch.int64)
                    library(f"sorting:sort[dtype={NAMES[dtype]}]", [out, positions, view], [dim, descending])
                    torch.testing.assert_close(out, values.narrow(dim, 0, k) if view.ndim else values, equal_nan=True)
                    assert torch.equal(positions, indices.narrow(dim, 0, k) if view.ndim else indices)


def test_large(library) -> None:
    x = torch.randn(3, 50_000)
    for k in (50, 50_000):
        values, indices = torch.empty(3, k), torch.empty(3, k, dtype=torch.int64)
        library("sorting:sort[dtype=float32]", [values, indices, x], [1, True])
        expected = torch.sort(x, dim=1, descending=True, stable=True)
        torch.testing.assert_close(values, expected.values[:, :k])
        assert torch.equal(indices, expected.indices[:, :k])
