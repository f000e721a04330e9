"""Public bug reports about other backends: NaN, inf, special values."""

from __future__ import annotations

import math

import torch
from tests.cases.compare import same
from torch.nn import functional as F


def test_max_min_argmax_argmin_with_nan(device):
    # https://github.com/pytorch/pytorch/issues/130295
    # https://github.com/ml-explore/mlx/issues/4274
    # Reductions skipped NaN; argmax returned the largest finite element.
    nan = float("nan")
    x = torch.tensor([[3.0, nan, 1.0, 5.0], [1.0, 2.0, 4.0, nan]], device=device)
    assert x.max().isnan().item() and x.min().isnan().item()
    same(x.argmax(1), torch.tensor([1, 3]))
    same(x.argmin(1), torch.tensor([1, 3]))
    v, i = x.max(1)
    assert v.isnan().all().item()
    same(i, torch.tensor([1, 3]))
    same(torch.full((70,), float("-inf"), device=device).argmax(), torch.tensor(0))


def test_maximum_minimum_fmax_fmin_with_nan(device):
    # https://github.com/pytorch/pytorch/issues/143976
    # `torch.minimum` did not propagate NaN on MPS.
    nan = float("nan")
    a = torch.tensor([1.0, nan, 3.0], device=device)
    b = torch.tensor([nan, 2.0, 2.0], device=device)
    same(torch.minimum(a, b).isnan(), torch.tensor([True, True, False]))
    same(torch.maximum(a, b).isnan(), torch.tensor([True, True, False]))
    same(torch.fmax(a, b), torch.tensor([1.0, 2.0, 3.0]))
    same(torch.fmin(a, b), torch.tensor([1.0, 2.0, 2.0]))


def test_clamp_must_not_cache_on_a_rounded_scalar(device):
    # https://github.com/pytorch/pytorch/issues/167767
    # The graph-cache key printed the scalar with 6 digits: clamp(min=0.0) was reused for clamp(min=1e-7).
    z = torch.zeros(1, device=device)
    got = [z.clamp(min=m).item() for m in (0.0, 1e-7, 2e-7, 1e-30)]
    for g, m in zip(got, (0.0, 1e-7, 2e-7, 1e-30), strict=True):
        assert math.isclose(g, m, rel_tol=1e-6), got


def test_integer_tensor_clamped_by_a_float(device):
    # https://github.com/pytorch/pytorch/issues/130201
    # `torch.tensor(0).clamp(min=0.1)` returned 0 on MPS instead of promoting to float.
    r = torch.tensor(0, device=device).clamp(min=1e-1)
    assert r.dtype == torch.float32
    same(r, torch.tensor(0.1))


def test_sdpa_with_a_fully_masked_row(device):
    # https://github.com/pytorch/pytorch/issues/156707
    # https://github.com/pytorch/pytorch/issues/103963
    # A boolean mask that hides every key for a query gave NaN on MPS; CPU returns zeros.
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 2, 4, generator=g) for _ in range(3))
    mask = torch.tensor([[[[False, False], [True, True]]]])
    o = F.scaled_dot_product_attention(q.to(device), k.to(device), v.to(device), attn_mask=mask.to(device))
    assert not o.isnan().any().item()
    same(o[0, 0, 0], torch.zeros(4))
