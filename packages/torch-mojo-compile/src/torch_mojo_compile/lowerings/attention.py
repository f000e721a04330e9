"""Scaled dot-product attention by the fused kernels of mojo-kernels."""

from __future__ import annotations

from typing import Any

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.lowerings import random
from torch_mojo_compile.lowerings.table import Node, lowering


def _scale(query: Any, scale: float | None) -> float:
    return float(query.shape[-1]) ** -0.5 if scale is None else scale


@lowering("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention_for_cpu(
    node: Node,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: TensorValue | None = None,
    scale: float | None = None,
) -> list[TensorValue]:
    """Attention and the logsumexp of its scores, without dropout: torch itself takes that apart on CPUs."""
    factor = _scale(node.argument(0), scale)
    return list(custom_mojo_ops.attention(query, key, value, attn_mask, is_causal=is_causal, scale=factor))


@lowering("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_for_cpu_backward(
    node: Node,
    grad: TensorValue,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    out: TensorValue,
    logsumexp: TensorValue,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: TensorValue | None = None,
    scale: float | None = None,
) -> list[TensorValue]:
    """The gradients of query, key and value."""
    factor = _scale(node.argument(1), scale)
    return custom_mojo_ops.attention_gradients(
        grad, query, key, value, out, logsumexp, attn_mask, is_causal=is_causal, scale=factor
    )


@lowering(random.ATTENTION)
def fused_attention(
    node: Node,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    attn_bias: TensorValue | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> list[Any]:
    """Attention and the logsumexp of its scores, on mojo devices."""
    fake, keys = node.argument(0), node.argument(1).shape[-2]
    seed = offset = node.tensor(0, DType.int64)
    dropout = custom_mojo_ops.NO_DROPOUT
    if dropout_p > 0:
        seed, offset = random.attention_state(node, keys)
        dropout = (dropout_p, seed, offset)
    output, logsumexp = custom_mojo_ops.attention(
        query, key, value, attn_bias, is_causal=is_causal, scale=_scale(fake, scale), dropout=dropout
    )
    state = (ops.reshape(word, []) for word in (seed, offset))
    return [output, logsumexp, None, None, fake.shape[-2], keys, *state, None]


@lowering("_scaled_dot_product_fused_attention_overrideable_backward.default")
def fused_attention_backward(
    node: Node,
    grad: TensorValue,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    attn_bias: TensorValue | None,
    mask: list[bool],
    out: TensorValue,
    logsumexp: TensorValue,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    seed: Any,
    offset: Any,
    *,
    scale: float | None = None,
) -> list[Any]:
    """The gradients of query, key and value, on mojo devices."""
    if mask[3]:
        raise NotImplementedError("fused attention has no gradient of its bias; use SDPBackend.MATH")
    factor = _scale(node.argument(1), scale)
    dropout = (dropout_p, seed, offset) if dropout_p > 0 else custom_mojo_ops.NO_DROPOUT
    grads = custom_mojo_ops.attention_gradients(
        grad, query, key, value, out, logsumexp, attn_bias, is_causal=is_causal, scale=factor, dropout=dropout
    )
    return [*grads, None]
