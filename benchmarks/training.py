"""Training steps, forward to optimizer: the GPT example at its default size, and a small ResNet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import train_gpt
from measure import Budget, Result, alternate

GOAL = 1.0
BATCH = 8

# name, dtype, dropout
GPT_ROWS = (
    ("float32", torch.float32, 0.0),
    ("float32 dropout 0.1", torch.float32, 0.1),
    ("bfloat16 autocast", torch.bfloat16, 0.0),
)

# name, dtype, memory format
RESNET_ROWS = (
    ("float32", torch.float32, torch.contiguous_format),
    ("float32 channels last", torch.float32, torch.channels_last),
    ("bfloat16 autocast", torch.bfloat16, torch.contiguous_format),
)
IMAGES = 16
CLASSES = 10


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (images, inputs, height, width) to (images, outputs, height / stride, width / stride)."""
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def resnet(width: int, stages: int) -> nn.Sequential:
    """A ResNet with two blocks in each stage, of which every one doubles the channels and halves the image."""
    blocks = [
        ResidualBlock(width << max(stage - (not i), 0), width << stage, 2 if stage and not i else 1)
        for stage in range(stages)
        for i in range(2)
    ]
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width << (stages - 1), CLASSES),
    )


def classifier_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, dtype: torch.dtype
) -> None:
    """One step of training on a batch, under autocast where `dtype` is a half type."""
    with torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
        loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def resnet_namespace(
    device: torch.device, width: int, stages: int, size: int, layout: torch.memory_format, dtype: torch.dtype
) -> dict[str, Any]:
    """Returns model, optimizer and one batch on a device; the same values on every device."""
    torch.manual_seed(0)
    model: nn.Module = resnet(width, stages)
    images, labels = torch.randn(IMAGES, 3, size, size), torch.randint(CLASSES, (IMAGES,))
    model = model.to(device).to(memory_format=layout)
    return {
        "train_step": classifier_step,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4),
        "inputs": images.to(device, memory_format=layout),
        "targets": labels.to(device),
        "dtype": dtype,
    }


def gpt_namespace(device: torch.device, config: train_gpt.GPTConfig, dtype: torch.dtype) -> dict[str, Any]:
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
    statement = "train_step(model, optimizer, inputs, targets, dtype)"
    config = train_gpt.GPTConfig(layers=2, embd=64, block_size=64) if budget.quick else train_gpt.GPTConfig()
    size = f"{config.layers} layers, width {config.embd}, {BATCH} x {config.block_size} tokens"
    for name, dtype, dropout in GPT_ROWS[:1] if budget.quick else GPT_ROWS:
        shape = dataclasses.replace(config, dropout=dropout)
        row = Result("training", f"GPT training step, {size}", name, goal=GOAL)
        sides = [(where, gpt_namespace(where, shape, dtype)) for where in (device, reference)]
        yield alternate(row, statement, sides, budget)
    width, stages, pixels = (16, 2, 32) if budget.quick else (64, 3, 64)
    size = f"{stages} stages from width {width}, {IMAGES} images of {pixels} x {pixels}"
    for name, dtype, layout in RESNET_ROWS[:1] if budget.quick else RESNET_ROWS:
        row = Result("training", f"ResNet training step, {size}", name, goal=GOAL)
        sides = [
            (where, resnet_namespace(where, width, stages, pixels, layout, dtype)) for where in (device, reference)
        ]
        yield alternate(row, statement, sides, budget)
