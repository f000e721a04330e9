"""The GPT example's training step, forward to optimizer, at its default size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

import train_gpt
from measure import Budget, Result, alternate

GOAL = 1.2
BATCH = 8

# name, dtype, dropout
ROWS = (
    ("float32", torch.float32, 0.0),
    ("float32 dropout 0.1", torch.float32, 0.1),
    ("bfloat16 autocast", torch.bfloat16, 0.0),
)


def namespace(device: torch.device, config: train_gpt.GPTConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Returns model, optimizer and one batch on a device; the same values on every device."""
    torch.manual_seed(0)
    model = train_gpt.GPT(config)
    tokens = torch.randint(config.vocabulary, (BATCH, config.block_size + 1))
    model = model.to(device)
    return {
        "train_step": train_gpt.train_step,
        "model": model,
        "optimizer": train_gpt.make_optimizer(model, 1e-4, 0.1),
        "inputs": tokens[:, :-1].to(device),
        "targets": tokens[:, 1:].to(device),
        "dtype": dtype,
    }


def run(device: torch.device, reference: torch.device, budget: Budget) -> Iterator[Result]:
    """Yields the results of all rows."""
    config = train_gpt.GPTConfig(layers=2, embd=64, block_size=64) if budget.quick else train_gpt.GPTConfig()
    size = f"{config.layers} layers, width {config.embd}, {BATCH} x {config.block_size} tokens"
    for name, dtype, dropout in ROWS[:1] if budget.quick else ROWS:
        shape = dataclasses.replace(config, dropout=dropout)
        row = Result("training", f"GPT training step, {size}", name, goal=GOAL)
        sides = [(where, namespace(where, shape, dtype)) for where in (device, reference)]
        yield alternate(row, "train_step(model, optimizer, inputs, targets, dtype)", sides, budget)
