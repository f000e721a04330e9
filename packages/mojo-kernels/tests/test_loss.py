"""Losses and their gradients against torch."""

from __future__ import annotations

import pytest
import torch

NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16"}
IGNORED = -100


PAIRS = {
    "mse": (lambda x, t, w, r: torch.nn.functional.mse_loss(x, t, reduction=r), ()),
    "smooth_l1": (lambda x, t, w, r: torch.nn.functional.smooth_l1_loss(x, t, reduction=r, beta=0.7), (0.7,)),
    "huber": (lambda x, t, w, r: torch.nn.functional.huber_loss(x, t, reduction=r, delta=0.7), (0.7,)),
    "binary_cross_entropy": (
        lambda x, t, w, r: torch.nn.functional.binary_cross_entropy(x, t, w, reduction=r),
        (),
    ),
}
REDUCTIONS = ("none", "mean", "sum")


def pair_key(name: str, op: str, dtype: torch.dtype) -> str:
    return f"loss.pair:{name}[dtype={NAMES[dtype]},op={op}]"


@pytest.fixture(scope="module")
def pairs(kernels):
    return kernels(
        [
            pair_key(name, op, dtype)
            for name in ("pair_loss", "pair_loss_backward")
            for op in PAIRS
            for dtype in ((*NAMES,) if op == "mse" else (torch.float32, torch.bfloat16))
        ]
    )


@pytest.fixture(scope="module")
def library(kernels):
    return kernels(
        [f"loss.nll:{name}[dtype={d}]" for name in ("nll_loss", "nll_loss_backward") for d in NAMES.values()]
    )


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(7, 5), (9000, 11), (1, 3), (5,)], ids=str)
def test_nll(library, dtype: torch.dtype, reduction: int, weighted: bool, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).log_softmax(-1).to(dtype)
    targets = torch.randint(0, shape[-1], shape[:-1])
    if len(shape) == 2 and shape[0] > 1:
        targets[::3] = IGNORED
    weight = torch.rand(shape[-1]).to(dtype) if weighted else None
    double_weight = None if weight is None else weight.double()
    expected = torch.ops.aten.nll_loss_forward(x.double(), targets, double_weight, reduction, IGNORED)
    for view in (x, x.t().contiguous().t() if x.ndim == 2 else x):
        out = torch.empty(expected[0].shape, dtype=dtype)
        total_weight = torch.empty((), dtype=dtype)
        library(
            f"loss.nll:nll_loss[dtype={NAMES[dtype]}]", [out, total_weight, view, targets, weight], [reduction, IGNORED]
        )
        torch.testing.assert_close(out, expected[0].to(dtype))
        if reduction != 0 or x.ndim == 1:
            torch.testing.assert_close(total_weight, expected[1].to(dtype))
    gradient = torch.randn(expected[0].shape).to(dtype)
    total = expected[1]
    expected_gradient = torch.ops.aten.nll_loss_backward(
        gradient.double(), x.double(), targets, double_weight, reduction, IGNORED, total
    )
    for dx in (
        torch.full_like(x, 7),
        torch.full_like(x, 7).t().contiguous().t() if x.ndim == 2 else torch.empty_like(x),
    ):
        library(
            f"loss.nll:nll_loss_backward[dtype={NAMES[dtype]}]",
            [dx, gradient, x, targets, weight, total.to(dtype)],
            [reduction, IGNORED],
        )
        torch.testing.assert_close(dx, expected_gradient.to(dtype))


def test_nll_of_nothing(library) -> None:
    x = torch.randn(3, 4)
    targets = torch.full((3,), IGNORED)
    out, total = torch.empty(()), torch.empty(())
    library("loss.nll:nll_loss[dtype=float32]", [out, total, x, targets, None], [1, IGNORED])
    assert out.isnan()
    assert total == 0
    library("loss.nll:nll_loss[dtype=float32]", [out, total, x[:0], targets[:0], None], [2, IGNORED])
    assert out == 0


def test_target_out_of_range(library) -> None:
    x, out, total = torch.randn(3, 4), torch.empty(()), torch.empty(())
    for bad in (4, -1):
        targets = torch.tensor([0, bad, 1])
        with pytest.raises(IndexError, match=f"Target {bad} is out of bounds."):
            library("loss.nll:nll_loss[dtype=float32]", [out, total, x, targets, None], [1, IGNORED])
        with pytest.raises(IndexError, match=f"Target {bad} is out of bounds."):
            library("loss.nll:nll_loss_backward[dtype=float32]", [x, out, x, targets, None, total], [1, IGNORED])


def pair_inputs(op: str, dtype: torch.dtype, shape: tuple[int, ...]) -> list[torch.Tensor]:
    x, target = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    if op == "binary_cross_entropy":
        x, target = x.sigmoid(), target.sigmoid()
    return [x.to(dtype), target.to(dtype)]


@pytest.mark.parametrize("op", PAIRS)
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16], ids=NAMES.get)
def test_pairs(pairs, op: str, reduction: int, dtype: torch.dtype) -> None:
    if op != "mse" and dtype in (torch.float64, torch.float16):
        dtype = torch.float32
    function, parameters = PAIRS[op]
    for shape in ((40, 300), (3, 5, 7), (), (0, 4), (130, 130)):
        x, target = pair_inputs(op, dtype, shape)
        weight = torch.rand(shape[-1:]).to(dtype) if op == "binary_cross_entropy" and shape else None
        views = [(x, target)]
        if x.ndim == 2:
            views += [(x.t().contiguous().t(), target), (x[:, :1].expand(shape), target[:1].expand(shape))]
        for a, b in views:
            leaf = a.double().detach().requires_grad_()
            expected = function(leaf, b.double(), None if weight is None else weight.double(), REDUCTIONS[reduction])
            extra = [weight] if op == "binary_cross_entropy" else []
            out = torch.empty(expected.shape, dtype=dtype)
            pairs(pair_key("pair_loss", op, dtype), [out, a, b, *extra], [reduction, *parameters])
            torch.testing.assert_close(out, expected.detach().to(dtype), equal_nan=True)
            dy = torch.randn(expected.shape, dtype=torch.float64).to(dtype)
            expected.backward(dy.double())
            for gradient in (torch.empty(shape, dtype=dtype), torch.empty_like(a)):
                if 0 in gradient.stride():
                    continue
                pairs(pair_key("pair_loss_backward", op, dtype), [gradient, dy, a, b, *extra], [reduction, *parameters])
                torch.testing.assert_close(gradient, leaf.grad.to(dtype))


def test_pairs_broadcast(pairs) -> None:
    x, target = torch.randn(4, 1, 6), torch.randn(5, 6)
    out = torch.empty(4, 5, 6)
    pairs(pair_key("pair_loss", "mse", torch.float32), [out, x, target], [0])
    torch.testing.assert_close(out, (x - target) ** 2)
    out = torch.empty(())
    for a, b in ((x, target), (target, x)):
        pairs(pair_key("pair_loss", "mse", torch.float32), [out, a, b], [1])
        torch.testing.assert_close(out, ((x - target) ** 2).mean())


def test_certain_predictions(pairs) -> None:
    """Logarithms of 0 count as -100, as in torch."""
    x, target = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0, 0.0])
    out = torch.empty(4)
    pairs(pair_key("pair_loss", "binary_cross_entropy", torch.float32), [out, x, target, None], [0])
    assert out.tolist() == [0, 0, 100, 100]
