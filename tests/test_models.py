"""Whole models on the device against CPU torch: outputs, gradients, optimizer steps, autocast, generation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
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


@pytest.mark.parametrize("name", MODELS)
def test_training_matches_cpu(device, name):
    model, inputs, loss_of = build(name)
    ours, theirs = copy.deepcopy(model).to(device), model
    there = moved(inputs, device)
    # The gradients of some parameters, such as a key's bias, are rounding noise, which AdamW's steps would amplify: eps
    # limits that, and such gradients are compared at the scale of all.
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3, eps=1e-4) for m in (ours, theirs)]
    for step in range(STEPS):
        output, loss = loss_of(ours, there)
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


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_autocast_tracks_cpu(device, name):
    model, inputs, loss_of = build(name)
    losses: dict[str, list[float]] = {}
    for place in (device, torch.device("cpu")):
        trained = copy.deepcopy(model).to(place)
        there = moved(inputs, place)
        optimizer = torch.optim.SGD(trained.parameters(), lr=1e-2, momentum=0.9)
        for _ in range(STEPS):
            with torch.autocast(place.type, dtype=torch.bfloat16):
                _, loss = loss_of(trained, there)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.setdefault(place.type, []).append(loss.detach())
    ours, theirs = ([float(loss) for loss in losses[kind]] for kind in (device.type, "cpu"))
    assert ours[0] == pytest.approx(theirs[0], rel=2e-2)
    assert ours == pytest.approx(theirs, abs=5e-2 * theirs[0])


class Draws:
    """torch.multinomial from the same uniform numbers on every device: its own draws differ between devices."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(7)

    def __call__(self, probabilities: Tensor, num_samples: int, *args: Any, **kwargs: Any) -> Tensor:
        uniform = torch.rand(probabilities.shape[0], num_samples, generator=self.generator)
        cumulative = probabilities.cumsum(-1)
        cumulative = cumulative / cumulative[:, -1:]
        return (cumulative[:, None, :] <= uniform.to(probabilities.device)[:, :, None]).sum(-1)


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", transformers_models.GENERATORS)
def test_generation_gives_the_tokens_of_cpu(device, name, sample, monkeypatch):
    model, inputs, _ = build(name)
    model.eval()
    model.config.output_router_logits = False  # the loss that they are for has no place in generation
    prompt = {key: inputs[key] for key in ("input_ids", "attention_mask", "input_features") if key in inputs}
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": sample, "pad_token_id": 0, "eos_token_id": None}
    if sample:
        options.update(top_k=20, top_p=0.9, temperature=0.8)
    tokens = []
    for place in (torch.device("cpu"), device):
        monkeypatch.setattr(torch, "multinomial", Draws())
        generated = model.to(place).generate(**moved(prompt, place), **options)
        tokens.append(generated.cpu().tolist())
    assert tokens[0] == tokens[1]
    assert len({token for row in tokens[0] for token in row[-6:]}) > 1
