"""Every loss and activation module of torch.nn against CPU torch, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

Inputs = Callable[[], tuple[torch.Tensor, ...]]


def scores() -> tuple[torch.Tensor, ...]:
    return torch.randn(6, 5), torch.randint(0, 5, (6,))


def images() -> tuple[torch.Tensor, ...]:
    return torch.randn(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4))


def pair() -> tuple[torch.Tensor, ...]:
    return torch.randn(6, 5), torch.randn(6, 5)


def probabilities() -> tuple[torch.Tensor, ...]:
    return torch.rand(6, 5) * 0.9 + 0.05, torch.rand(6, 5)


def signs() -> tuple[torch.Tensor, ...]:
    return torch.randn(6, 5), torch.randint(0, 2, (6, 5)) * 2.0 - 1


def labels() -> tuple[torch.Tensor, ...]:
    return torch.randn(3, 4), torch.tensor([[1, 3, -1, 0], [0, -1, 2, 1], [2, 2, 1, 0]])


def three() -> tuple[torch.Tensor, ...]:
    return torch.randn(6, 5), torch.randn(6, 5), torch.randn(6, 5)


def ranked() -> tuple[torch.Tensor, ...]:
    return torch.randn(6), torch.randn(6), torch.randint(0, 2, (6,)) * 2.0 - 1


def angled() -> tuple[torch.Tensor, ...]:
    return torch.randn(6, 5), torch.randn(6, 5), torch.randint(0, 2, (6,)) * 2.0 - 1


def spread() -> tuple[torch.Tensor, ...]:
    return torch.randn(6, 5), torch.randn(6, 5), torch.rand(6, 5) + 0.1


WEIGHT = torch.rand(5) + 0.5
LOSSES: dict[str, tuple[Callable[[str], nn.Module], Inputs]] = {
    "L1": (lambda r: nn.L1Loss(reduction=r), pair),
    "MSE": (lambda r: nn.MSELoss(reduction=r), pair),
    "CrossEntropy": (lambda r: nn.CrossEntropyLoss(WEIGHT, reduction=r, label_smoothing=0.1), scores),
    "CrossEntropyOfImages": (lambda r: nn.CrossEntropyLoss(WEIGHT, ignore_index=2, reduction=r), images),
    "NLL": (lambda r: nn.NLLLoss(WEIGHT, reduction=r), scores),
    "NLLOfImages": (lambda r: nn.NLLLoss(reduction=r), images),
    "PoissonNLL": (lambda r: nn.PoissonNLLLoss(full=True, reduction=r), probabilities),
    "GaussianNLL": (lambda r: nn.GaussianNLLLoss(reduction=r), spread),
    "KLDiv": (lambda r: nn.KLDivLoss(reduction="batchmean" if r == "mean" else r), probabilities),
    "BCE": (lambda r: nn.BCELoss(reduction=r), probabilities),
    "BCEWithLogits": (lambda r: nn.BCEWithLogitsLoss(WEIGHT, reduction=r, pos_weight=WEIGHT), probabilities),
    "MarginRanking": (lambda r: nn.MarginRankingLoss(0.1, reduction=r), ranked),
    "HingeEmbedding": (lambda r: nn.HingeEmbeddingLoss(reduction=r), signs),
    "MultiLabelMargin": (lambda r: nn.MultiLabelMarginLoss(reduction=r), labels),
    "Huber": (lambda r: nn.HuberLoss(reduction=r, delta=0.7), pair),
    "SmoothL1": (lambda r: nn.SmoothL1Loss(reduction=r, beta=0.7), pair),
    "SoftMargin": (lambda r: nn.SoftMarginLoss(reduction=r), signs),
    "MultiLabelSoftMargin": (lambda r: nn.MultiLabelSoftMarginLoss(WEIGHT, reduction=r), probabilities),
    "CosineEmbedding": (lambda r: nn.CosineEmbeddingLoss(0.1, reduction=r), angled),
    "MultiMargin": (lambda r: nn.MultiMarginLoss(2, 0.7, WEIGHT, reduction=r), scores),
    "TripletMargin": (lambda r: nn.TripletMarginLoss(reduction=r), three),
    "TripletMarginWithDistance": (lambda r: nn.TripletMarginWithDistanceLoss(reduction=r), three),
}


def run(module: nn.Module, inputs: tuple[torch.Tensor, ...], device: torch.device | str) -> list[torch.Tensor]:
    """The result and the gradients of inputs and parameters."""
    module = module.to(device)
    leaves = [x.detach().clone().to(device) for x in inputs]
    leaves[0].requires_grad_()
    result = module(*leaves)
    result.sum().backward()
    return [result.detach(), leaves[0].grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss(device, name, reduction):
    make, inputs = LOSSES[name]
    torch.manual_seed(0)
    operands = inputs()
    expected, actual = (run(make(reduction), operands, where) for where in ("cpu", device))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("lengths_are_tensors", [False, True])
@pytest.mark.parametrize("concatenated", [False, True])
@pytest.mark.parametrize("blank", [0, 3])
def test_ctc_loss(device, blank, concatenated, lengths_are_tensors):
    torch.manual_seed(0)
    x = torch.randn(12, 4, 6)
    # Repeated labels, an empty target, a target that is too long for its input.
    targets = torch.tensor([[1, 1, 2, 4], [5, 2, 5, 0], [4, 1, 0, 0], [1, 1, 1, 1]]) + 0
    targets = torch.where(targets == blank, 5, targets)
    lengths = [12, 9, 12, 5], [4, 3, 0, 4]
    if concatenated:
        targets = torch.cat([row[:n] for row, n in zip(targets, lengths[1], strict=True)])
    if lengths_are_tensors:
        lengths = tuple(torch.tensor(n) for n in lengths)
    results = []
    for where in ("cpu", device):
        leaf = x.to(where).detach().requires_grad_()
        moved = [n.to(where) if isinstance(n, torch.Tensor) else n for n in lengths]
        loss = functional.ctc_loss(
            leaf.log_softmax(2), targets.to(where), *moved, blank=blank, reduction="none", zero_infinity=True
        )
        (loss * torch.arange(1.0, 5, device=where)).sum().backward()
        results.append((loss.detach().cpu(), leaf.grad.cpu()))
    for ours, theirs in zip(*reversed(results), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "CELU": nn.CELU,
    "ELU": nn.ELU,
    "GELU": nn.GELU,
    "GLU": nn.GLU,
    "Hardshrink": nn.Hardshrink,
    "Hardsigmoid": nn.Hardsigmoid,
    "Hardswish": nn.Hardswish,
    "Hardtanh": nn.Hardtanh,
    "LeakyReLU": nn.LeakyReLU,
    "LogSigmoid": nn.LogSigmoid,
    "LogSoftmax": lambda: nn.LogSoftmax(1),
    "Mish": nn.Mish,
    "PReLU": nn.PReLU,
    "PReLU_channels": lambda: nn.PReLU(6),
    "RReLU_eval": lambda: nn.RReLU().eval(),
    "ReLU": nn.ReLU,
    "ReLU6": nn.ReLU6,
    "SELU": nn.SELU,
    "SiLU": nn.SiLU,
    "Sigmoid": nn.Sigmoid,
    "Softmax": lambda: nn.Softmax(1),
    "Softmax2d": nn.Softmax2d,
    "Softmin": lambda: nn.Softmin(1),
    "Softplus": nn.Softplus,
    "Softshrink": nn.Softshrink,
    "Softsign": nn.Softsign,
    "Tanh": nn.Tanh,
    "Tanhshrink": nn.Tanhshrink,
    "Threshold": lambda: nn.Threshold(0.1, 20),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(device, name):
    torch.manual_seed(0)
    x = torch.randn(3, 6, 2, 4) * 3
    expected, actual = (run(ACTIVATIONS[name](), (x,), where) for where in ("cpu", device))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=2e-5, atol=2e-5)


def test_randomized_relu(device):
    x = torch.randn(1000).to(device).requires_grad_()
    y = functional.rrelu(x, 0.1, 0.3, training=True)
    y.sum().backward()
    slope = (y / x).detach().cpu()
    positive = x.detach().cpu() > 0
    assert torch.allclose(slope[positive], torch.ones(()))
    assert ((slope[~positive] >= 0.1 - 1e-6) & (slope[~positive] <= 0.3 + 1e-6)).all()
    assert slope[~positive].unique().numel() > 100
    torch.testing.assert_close(x.grad.cpu(), slope, rtol=1e-5, atol=1e-6)
