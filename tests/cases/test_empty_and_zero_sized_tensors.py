"""Public bug reports about other backends: empty and zero-sized tensors."""

from __future__ import annotations

import torch
from tests.cases.compare import same
from torch.nn import functional as F


def test_matmul_family_with_a_zero_dimension(device):
    # https://github.com/pytorch/pytorch/issues/137406
    # https://github.com/pytorch/pytorch/issues/187399
    # https://github.com/pytorch/pytorch/issues/187551
    # https://github.com/pytorch/pytorch/issues/175902
    # Empty operands hit internal asserts; with K = 0 the result was uninitialised garbage instead of zeros /
    # beta*input.
    same(torch.empty(0, 9, device=device) @ torch.ones(9, device=device), torch.empty(0))
    assert torch.baddbmm(
        torch.empty(2, 0, 1, device=device), torch.empty(2, 0, 3, device=device), torch.empty(2, 3, 1, device=device)
    ).shape == (2, 0, 1)
    same(torch.empty(2, 0, device=device) @ torch.empty(0, 3, device=device), torch.zeros(2, 3))
    same(
        torch.addmm(
            torch.ones(2, 3, device=device),
            torch.empty(2, 0, device=device),
            torch.empty(0, 3, device=device),
            beta=0.5,
        ),
        torch.full((2, 3), 0.5),
    )
    same(torch.empty(0, device=device).dot(torch.empty(0, device=device)), torch.tensor(0.0))


def test_reductions_losses_and_backward_on_empty_tensors(device):
    # https://github.com/pytorch/pytorch/issues/82541
    # https://github.com/pytorch/pytorch/pull/148608
    # https://github.com/pytorch/pytorch/issues/148589
    # Segfault in `true_divide` backward on empty input; `mse_loss` of empty tensors crashed.
    a = torch.tensor([[]], device=device, requires_grad=True)
    c = torch.tensor([[]], device=device, requires_grad=True)
    torch.true_divide(a, c).sum().backward()
    assert a.grad.shape == (1, 0)
    e = torch.empty(0, 3, device=device)
    assert (
        F.mse_loss(e, e).isnan().item() and e.mean().isnan().item() and e.sum().item() == 0.0 and e.prod().item() == 1.0
    )
    assert e.sum(0).tolist() == [0, 0, 0] and e.all().item() and not e.any().item() and e.cumsum(0).shape == (0, 3)
    try:
        e.max(0)
        raise SystemExit("no error")
    except (IndexError, RuntimeError):
        pass


def test_gather_scatter_with_an_empty_index(device):
    # https://github.com/intel/intel-extension-for-pytorch/issues/682
    # `scores.scatter(1, empty_index, empty_src)` returned all zeros on XPU (HF repetition penalty on an empty
    # prompt).
    s = torch.tensor([[0.8, 0.9, 0.5]], device=device)
    idx = torch.empty(1, 0, dtype=torch.int64, device=device)
    assert s.gather(1, idx).shape == (1, 0)
    same(s.scatter(1, idx, s.gather(1, idx)), torch.tensor([[0.8, 0.9, 0.5]]))
    same(s[:, torch.empty(0, dtype=torch.int64, device=device)], torch.empty(1, 0))
