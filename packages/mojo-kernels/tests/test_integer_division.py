"""Integer division: zero divisors, the quotient that overflows, signs; shifts beyond the width."""

from __future__ import annotations

import pytest
import torch

OPS = ("div_floor", "div_trunc", "remainder", "fmod")
DTYPES = ("int8", "uint8", "int16", "int32", "int64")
SHIFTS = ("bitwise_left_shift", "bitwise_right_shift")
REFERENCES = {
    "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}


def key(op, dtype):
    return f"pointwise.binary:binary[dtype={dtype},op={op}]"


@pytest.fixture(scope="module")
def library(kernels):
    return kernels([key(op, dtype) for op in OPS + SHIFTS for dtype in DTYPES])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_signs(library, op, dtype):
    element_type = getattr(torch, dtype)
    low, high = torch.iinfo(element_type).min, torch.iinfo(element_type).max
    numbers = [low + 1, low + 2, -7, -3, -2, -1, 1, 2, 3, 7, 100, high - 1, high]
    numbers = torch.tensor([n for n in numbers if low <= n], dtype=element_type)
    a, b = (t.contiguous() for t in torch.broadcast_tensors(numbers[:, None], numbers))
    a = torch.cat([a.reshape(-1), torch.zeros(5, dtype=element_type)])
    b = torch.cat([b.reshape(-1), torch.ones(5, dtype=element_type)])
    out = torch.empty_like(a)
    positive = b != 0
    a, b, out = a[positive], b[positive], out[positive]
    library.pointwise(key(op, dtype), out, [a, b])
    torch.testing.assert_close(out, REFERENCES[op](a, b), rtol=0, atol=0)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", [0, 3, 999])
def test_zero_divisor(library, op, dtype, position):
    a = torch.ones(1000, dtype=getattr(torch, dtype))
    b = torch.ones_like(a)
    b[position] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        library.pointwise(key(op, dtype), torch.empty_like(a), [a, b])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        library.pointwise(key(op, dtype), torch.empty_like(a), [a, b[position].expand(1000)])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_lowest_by_minus_one_wraps(library, dtype):
    low = torch.full((37,), torch.iinfo(getattr(torch, dtype)).min, dtype=getattr(torch, dtype))
    minus_one = torch.full_like(low, -1)
    for op, expected in (("div_floor", low), ("div_trunc", low), ("remainder", 0 * low), ("fmod", 0 * low)):
        out = torch.empty_like(low)
        library.pointwise(key(op, dtype), out, [low, minus_one])
        torch.testing.assert_close(out, expected, rtol=0, atol=0)


@pytest.mark.parametrize("op", SHIFTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_shifts(library, op, dtype):
    a = torch.tensor([1, 2, 77, 100, 5], dtype=getattr(torch, dtype)).repeat(70)
    if dtype != "uint8":
        a = torch.where(torch.arange(350) % 3 == 0, -a, a)
    b = (torch.arange(350) % 70 - (0 if dtype == "uint8" else 3)).to(a.dtype)
    out = torch.empty_like(a)
    library.pointwise(key(op, dtype), out, [a, b])
    torch.testing.assert_close(out, getattr(torch, op)(a, b), rtol=0, atol=0)
