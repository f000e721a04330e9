"""Attention, forward and backward, against the composition of products and a softmax in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

DTYPES = ("float32", "float64", "bfloat16", "float16")
# Relative to the largest element of the result.
TOLERANCES = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 2e-2, "float16": 3e-3}
# batch, heads, key heads, queries, keys, depth, value depth
SIZES = [
    (2, 4, 4, 33, 33, 16, 16),
    (2, 4, 2, 70, 150, 40, 24),
    (1, 2, 1, 1, 300, 64, 64),
    (1, 1, 1, 5, 3, 3, 5),
    # Fewer heads than threads.
    (1, 1, 1, 70, 40, 16, 16),
    (2, 2, 2, 128, 128, 64, 64),
    (1, 2, 2, 131, 100, 128, 128),
]


def _key(function: str, dtype: str) -> str:
    return f"attention.{function}:{function}[dtype={dtype}]"


@pytest.fixture(scope="module")
def library(kernels: Callable[[list[str]], Any]) -> Any:
    return kernels([_key(function, dtype) for function in ("forward", "backward") for dtype in DTYPES])


def _attend(
    library: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad_out: torch.Tensor,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> list[torch.Tensor]:
    """The output and the gradients of query, key and value."""
    dtype = str(query.dtype).removeprefix("torch.")
    scalars = [is_causal, query.shape[-1] ** -0.5, dropout, seed, offset]
    batch, heads, queries, _ = query.shape
    # Memory that starts as NaN shows what was not written.
    out = query.new_full((batch, queries, heads, value.shape[-1]), torch.nan).transpose(1, 2)
    logsumexp = torch.full((batch, heads, queries), torch.nan, dtype=torch.promote_types(query.dtype, torch.float32))
    library(_key("forward", dtype), [out, logsumexp, query, key, value, mask], scalars)
    grads = [torch.full_like(tensor, torch.nan) for tensor in (query, key, value)]
    library(_key("backward", dtype), [*grads, grad_out, query, key, value, out, logsumexp, mask], scalars)
    return [out, *grads]


def _reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad_out: torch.Tensor,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    factors: torch.Tensor | float = 1.0,
) -> list[torch.Tensor]:
    query, key, value = (tensor.double().requires_grad_() for tensor in (query, key, value))
    shared = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(shared, 1).transpose(-1, -2) * query.shape[-1] ** -0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.double()
    unseen = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(unseen, 0.0).softmax(-1).masked_fill(unseen, 0.0) * factors
    out = weights @ value.repeat_interleave(shared, 1)
    return [out.detach(), *torch.autograd.grad(out, (query, key, value), grad_out.double())]


def _check(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for ours, exact in zip(actual, expected, strict=True):
        tolerance = TOLERANCES[str(ours.dtype).removeprefix("torch.")] * (exact.abs().max().item() + 1e-2)
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=tolerance)


def _operands(size: tuple[int, ...], dtype: str, heads_first: bool) -> list[torch.Tensor]:
    """Query, key, value and the gradient of the output."""
    batch, heads, key_heads, queries, keys, depth, value_depth = size

    def random(h: int, s: int, d: int) -> torch.Tensor:
        shape = (batch, h, s, d) if heads_first else (batch, s, h, d)
        tensor = torch.randn(shape).to(getattr(torch, dtype))
        return tensor if heads_first else tensor.transpose(1, 2)

    return [
        random(heads, queries, depth),
        random(key_heads, keys, depth),
        random(key_heads, keys, value_depth),
        random(heads, queries, value_depth),
    ]


@pytest.mark.parametrize("heads_first", [True, False], ids=["bhsd", "bshd"])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added", "row", "float32"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_and_backward(library: Any, dtype: str, size: tuple[int, ...], mask: str, heads_first: bool) -> None:
    torch.manual_seed(0)
    batch, heads, _, queries, keys, _, _ = size
    operands = _operands(size, dtype, heads_first)
    masks = {
        # Some queries see nothing at all.
        "bool": (torch.rand(batch, 1, queries, keys) > 0.3) & (torch.rand(batch, 1, queries, 1) > 0.1),
        "added": torch.randn(heads, keys, queries).transpose(1, 2).to(operands[0].dtype),
        "row": torch.randn(keys).to(operands[0].dtype),
        "float32": torch.randn(1, heads, queries, keys),
    }
    arguments = (masks.get(mask), mask == "causal")
    _check(_attend(library, *operands, *arguments), _reference(*operands, *arguments))


def test_expanded_gradient(library: Any) -> None:
    """Autograd passes gradients with stride 0."""
    torch.manual_seed(0)
    query, key, value, _ = _operands(SIZES[0], "float32", True)
    grad_out = torch.ones(()).expand(query.shape)
    _check(_attend(library, query, key, value, grad_out), _reference(query, key, value, grad_out))


@pytest.mark.parametrize("dropout", [0.1, 0.5, 1.0])
def test_dropout(library: Any, dropout: float) -> None:
    torch.manual_seed(0)
    batch, heads, queries, keys = 2, 3, 50, 37
    query, key, value, grad_out = _operands((batch, heads, heads, queries, keys, 16, 24), "float32", True)
    # With the unit matrix as value the output is the weights, which shows the factors.
    unit = torch.eye(keys).expand(batch, heads, keys, keys)
    options = {"dropout": dropout, "seed": 1234, "offset": 8}
    weights = _attend(library, query, key, unit, torch.zeros(batch, heads, queries, keys), **options)[0]
    undropped = (query @ key.transpose(-1, -2) / 4).softmax(-1)
    kept = weights != 0
    assert kept.double().mean().item() == pytest.approx(1 - dropout, abs=0.02)
    factors = kept / (1 - dropout) if dropout < 1 else torch.zeros_like(weights)
    torch.testing.assert_close(weights, undropped * factors)
    actual = _attend(library, query, key, value, grad_out, **options)
    _check(actual, _reference(query, key, value, grad_out, factors=factors))
    if dropout < 1:
        for other in ({"seed": 1235}, {"offset": 12}):
            assert not torch.equal(actual[0], _attend(library, query, key, value, grad_out, **{**options, **other})[0])


def test_sizes_that_do_not_fit(library: Any) -> None:
    operands = _operands((1, 3, 2, 4, 4, 8, 8), "float32", True)
    with pytest.raises(ValueError, match="3 query heads cannot share 2 key heads"):
        _attend(library, *operands)


def test_no_keys(library: Any) -> None:
    operands = _operands((1, 2, 2, 5, 0, 8, 8), "float32", True)
    for tensor in _attend(library, *operands):
        assert torch.equal(tensor, torch.zeros_like(tensor))
