"""Matrix products against torch's in float64 (or exact integers), over layouts, sizes and dtypes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

FLOATING = ("float32", "float64", "bfloat16", "float16")
DTYPES = (*FLOATING, "uint8", "int8", "int16", "int32", "int64")
FEW = ("float32", "bfloat16", "int64")
# Relative to the result's largest element; sums of half types are float32, rounded once.
TOLERANCES = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 4e-3, "float16": 5e-4}
# Vectors, few rows, tiny, several slices of the depth, more than one panel, edges everywhere.
SIZES = [
    (1, 1, 1),
    (4, 4, 4),
    (1, 77, 33),
    (77, 1, 33),
    (3, 300, 129),
    (300, 5, 40),
    (17, 19, 23),
    (64, 64, 64),
    (29, 65, 1700),
    (200, 130, 90),
]


def _key(function: str, dtype: str) -> str:
    return f"matmul.products:{function}[dtype={dtype}]"


@pytest.fixture(scope="module")
def library(kernels: Callable[[list[str]], Any]) -> Any:
    return kernels(
        [_key("addmm", dtype) for dtype in DTYPES]
        + [_key(function, dtype) for function in ("mm", "addmv", "dot") for dtype in FEW]
    )


def _random(*shape: int, dtype: str) -> torch.Tensor:
    if dtype in FLOATING:
        return torch.randn(shape).to(getattr(torch, dtype))
    return torch.randint(0 if dtype == "uint8" else -100, 100, shape).to(getattr(torch, dtype))


def _matrix(rows: int, columns: int, layout: str, dtype: str) -> torch.Tensor:
    if layout == "row-major":
        return _random(rows, columns, dtype=dtype)
    if layout == "column-major":
        return _random(columns, rows, dtype=dtype).t()
    return _random(2 * rows + 1, 3 * columns, dtype=dtype)[1::2, ::3]


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor.long()


def _check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compares with a result in float64, or int64 modulo the width."""
    if not actual.is_floating_point():
        assert torch.equal(actual, expected.to(actual.dtype))
        return
    tolerance = TOLERANCES[str(actual.dtype).removeprefix("torch.")] * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_addmm(library: Any, dtype: str, size: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    m, n, k = size
    layouts = ("row-major", "column-major", "strided")
    for a_layout, b_layout, out_layout in itertools.product(layouts, repeat=3):
        a, b = _matrix(m, k, a_layout, dtype), _matrix(k, n, b_layout, dtype)
        out = _matrix(m, n, out_layout, dtype)
        product = _exact(a) @ _exact(b)
        number = library.number
        for addend in (_random(n, dtype=dtype), _random(m, 1, dtype=dtype), _matrix(m, n, "column-major", dtype)):
            library(_key("addmm", dtype), [out, addend, a, b], [number(2), number(3)])
            _check(out, 2 * _exact(addend) + 3 * product)
        expected = _exact(out) + product
        library(_key("addmm", dtype), [out, out, a, b], [number(1), number(1)])
        _check(out, expected)


@pytest.mark.parametrize("dtype", FEW)
def test_other_products(library: Any, dtype: str) -> None:
    torch.manual_seed(0)
    for (m, n, k), layout in itertools.product(SIZES, ("row-major", "column-major", "strided")):
        a, b = _matrix(m, k, layout, dtype), _matrix(k, n, "row-major", dtype)
        out = _matrix(m, n, "row-major", dtype)
        library(_key("mm", dtype), [out, a, b])
        _check(out, _exact(a) @ _exact(b))
        column, addend = out[:, 0], _random(1, dtype=dtype)
        library(_key("addmv", dtype), [column, addend, a, b[:, 0]], [library.number(2), library.number(3)])
        _check(column, 2 * _exact(addend) + 3 * (_exact(a) @ _exact(b[:, 0])))
        scalar = _random(dtype=dtype)
        library(_key("dot", dtype), [scalar, a[0], b[:, 0]])
        _check(scalar, _exact(a[0]) @ _exact(b[:, 0]))


@pytest.mark.parametrize("size", [(3, 5, 6, 7), (64, 33, 40, 20), (1, 200, 130, 50), (5, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", FEW)
def test_batches(library: Any, dtype: str, size: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    batch, m, n, k = size
    a = _random(batch, k, m, dtype=dtype).transpose(1, 2)
    b = _random(k, n, dtype=dtype).expand(batch, k, n)
    out = _random(n, batch, m, dtype=dtype).permute(1, 2, 0)
    library(_key("mm", dtype), [out, a, b])
    _check(out, _exact(a) @ _exact(b))
    addend = _random(batch, 1, n, dtype=dtype)
    library(_key("addmm", dtype), [out, addend, a, b], [library.number(2), library.number(1)])
    _check(out, 2 * _exact(addend) + _exact(a) @ _exact(b))


@pytest.mark.parametrize("dtype", FEW)
def test_empty(library: Any, dtype: str) -> None:
    out = _random(3, 4, dtype=dtype)
    library(_key("mm", dtype), [out, _random(3, 0, dtype=dtype), _random(0, 4, dtype=dtype)])
    assert torch.equal(out, torch.zeros_like(out))
    addend = _random(4, dtype=dtype)
    operands = [out, addend, _random(3, 0, dtype=dtype), _random(0, 4, dtype=dtype)]
    library(_key("addmm", dtype), operands, [library.number(2), library.number(1)])
    assert torch.equal(out, (2 * addend).expand_as(out))
    nothing = _random(0, 4, dtype=dtype)
    library(_key("mm", dtype), [nothing, _random(0, 5, dtype=dtype), _random(5, 4, dtype=dtype)])
    scalar = _random(dtype=dtype)
    library(_key("dot", dtype), [scalar, _random(0, dtype=dtype), _random(0, dtype=dtype)])
    assert scalar == 0


@pytest.mark.parametrize("size", [(4, 4, 4), (64, 64, 64)], ids=str)
def test_not_a_number(library: Any, size: tuple[int, int, int]) -> None:
    """NaN spreads from the operands, but not from an addend whose factor is 0."""
    m, n, k = size
    a, b, out = torch.randn(m, k), torch.randn(k, n), torch.full((m, n), torch.nan)
    library(_key("addmm", "float32"), [out, out, a, b], [library.number(0), library.number(1)])
    torch.testing.assert_close(out, a @ b, rtol=1e-5, atol=1e-5)
    a[1, 2] = torch.nan
    b[0, 3] = torch.inf
    library(_key("mm", "float32"), [out, a, b])
    torch.testing.assert_close(out, a @ b, rtol=1e-5, atol=1e-5, equal_nan=True)
