"""Sorting, order statistics, distinct elements and search against CPU torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Function = Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]
DTYPES = (torch.float32, torch.int64, torch.bfloat16)


def elements(*shape: int, dtype: torch.dtype = torch.float32, distinct: int = 50) -> torch.Tensor:
    """Numbers of which many are equal."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-distinct, distinct, shape, generator=generator).to(dtype)


def compare(function: Function, x: torch.Tensor, device: torch.device, tolerance: float = 0) -> None:
    expected, actual = function(x), function(x.to(device))
    if isinstance(expected, torch.Tensor):
        expected, actual = (expected,), (actual,)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours.cpu(), theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


# Short rows merge, longer ones count bytes, very long ones do it on several threads.
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (4, 33), (2, 399), (5, 1000), (150000,), (7, 3, 5)])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_stable_sort(device, dtype, descending, shape):
    for dim in (0, -1):
        compare(
            lambda x, d=dim: torch.sort(x, dim=d, descending=descending, stable=True),
            elements(*shape, dtype=dtype),
            device,
        )


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("count", [6, 600])
def test_sort_of_special_values(device, count, descending):
    x = torch.tensor([0.0, -0.0, torch.nan, -torch.inf, torch.inf, -torch.nan]).repeat(count // 6)
    compare(lambda x: torch.sort(x, descending=descending, stable=True), x, device)
    found = [torch.sort(y, descending=descending, stable=True).values.cpu() for y in (x.to(device), x)]
    signs = [y.signbit() & ~y.isnan() for y in found]  # of zeros, which compare equal
    assert torch.equal(*signs)


@pytest.mark.parametrize("limit", [2**31 - 1, 2**63 - 1])
def test_sort_of_large_integers(device, limit):
    x = torch.tensor([limit, -limit, 0, -limit - 1, 1, -1] * 100)
    compare(lambda x: torch.sort(x, stable=True), x, device)


def test_sort_of_strided_rows(device):
    x = elements(6, 50, 7)
    compare(lambda x: torch.sort(x[1:, ::2].transpose(0, 2), dim=1, stable=True), x, device)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("k", [1, 5, 100, 999])
def test_topk(device, k, largest):
    x = torch.randperm(3000, generator=torch.Generator().manual_seed(0)).float().view(3, 1000)
    compare(lambda x: torch.topk(x, k, largest=largest), x, device)
    compare(lambda x: torch.topk(x.t(), k, 0, largest=largest), x, device)


def test_topk_of_nan(device):
    x = elements(40)
    x[[3, 20]] = torch.nan
    compare(lambda x: torch.topk(x, 3).values, x, device)
    compare(lambda x: torch.topk(x, 39, largest=False).values, x, device)


STATISTICS: dict[str, Function] = {
    "median": torch.median,
    "nanmedian": torch.nanmedian,
    "median_along": lambda x: torch.median(x, 1).values,
    "nanmedian_along": lambda x: torch.nanmedian(x, 0, keepdim=True).values,
    "kthvalue": lambda x: torch.kthvalue(x, 3, 1).values,
    "mode": lambda x: torch.mode(x, 1).values,
    "quantile": lambda x: torch.quantile(x, torch.tensor([0.1, 0.5], device=x.device), 1),
    "nanquantile": lambda x: torch.nanquantile(x, 0.3, 1, interpolation="lower"),
    "msort": torch.msort,
}


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("has_nan", [False, True])
def test_order_statistics(device, name, has_nan):
    if name == "mode" and has_nan:
        pytest.skip("CPU torch sorts by a comparison that NaN breaks")
    x = elements(5, 33)
    if has_nan:
        x[1, 4] = x[2, :30] = x[:, 7] = torch.nan
    compare(STATISTICS[name], x, device)


def test_positions_of_order_statistics(device):
    x = elements(5, 33).to(device)
    for values, indices in (torch.median(x, 1, True), torch.kthvalue(x, 4, 1, True), torch.mode(x, 1, True)):
        assert torch.equal(x.gather(1, indices).cpu(), values.cpu())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distinct", [2, 10**6])
def test_selection_from_long_rows(device, distinct, dtype):
    """The value and the position that a stable sort gives, at the ends, in the middle and along a strided dimension."""
    x = elements(3, 2000, dtype=dtype, distinct=distinct)
    values, positions = torch.sort(x, dim=1, stable=True)
    for where in (x, x.t().contiguous().t()):
        for k in (1, 2, 997, 2000):
            found, position = torch.kthvalue(where.to(device), k, 1)
            assert torch.equal(found.cpu(), values[:, k - 1])
            assert torch.equal(position.cpu(), positions[:, k - 1])


DISTINCT: dict[str, Function] = {
    "all": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "values": torch.unique,
    "rows": lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True),
    "columns": lambda x: torch.unique(x, dim=1, return_inverse=True, return_counts=True),
    "consecutive": lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    "consecutive_rows": lambda x: torch.unique_consecutive(x, dim=0, return_inverse=True, return_counts=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("name", DISTINCT)
def test_distinct_elements(device, name, dtype):
    compare(DISTINCT[name], elements(20, 3, distinct=2).clamp(min=-1).to(dtype), device)
    if name != "columns":  # which torch refuses
        compare(DISTINCT[name], elements(0, 3).to(dtype), device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("right", [False, True])
def test_search(device, right, dtype):
    sequences = torch.sort(elements(3, 40, dtype=dtype)).values
    x = elements(3, 17, dtype=dtype)
    order = torch.argsort(elements(3, 40, dtype=dtype), stable=True)
    for int32 in (False, True):
        compare(lambda x, o=int32: torch.searchsorted(sequences.to(x.device), x, right=right, out_int32=o), x, device)
    compare(lambda x: torch.searchsorted(sequences[0].to(x.device), x, right=right), x, device)
    compare(lambda x: torch.bucketize(x.t(), sequences[1].to(x.device), right=right), x, device)
    unsorted = elements(3, 40, dtype=dtype)
    compare(lambda x: torch.searchsorted(unsorted.to(x.device), x, right=right, sorter=order.to(x.device)), x, device)


@pytest.mark.parametrize("invert", [False, True])
def test_isin(device, invert):
    wanted = elements(7)
    compare(lambda x: torch.isin(x, wanted.to(x.device), invert=invert), elements(5, 9), device)
    compare(lambda x: torch.isin(x, 3, invert=invert), elements(5, 9, dtype=torch.int64), device)


def test_histograms(device):
    x = torch.randn(200, generator=torch.Generator().manual_seed(0))
    compare(lambda x: torch.histc(x, 10, -1, 1.5), x, device)
    integers = torch.tensor([3, 0, 1, 3, 7, -1], dtype=torch.int32, device=device)
    assert torch.histc(integers, 4, 0, 3).tolist() == [1, 1, 0, 2]
    compare(lambda x: torch.histogram(x, 7, range=(-2, 2), density=True), x, device, 1e-6)
    compare(lambda x: torch.histogram(x, torch.tensor([-1.0, 0, 0.3, 4], device=x.device)).hist, x, device)
    counted = elements(50, dtype=torch.int64).abs()
    compare(torch.bincount, counted, device)
    compare(lambda x: torch.bincount(x, x.double() / 3, minlength=70), counted, device)
    compare(lambda x: torch.repeat_interleave(x), counted, device)


SCANS: dict[str, Function] = {
    "cummax": lambda x: torch.cummax(x, 1),
    "cummin": lambda x: torch.cummin(x, 0),
    "logcumsumexp": lambda x: torch.logcumsumexp(x / 10, 1),
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("has_special", [False, True])
def test_scans(device, name, has_special):
    x = elements(5, 600)
    if has_special:
        x[0, 3], x[1, 0], x[2, 5], x[3] = torch.nan, -torch.inf, torch.inf, -torch.inf
    expected, actual = SCANS[name](x), SCANS[name](x.to(device))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (RuntimeError, lambda x: torch.topk(x, 50)),
        (RuntimeError, lambda x: torch.kthvalue(x, 50)),
        (IndexError, lambda x: torch.sort(x, dim=3)),
        (RuntimeError, lambda x: torch.searchsorted(x, x[:1].expand(5, -1).long())),
        (RuntimeError, lambda x: torch.bincount(-x[0].long() - 1)),
        (RuntimeError, lambda x: torch.histc(x / 0)),
    ],
)
def test_errors_are_those_of_torch(device, error, call):
    x = torch.arange(12.0).view(2, 6)
    for where in ("cpu", device):
        with pytest.raises(error):
            call(x.to(where))
