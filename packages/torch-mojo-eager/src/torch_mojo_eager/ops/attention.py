"""Scaled dot-product attention by fused kernels; csrc/attention.cpp says when torch takes them."""

from __future__ import annotations

import torch
from torch import Tensor

from mojo_runtime.aten.table import FLOATING
from torch_mojo_eager.ops.registry import launch, op

KERNELS = (
    ("attention.forward:forward[dtype={0}]", (FLOATING,)),
    ("attention.backward:backward[dtype={0}]", (FLOATING,)),
)


def _batched(tensor: Tensor) -> Tensor:
    """[heads, sequence, features] as a batch of one."""
    return tensor if tensor.ndim == 4 else tensor.unsqueeze(0)


def _output_like(query: Tensor, features: int) -> Tensor:
    """An output with the query's order of dimensions in memory, so that merging its heads again copies nothing."""
    if query.shape[-1] == features:
        return torch.empty_like(query)
    *batch, heads, length, _ = query.shape
    if query.stride(-3) < query.stride(-2):
        return query.new_empty((*batch, length, heads, features)).transpose(-3, -2)
    return query.new_empty((*batch, heads, length, features))


def _scalars(
    query: Tensor, is_causal: bool, scale: float | None, dropout_p: float, seed: int, offset: int
) -> list[int | float]:
    """The kernels' scalars; the default scale is 1 / sqrt(features)."""
    if scale is None:
        scale = float(query.shape[-1]) ** -0.5 if query.shape[-1] else 0.0
    return [int(is_causal), float(scale), float(dropout_p), seed, offset]


@op("aten::_scaled_dot_product_fused_attention_overrideable")
def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, None, None, int, int, Tensor, Tensor, None]:
    """Attention in one kernel that does not store the scores.

    Args:
        query: [batch, heads, queries, depth], any strides; batch may be missing.
        key: [batch, key heads, keys, depth]; the number of heads is a multiple of that of key heads.
        value: [batch, key heads, keys, value depth].
        attn_bias: Broadcastable to [batch, heads, queries, keys]: bool, float32 or the query's dtype.
        dropout_p: The probability with which a weight is dropped.
        is_causal: Whether query i sees keys up to i only.
        return_debug_mask: Must be False.
        scale: The factor of the scores, 1 / sqrt(depth) if None.

    Returns:
        The output, the scores' logsumexp [batch, heads, queries], None twice, the lengths of query and key, the
        generator's seed and offset (CPU tensors, 0 without dropout) and None.
    """
    if return_debug_mask:
        raise NotImplementedError("_scaled_dot_product_fused_attention_overrideable has no debug mask on mojo")
    queries, keys = query.shape[-2], key.shape[-2]
    output = _output_like(query, value.shape[-1])
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    batched = _batched(query)
    logsumexp = query.new_empty(batched.shape[:3], dtype=wide)
    seed = offset = 0
    if dropout_p > 0:
        # A row of the weights is a subsequence of its own, and a draw serves four keys.
        seed, offset = torch.ops.mojo.philox_state(None, query.device.index, 4 * -(-keys // 4))
    launch(
        "attention.forward:forward",
        [_batched(output), logsumexp, batched, _batched(key), _batched(value), attn_bias],
        _scalars(query, is_causal, scale, dropout_p, seed, offset),
        dtype=query.dtype,
    )
    state = torch.tensor([seed, offset])
    return output, logsumexp, None, None, queries, keys, state[0], state[1], None


@op("aten::_scaled_dot_product_fused_attention_overrideable_backward")
def fused_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    grad_input_mask: list[bool],
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, None]:
    """Gradients of query, key and value, from the weights computed again; see the forward op."""
    if grad_input_mask[3]:
        raise NotImplementedError(
            f"aten::_scaled_dot_product_fused_attention_overrideable_backward has no gradient for attn_bias of dtype "
            f"{query.dtype} on mojo; use torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
        )
    grads = [torch.empty_like(tensor) for tensor in (query, key, value)]
    seed, offset = (int(philox_seed), int(philox_offset)) if dropout_p > 0 else (0, 0)
    launch(
        "attention.backward:backward",
        [
            *(_batched(tensor) for tensor in (*grads, grad_out, query, key, value, out)),
            logsumexp,
            attn_bias,
        ],
        _scalars(query, is_causal, scale, dropout_p, seed, offset),
        dtype=query.dtype,
    )
    return grads[0], grads[1], grads[2], None
