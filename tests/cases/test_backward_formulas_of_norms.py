"""Public bug reports about other backends: backward formulas of norms."""

from __future__ import annotations

import torch
from tests.cases.compare import same
from torch.nn import functional as F


def test_layer_norm_parameter_gradients_with_a_frozen_input(device):
    # https://github.com/pytorch/pytorch/issues/183825
    # weight.grad / bias.grad were garbage when only the parameters require grad (output_mask[0] is False).
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    res = []
    for dev in ("cpu", device):
        w = torch.ones(4, device=dev, requires_grad=True)
        b = torch.zeros(4, device=dev, requires_grad=True)
        (F.layer_norm(x.to(dev), (4,), w, b) * torch.arange(4.0, device=dev)).sum().backward()
        res.append((w.grad.cpu(), b.grad.cpu()))
    same(res[1][0], res[0][0], atol=1e-5, rtol=1e-5)
    same(res[1][1], res[0][1], atol=1e-5, rtol=1e-5)
