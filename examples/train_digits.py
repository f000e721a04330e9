"""Trains a convolutional network on scikit-learn's handwritten digits, 1797 images of 8 x 8 pixels.

    uv run examples/train_digits.py                # on the mojo device
    uv run examples/train_digits.py --device cpu   # the same on stock PyTorch

Batches come from worker processes, which shift the images at random, through pinned memory.
"""

from __future__ import annotations

import argparse
import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset


class ShiftedDigits(Dataset[tuple[Tensor, Tensor]]):
    """Images [1, 8, 8] moved by up to one pixel in each direction, anew every time."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = F.pad(images, (1, 1, 1, 1))
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row, column = torch.randint(0, 3, (2,)).tolist()
        return self.images[index, :, row : row + 8, column : column + 8], self.labels[index]


def build_model(width: int = 32) -> nn.Module:
    """Returns a network from images [n, 1, 8, 8] to scores [n, 10]."""

    def convolution(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *convolution(1, width),
        *convolution(width, width),
        nn.MaxPool2d(2),
        *convolution(width, 2 * width),
        *convolution(2 * width, 2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(2 * width, 10),
    )


def load() -> tuple[Dataset[tuple[Tensor, Tensor]], Dataset[tuple[Tensor, ...]]]:
    """Returns the training set and the test set, a fifth of the images; pixels from 0 to 1."""
    digits = load_digits()
    parts = train_test_split(digits.images / 16, digits.target, test_size=0.2, stratify=digits.target, random_state=0)
    train_images, test_images = (torch.tensor(part, dtype=torch.float32)[:, None] for part in parts[:2])
    train_labels, test_labels = (torch.tensor(part) for part in parts[2:])
    return ShiftedDigits(train_images, train_labels), TensorDataset(test_images, test_labels)


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], device: torch.device) -> float:
    """Returns the share of images whose highest score is the right digit's."""
    model.eval()
    correct = torch.zeros((), dtype=torch.int64, device=device)
    count = 0
    for images, labels in loader:
        scores = model(images.to(device, non_blocking=True))
        correct += (scores.argmax(1) == labels.to(device, non_blocking=True)).sum()
        count += len(labels)
    return float(correct) / count


def main(arguments: list[str] | None = None) -> float:
    """Trains as the command line says; returns the accuracy on the test set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="mojo", help="mojo (default), mojo:1, cpu, ...")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=5e-3, help="peak of the schedule")
    parser.add_argument("--workers", type=int, default=2, help="processes that load data")
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args(arguments)
    if settings.device != "cpu":
        import torch_mojo_backend  # not needed on stock PyTorch

        torch_mojo_backend.register_mojo_devices()
    device = torch.device(settings.device)

    torch.manual_seed(settings.seed)
    train_set, test_set = load()
    options = {"num_workers": settings.workers, "pin_memory": device.type != "cpu"}
    train_loader = DataLoader(
        train_set, settings.batch_size, shuffle=True, persistent_workers=settings.workers > 0, **options
    )
    test_loader = DataLoader(test_set, 256, **options)
    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, epochs=settings.epochs, steps_per_epoch=len(train_loader)
    )
    for epoch in range(settings.epochs):
        start = time.perf_counter()
        model.train()
        total = torch.zeros((), device=device)
        for images, labels in train_loader:
            images, labels = (x.to(device, non_blocking=True) for x in (images, labels))
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
        mean = float(total) / len(train_loader)  # the only read of the epoch
        print(f"epoch {epoch + 1:2d}  loss {mean:.4f}  {time.perf_counter() - start:.1f} s", flush=True)
    result = accuracy(model, test_loader, device)
    print(f"{result:.2%} of the test images are recognized")
    return result


if __name__ == "__main__":
    main()
