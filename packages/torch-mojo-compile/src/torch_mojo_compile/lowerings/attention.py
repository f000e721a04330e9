"""Scaled dot-product attention by the fused kernels of mojo-kernels."""

from __future__ import annotations

from typing import Any

from max.dtype import DType
from max.graph import TensorValue

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.lowerings.table import Node, lowering


def _scale(query: Any, scale: float | None) -> float:
    return float(query.shape[-1]) ** -0.5 if scale is None else scale


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p > 0:
        raise NotImplementedError(
            "fused attention with dropout can't be in a graph; use torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
        )


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
    """Attention and the logsumexp of its scores."""
    _refuse_dropout(dropout_p)
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
    _refuse_dropout(dropout_p)
    factor = _scale(node.argument(1), scale)
    return custom_mojo_ops.attention_gradients(
        grad, query, key, value, out, logsumexp, attn_mask, is_causal=is_causal, scale=factor
    )


@lowering("_scaled_dot_product_fused_attention_overrideable.default")
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
    _refuse_dropout(dropout_p)
    fake = node.argument(0)
    output, logsumexp = custom_mojo_ops.attention(
        query, key, value, attn_bias, is_causal=is_causal, scale=_scale(fake, scale)
    )
    zero = node.tensor(0, DType.int64)
    return [output, logsumexp, None, None, fake.shape[-2], node.argument(1).shape[-2], zero, zero, None]


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
    _refuse_dropout(dropout_p)
    if mask[3]:
        raise NotImplementedError("fused attention has no gradient of its bias; use SDPBackend.MATH")
    factor = _scale(node.argument(1), scale)
    grads = custom_mojo_ops.attention_gradients(
        grad, query, key, value, out, logsumexp, attn_bias, is_causal=is_causal, scale=factor
    )
    return [*grads, None]
