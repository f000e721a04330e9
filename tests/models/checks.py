"""What every test of whole models does with them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from tests.models import plain_models, transformers_models
from torch import Tensor, nn

MODELS = {**plain_models.MODELS, **transformers_models.MODELS}
STEPS = 3


def build(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name]()


def moved(inputs: dict[str, Any], device: Any) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}


def assert_close(ours: Tensor, theirs: Tensor, relative: float, scale: float = 0.0, what: str = "") -> None:
    """Elements differ by at most `relative` of the tensor's largest, or of `scale` where that is more."""
    limit = relative * max(float(theirs.abs().max()) if theirs.numel() else 0.0, scale)
    torch.testing.assert_close(
        ours.cpu(), theirs, rtol=0, atol=limit, msg=lambda message: f"{what}: {message}", check_stride=False
    )


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


def assert_trains_like_cpu(
    name: str, device: torch.device, compiled: Callable[[nn.Module], Any] = lambda model: model
) -> None:
    """Trains a model for three steps on a device and with CPU torch: outputs, losses, gradients and buffers agree.

    Args:
        name: Of the model.
        device: Where.
        compiled: Makes of the model on the device what is called in its place.
    """
    model, inputs, loss_of = build(name)
    ours, theirs = copy.deepcopy(model).to(device), model
    called = compiled(ours)
    there = moved(inputs, device)
    # The gradients of some parameters, such as a key's bias, are rounding noise, which AdamW's steps would amplify: eps
    # limits that, and such gradients are compared at the scale of all.
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3, eps=1e-4) for m in (ours, theirs)]
    for step in range(STEPS):
        output, loss = loss_of(called, there)
        loss.backward()
        expected, expected_loss = loss_of(theirs, inputs)
        expected_loss.backward()
        assert output.device.type == device.type
        assert_close(output.detach(), expected.detach(), 1e-4 * (1 + step), what=f"{name}'s output in step {step}")
        torch.testing.assert_close(loss.detach().cpu(), expected_loss.detach(), rtol=1e-4, atol=1e-6)
        reference = gradients(theirs)
        found = gradients(ours)
        assert found.keys() == reference.keys()
        scale = max(float(g.abs().max()) for g in reference.values())
        for parameter, gradient in reference.items():
            assert_close(found[parameter], gradient, 1e-3, 1e-2 * scale, f"gradient of {parameter} in step {step}")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for (name, ours_buffer), (_, buffer) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        torch.testing.assert_close(ours_buffer.cpu(), buffer, rtol=1e-3, atol=1e-3, msg=lambda m, n=name: f"{n}: {m}")
