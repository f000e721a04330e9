"""Numbers that a dtype does not hold: what is written is refused, what is promoted is converted as on CPU."""

from __future__ import annotations

import pytest
import torch

FIRST = torch.zeros(1, dtype=torch.int64)

WRITES = {
    "fill_": lambda x, v: x.fill_(v),
    "full_like": torch.full_like,
    "new_full": lambda x, v: x.new_full((2,), v),
    "assignment": lambda x, v: x.__setitem__(0, v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v),
    "index_fill": lambda x, v: x.index_fill(0, FIRST.to(x.device), v),
    "scatter": lambda x, v: x.scatter(0, FIRST.to(x.device), v),
    "index_add": lambda x, v: x.index_add(0, FIRST.to(x.device), x[:1], alpha=v),
    "constant_pad_nd": lambda x, v: torch.constant_pad_nd(x, (1, 1), v),
    "threshold": lambda x, v: torch.threshold(x, 1, v),
    "add": lambda x, v: x.add(x, alpha=v),
    "addmm": lambda x, v: torch.addmm(x[:1, None], x[:1, None], x[:1, None], beta=v),
}
READS = {
    "add": lambda x, v: x + v,
    "mul_": lambda x, v: x.mul_(v),
    "eq": lambda x, v: x == v,
    "gt": lambda x, v: x[::2] > v,
    "bitwise_and": lambda x, v: x & v,
}


TOO_LARGE = [(torch.uint8, 300), (torch.int64, float("inf")), (torch.float32, 1e300)]
OTHER_ERRORS = {("add", torch.int64), ("threshold", torch.int64)}  # floats do not scale integers


@pytest.mark.parametrize(
    ("name", "dtype", "value"),
    [(name, *large) for name in WRITES for large in TOO_LARGE if (name, large[0]) not in OTHER_ERRORS],
)
def test_written_numbers_out_of_range(device, name, dtype, value):
    for place in ("cpu", device):
        with pytest.raises(RuntimeError, match=r"cannot be converted to type .* without overflow"):
            WRITES[name](torch.ones(4, dtype=dtype, device=place), value)


@pytest.mark.parametrize(
    ("name", "dtype", "value"),
    [
        (name, *large)
        for name in READS
        for large in ((torch.uint8, 300), (torch.int32, 2**40), (torch.float32, 1e300))
        if name != "bitwise_and" or not large[0].is_floating_point
    ],
)
def test_operands_out_of_range(device, name, dtype, value):
    expected = READS[name](torch.ones(4, dtype=dtype), value)
    result = READS[name](torch.ones(4, dtype=dtype, device=device), value)
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result.cpu(), expected)


def test_complex_numbers_are_true(device):
    assert torch.zeros(2, dtype=torch.bool, device=device).fill_(2j).all()


def test_negative_powers_of_integers(device):
    for exponent in (-1, -1000):
        with pytest.raises(RuntimeError, match="negative integer powers"):
            torch.ones(3, dtype=torch.int64, device=device) ** exponent


def test_limits_of_hardtanh_are_int64(device):
    # Not CPU torch's, whose older versions refuse the number.
    expected = torch.arange(9, dtype=torch.uint8).clamp(min=1)
    result = torch.nn.functional.hardtanh(torch.arange(9, dtype=torch.uint8, device=device), 1, 1000)
    assert torch.equal(result.cpu(), expected)


# fmt: off
UNARY_SPECIAL = [
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "digamma", "erf", "erfc", "erfcx", "erfinv", "exp2",
    "expit", "expm1", "gammaln", "i0", "i0e", "i1", "i1e", "log1p", "log_ndtr", "logit", "modified_bessel_i0",
    "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1", "ndtr", "ndtri", "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1", "sinc", "spherical_bessel_j0",
]
# fmt: on


@pytest.mark.parametrize("name", UNARY_SPECIAL)
def test_special_functions_at_limits(device, name):
    """CPU torch's in float64, which is right there, but that airy_ai is NaN at infinity instead of 0."""
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-30, -1e-30])
    function = getattr(torch.special, name)
    expected = function(x.double()).float()
    if name == "airy_ai":
        expected[1] = 0
    torch.testing.assert_close(function(x.to(device)).cpu(), expected, equal_nan=True)
