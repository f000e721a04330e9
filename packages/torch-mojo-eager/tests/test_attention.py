"""scaled_dot_product_attention takes the fused kernels where they serve it, and torch's composition elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

FUSED = "ScaledDotProductFusedAttentionOverrideableBackward0"


def _operands(heads: int = 4, key_heads: int = 4) -> list[torch.Tensor]:
    """Query, key and value as a model makes them: heads split off the last dimension."""
    torch.manual_seed(0)
    return [torch.randn(2, 9, count, 8).transpose(1, 2) for count in (heads, key_heads, key_heads)]


def _on(device: torch.device, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    return [operand.to(device).requires_grad_() for operand in operands]


@pytest.mark.parametrize(
    ("options", "key_heads"),
    [({}, 4), ({"is_causal": True}, 4), ({"scale": 0.3}, 4), ({"enable_gqa": True, "is_causal": True}, 2)],
    ids=["plain", "causal", "scaled", "shared-key-heads"],
)
def test_fused(device: torch.device, options: dict[str, Any], key_heads: int) -> None:
    operands = _operands(key_heads=key_heads)
    ours, reference = _on(device, operands), _on(torch.device("cpu"), operands)
    out = scaled_dot_product_attention(*ours, **options)
    assert type(out.grad_fn).__name__ == FUSED
    assert out.transpose(1, 2).is_contiguous()
    expected = scaled_dot_product_attention(*reference, **options)
    torch.testing.assert_close(out.cpu(), expected)
    weights = torch.randn(expected.shape)
    (out * weights.to(device)).sum().backward()
    (expected * weights).sum().backward()
    for mine, theirs in zip(ours, reference, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


@pytest.mark.parametrize("is_bool", [True, False])
def test_mask(device: torch.device, is_bool: bool) -> None:
    operands = _operands()
    mask = torch.rand(9, 9) > 0.3 if is_bool else torch.randn(9, 9)
    out = scaled_dot_product_attention(*_on(device, operands), attn_mask=mask.to(device))
    assert type(out.grad_fn).__name__ == FUSED
    torch.testing.assert_close(out.cpu(), scaled_dot_product_attention(*operands, attn_mask=mask))


def test_no_gradient_arrives(device: torch.device) -> None:
    ours = _on(device, _operands())
    out = torch._C._functions.UndefinedGrad()(scaled_dot_product_attention(*ours))
    assert torch.autograd.grad(out, ours, torch.zeros_like(out), allow_unused=True) == (None, None, None)


def test_without_batch(device: torch.device) -> None:
    operands = [operand[0] for operand in _operands()]
    out = scaled_dot_product_attention(*_on(device, operands))
    # Some versions of torch add the batch themselves, and take it away again.
    nodes = [out.grad_fn, *(node for node, _ in out.grad_fn.next_functions)]
    assert FUSED in [type(node).__name__ for node in nodes]
    torch.testing.assert_close(out.cpu(), scaled_dot_product_attention(*operands))


def test_dropout(device: torch.device) -> None:
    """The seed decides what is dropped, forward and backward alike."""
    results = []
    for seed in (1, 1, 2):
        operands = _on(device, _operands())
        torch.manual_seed(seed)
        out = scaled_dot_product_attention(*operands, dropout_p=0.5)
        out.sum().backward()
        grad = operands[2].grad
        assert grad is not None
        # Every output is a sum of weights times values, so this holds for the same weights only.
        product = (grad * operands[2]).sum().item()
        assert product == pytest.approx(out.sum().item(), rel=1e-3, abs=1e-3)
        results.append(out.detach().cpu())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_composition(device: torch.device) -> None:
    """A mask that needs a gradient, and a user's choice."""
    operands = _operands()
    mask = torch.randn(9, 9)
    ours, reference = mask.to(device).requires_grad_(), mask.clone().requires_grad_()
    out = scaled_dot_product_attention(*_on(device, operands), attn_mask=ours)
    assert type(out.grad_fn).__name__ != FUSED
    out.sum().backward()
    scaled_dot_product_attention(*operands, attn_mask=reference).sum().backward()
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad.cpu(), reference.grad)
    with sdpa_kernel(SDPBackend.MATH):
        assert type(scaled_dot_product_attention(*_on(device, operands)).grad_fn).__name__ != FUSED
