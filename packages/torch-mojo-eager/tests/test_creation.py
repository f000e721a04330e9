"""Ops of creation and the elementwise ops written in Python, against CPU torch."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize(
    "create",
    [
        lambda device: torch.arange(7, device=device),
        lambda device: torch.arange(2, 30, 4, device=device, dtype=torch.float32),
        lambda device: torch.arange(1, -2, -0.25, device=device),
        lambda device: torch.arange(0, device=device),
        lambda device: torch.linspace(-1, 1, 9, device=device),
        lambda device: torch.linspace(0, 10, 4, device=device, dtype=torch.int32),
        lambda device: torch.logspace(-1, 2, 5, base=2.0, device=device),
        lambda device: torch.eye(3, device=device),
        lambda device: torch.eye(2, 5, dtype=torch.int64, device=device),
        lambda device: torch.full((2, 3), 7, device=device),
    ],
)
def test_creation(device, create):
    torch.testing.assert_close(create(device).cpu(), create("cpu"))


def test_arange_into_a_strided_output(device):
    base = torch.zeros(20, device=device)
    torch.arange(10, out=base[::2])
    expected = torch.zeros(20)
    expected[::2] = torch.arange(10)
    torch.testing.assert_close(base.cpu(), expected)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda device: torch.arange(0, 5, 0, device=device), "step must be nonzero"),
        (lambda device: torch.arange(0, 5, -1, device=device), "inconsistent with step sign"),
        (lambda device: torch.linspace(0, 1, -3, device=device), "non-negative"),
    ],
)
def test_creation_errors(device, create, message):
    with pytest.raises(RuntimeError, match=message):
        create(device)


def test_clamp_with_bounds_outside_the_dtype(device):
    x = torch.arange(5, dtype=torch.uint8, device=device)
    assert torch.clamp(x, -1, 300).tolist() == [0, 1, 2, 3, 4]
    assert torch.clamp(x, -300, 2).tolist() == [0, 1, 2, 2, 2]
    for low, high in ((300, None), (None, -1)):
        with pytest.raises(RuntimeError, match="outside the representable range"):
            torch.clamp(x, low, high).cpu()


def test_logit_with_eps_above_half(device):
    x = torch.linspace(0, 1, 9)
    torch.testing.assert_close(torch.logit(x.to(device), 0.6).cpu(), torch.logit(x, 0.6))


def test_clamp_with_tensors(device):
    x, low, high = torch.randn(5, 7), torch.randn(7) - 1, torch.randn(5, 1) + 1
    x[0, 0] = float("nan")
    for limits in ({"min": low}, {"max": high}, {"min": low, "max": high}):
        moved = {name: limit.to(device) for name, limit in limits.items()}
        torch.testing.assert_close(torch.clamp(x.to(device), **moved).cpu(), torch.clamp(x, **limits), equal_nan=True)


def test_log_sigmoid_and_its_gradient(device):
    x = torch.randn(4, 9) * 5
    gradients = []
    for place in ("cpu", device):
        leaf = x.detach().clone().to(place).requires_grad_()
        torch.nn.functional.logsigmoid(leaf).square().sum().backward()
        gradients.append(leaf.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0])
