"""Public bug reports about other backends: coverage-shaped traps."""

from __future__ import annotations

import torch
from tests.cases.compare import same
from torch.nn import functional as F


def test_stable_sort_and_ties(device):
    # https://github.com/tenstorrent/tt-metal/issues/33492
    # https://github.com/pytorch/pytorch/pull/155950
    # `stable=True` gave wrong indices on ties; topk/argsort tie order is unspecified and must not be over-tested.
    x = torch.tensor([3, 1, 3, 1, 2] * 40)
    d = x.to(device)
    for desc in (False, True):
        v, i = d.sort(stable=True, descending=desc)
        rv, ri = x.sort(stable=True, descending=desc)
        same(v, rv)
        same(i, ri)
    v, i = d.float().topk(7)
    same(v, torch.full((7,), 3.0))
    same(x.float()[i.cpu()], v.cpu())
    f = torch.tensor([2.0, float("nan"), -1.0, float("inf")])
    same(f.to(device).sort()[0], f.sort()[0])


def test_half_precision_linear_against_a_float32_reference(device):
    # https://github.com/intel/torch-xpu-ops/issues/5220
    # fp16 Linear returned all zeros and bf16 NaN on one GPU for small finite inputs.
    g = torch.Generator().manual_seed(0)
    x = torch.randn(7, 96, generator=g) * 0.1
    w = torch.randn(40, 96, generator=g) * 0.1
    b = torch.randn(40, generator=g)
    for dt in (torch.float16, torch.bfloat16):
        o = F.linear(x.to(device, dt), w.to(device, dt), b.to(device, dt))
        assert o.dtype == dt and o.isfinite().all().item()
        same(o.float(), F.linear(x, w, b), atol=3e-2, rtol=3e-2)


def test_malformed_calls_must_raise_not_answer(device):
    # Backends that accepted calls which PyTorch rejects (cat, dot, bmm,
    # masked_fill with a 1-D value, ...).
    def o(*s):
        return torch.ones(*s, device=device)

    bad = [
        lambda: torch.cat([]),
        lambda: torch.cat([o(2, 3), o(3, 2)]),
        lambda: o(2).dot(o(3)),
        lambda: torch.bmm(o(2, 3, 4), o(2, 5, 4)),
        lambda: o(2, 3) @ o(2, 3),
        lambda: o(3).masked_fill(o(3).bool(), o(2)),
        lambda: o(2, 3).gather(1, torch.zeros(2, 1, device=device)),
        lambda: o(3).add_(o(2, 3)),
        lambda: torch.mm(o(2, 2), o(2, 2), out=torch.empty(2, 2, dtype=torch.float64, device=device)),
        lambda: o(3).index_select(0, torch.tensor([5], device=device)),
        lambda: torch.ones(2, dtype=torch.int64, device=device).add_(0.5),
        lambda: o(2, 3).sum(5),
        lambda: o(3).view(2),
        lambda: o(3).amax(2),
        lambda: o(2, 3).softmax(4),
    ]
    for i, f in enumerate(bad):
        try:
            f()
        except (RuntimeError, IndexError, TypeError, ValueError):
            continue
        raise AssertionError(f"call {i} did not raise")
