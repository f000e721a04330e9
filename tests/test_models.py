"""Whole models on the device against CPU torch: outputs, gradients, optimizer steps, autocast, generation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.models import transformers_models
from tests.models.checks import MODELS, STEPS, assert_trains_like_cpu, build, moved
from torch import Tensor


@pytest.mark.parametrize("name", MODELS)
def test_training_matches_cpu(device, name):
    assert_trains_like_cpu(name, device)


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
