"""Operands of different dtypes: refused or converted as on CPU, never read as what they are not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

FLOAT, HALF, DOUBLE, INTEGER = torch.float32, torch.bfloat16, torch.float64, torch.int64

PRODUCTS = {
    "mm": lambda a, b: a @ b,
    "mm with transposed": lambda a, b: a.t() @ b.t(),
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "addmm of another": lambda a, b: torch.addmm(b, a, a),
    "baddbmm": lambda a, b: torch.baddbmm(b[None], a[None], a[None]),
    "addmv": lambda a, b: torch.addmv(a[0], a, b[0]),
    "mv": lambda a, b: torch.mv(a, b[0]),
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "linear": lambda a, b: F.linear(a, b),
    "linear of a batch": lambda a, b: F.linear(a[None], b, a[0]),
    "linear with bias": lambda a, b: F.linear(a, a, b[0]),
}


@pytest.mark.parametrize("dtypes", [(FLOAT, HALF), (FLOAT, DOUBLE), (FLOAT, INTEGER), (INTEGER, FLOAT)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_refuse(device, name, dtypes):
    for place in ("cpu", device):
        operands = [torch.ones(4, 4, dtype=dtype, device=place) for dtype in dtypes]
        with pytest.raises(RuntimeError, match=r"dtype|scalar type|type|must match"):
            PRODUCTS[name](*operands)


PAIRS = {
    "mse": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss,
    "l1": F.l1_loss,
}


@pytest.mark.parametrize("dtypes", [(FLOAT, HALF), (FLOAT, DOUBLE), (FLOAT, INTEGER), (HALF, FLOAT)])
@pytest.mark.parametrize("name", PAIRS)
def test_pair_losses_promote(device, name, dtypes):
    torch.manual_seed(0)
    inputs = [(torch.randn(5, 3) * 3).to(dtype) for dtype in dtypes]
    results = []
    for place in ("cpu", device):
        x, target = (t.to(place, copy=True) for t in inputs)
        x.requires_grad_()
        loss = PAIRS[name](x, target)
        loss.backward()
        results.append((loss.detach().cpu(), x.grad.cpu()))
    for ours, theirs in zip(results[1], results[0], strict=True):
        tolerance = 2e-2 if HALF in dtypes else 1e-5
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, check_dtype=False)


def test_classes_may_be_bytes(device):
    scores = torch.randn(6, 4).log_softmax(1)
    classes = torch.tensor([0, 3, 1, 1, 2, 0])
    for reduction in ("mean", "none"):
        ours = F.nll_loss(scores.to(device), classes.to(device, torch.uint8), reduction=reduction)
        torch.testing.assert_close(ours.cpu(), F.nll_loss(scores, classes, reduction=reduction))
    for place in ("cpu", device):
        with pytest.raises(RuntimeError):
            F.nll_loss(scores.to(place), classes.to(place, torch.int32))
        with pytest.raises(RuntimeError, match=r"[Dd]ouble|float64"):
            F.nll_loss(scores.to(place), classes.to(place), weight=torch.ones(4, dtype=torch.float64, device=place))


def test_fused_steps_refuse(device):
    parameter = torch.ones(3, device=device)
    lists = [[torch.ones(3, device=device)] for _ in range(3)]
    steps = [torch.ones((), device=device)]
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8}
    options |= {"amsgrad": False, "maximize": False}
    for wrong in range(3):
        changed = [[t.double() for t in tensors] if i == wrong else tensors for i, tensors in enumerate(lists)]
        with pytest.raises(RuntimeError, match="dtype"):
            torch._fused_adam_([parameter], *changed, [], steps, **options)
    with pytest.raises(RuntimeError, match="state_steps to have the dtype float32"):
        torch._fused_adam_([parameter], *lists, [], [steps[0].double()], **options)
    torch._fused_adam_([parameter], *lists, [], steps, **options)
    assert parameter.cpu()[0] < 1
