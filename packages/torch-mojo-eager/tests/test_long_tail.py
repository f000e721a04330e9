"""Ops written in Python: each computes on the device what it computes on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

X = torch.randn(6, 7, 8, generator=torch.Generator().manual_seed(0))
MASK = X > 0
POSITIONS = torch.tensor([1, -2, 3])
TABLE = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randint(0, 20, (3, 4), generator=torch.Generator().manual_seed(2))

Move = Callable[[torch.Tensor], torch.Tensor]


def _gradient(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().clone().requires_grad_()
    function(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad


def _assignments(on: Move) -> torch.Tensor:
    x = on(X).clone()
    x[on(MASK)] = 0.5
    x[on(POSITIONS)] = on(torch.ones(7, 8))
    x[:, 0] = 2
    x[0, on(POSITIONS)] += 1
    x[on(MASK)[:, :, 0]] = on(torch.arange(8.0))
    return x


def _foreach(on: Move) -> list[torch.Tensor]:
    lists = [on(X), on(TABLE)]
    return [
        *torch._foreach_add(lists, 2.0),
        *torch._foreach_mul(lists, lists),
        *torch._foreach_div(lists, [2.0, 4.0]),
        *torch._foreach_lerp(lists, torch._foreach_neg(lists), 0.25),
        *torch._foreach_addcmul(lists, lists, lists, 0.5),
        *torch._foreach_norm(lists, 2.0),
        *torch._foreach_mul(lists, on(torch.tensor(0.5))),
    ]


CASES: dict[str, Callable[[Move], torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]]] = {
    "index": lambda on: on(X)[on(POSITIONS)],
    "index_neighbours": lambda on: on(X)[:, on(POSITIONS), on(POSITIONS)],
    "index_apart": lambda on: on(X)[on(POSITIONS), :, on(POSITIONS)[:, None]],
    "index_host": lambda on: on(X)[POSITIONS],
    "index_mask": lambda on: on(X)[on(MASK)],
    "index_mask_and_positions": lambda on: on(X)[on(MASK)[:, :, 0], 1],
    "index_backward": lambda on: _gradient(lambda x: x[on(POSITIONS), :, on(POSITIONS)].pow(2).sum(), on(X)),
    "index_put": _assignments,
    "index_put_accumulate": lambda on: on(X).index_put((on(POSITIONS),), on(torch.ones(7, 8)), accumulate=True),
    "index_select": lambda on: on(X).index_select(1, on(torch.tensor([3, 0, 3]))),
    "embedding_backward": lambda on: _gradient(lambda w: functional.embedding(on(TOKENS), w, 3).sum(), on(TABLE)),
    "nonzero": lambda on: on(MASK).nonzero(),
    "where": lambda on: torch.where(on(MASK)),
    "masked_select": lambda on: on(X).masked_select(on(MASK)[0]),
    "masked_scatter": lambda on: on(X).masked_scatter(on(MASK), on(torch.arange(400.0))),
    "take": lambda on: on(X).take(on(torch.tensor([[0, 5], [100, -1]]))),
    "flip": lambda on: on(X).flip(0, 2),
    "roll": lambda on: on(X).roll((1, -2), (0, 2)),
    "index_fill": lambda on: on(X).index_fill(1, on(torch.tensor([0, 2])), on(torch.tensor(9.0))),
    "scatter_reduce": lambda on: on(X).scatter_reduce(
        0, on(torch.zeros(6, 7, 8, dtype=torch.int64)), on(X), "mean", include_self=False
    ),
    "var_mean": lambda on: torch.var_mean(on(X), (0, 2), correction=2, keepdim=True),
    "std": lambda on: on(X).std(),
    "max": lambda on: on(X).max(),
    "prod": lambda on: on(X)[0].prod(),
    "nansum": lambda on: on(X).log().nansum(1),
    "count_nonzero": lambda on: on(MASK).count_nonzero(0),
    "foreach": _foreach,
}


@pytest.mark.parametrize("case", CASES)
def test_python_op(device, case: str) -> None:
    expected = CASES[case](lambda x: x)
    actual = CASES[case](lambda x: x.to(device))
    for a, e in zip(
        actual if isinstance(actual, (tuple, list)) else [actual],
        expected if isinstance(expected, (tuple, list)) else [expected],
        strict=True,
    ):
        assert a.device.type == device.type
        torch.testing.assert_close(a.cpu(), e, equal_nan=True)


def test_index_errors(device) -> None:
    x = X.to(device)
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 6"):
        x[torch.tensor([9])].cpu()
    with pytest.raises(IndexError, match="too many indices"):
        x[POSITIONS, POSITIONS, POSITIONS, POSITIONS]
    with pytest.raises(IndexError, match="shape of the mask"):
        x[MASK[:, :5]]
    with pytest.raises(IndexError, match="could not be broadcast"):
        x[POSITIONS, POSITIONS[:2]]
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.index_select(3, POSITIONS.to(device))
    with pytest.raises(IndexError, match="out of range"):
        functional.embedding(torch.tensor([20], device=device), TABLE.to(device)).cpu()
    with pytest.raises(IndexError, match="Target 21 is out of bounds"):
        functional.cross_entropy(TABLE.T.to(device), torch.tensor([0, 1, 2, 3, 21], device=device)).cpu()


def test_multinomial_follows_the_probabilities(device) -> None:
    weights = torch.tensor([1.0, 0.0, 4.0, 5.0], device=device)
    torch.manual_seed(0)
    for samples in (
        torch.multinomial(weights, 5000, replacement=True),
        torch.multinomial(weights.expand(5000, 4), 1).flatten(),
    ):
        shares = samples.cpu().bincount(minlength=4) / 5000
        torch.testing.assert_close(shares, torch.tensor([0.1, 0.0, 0.4, 0.5]), rtol=0, atol=0.03)
    assert sorted(torch.multinomial(weights, 3).tolist()) == [0, 2, 3]
    with pytest.raises(RuntimeError, match="without replacement"):
        torch.multinomial(weights, 5)
    with pytest.raises(RuntimeError, match="element < 0"):
        torch.multinomial(-weights, 1)
