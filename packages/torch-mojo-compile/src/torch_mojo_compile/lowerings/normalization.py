"""Normalization of rows. Batch, group and instance norm decompose into reductions, which MAX fuses with their input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from max.graph import TensorValue

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.lowerings.table import Node, lowering


def _shape(fake: torch.Tensor, normalized: Sequence[Any]) -> tuple[Any, Any]:
    """The rows and columns of what is normalized."""
    columns = math.prod(normalized)
    return math.prod(fake.shape[: fake.dim() - len(normalized)]), columns


@lowering("native_layer_norm.default")
def native_layer_norm(
    node: Node,
    x: TensorValue,
    normalized: Sequence[Any],
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> list[TensorValue]:
    """Layer norm with its mean and reciprocal deviation."""
    rows, columns = node.scalars(_shape(node.argument(0), normalized))
    scale, shift = (None if p is None else node.tensor(p) for p in (weight, bias))
    statistics = node.type_of(1).shape
    return list(custom_mojo_ops.layer_norm(x, scale, shift, statistics, rows, columns, eps))


@lowering("native_layer_norm_backward.default")
def native_layer_norm_backward(
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    normalized: Sequence[Any],
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    mask: Sequence[bool],
) -> list[TensorValue | None]:
    """The gradients of layer norm's input, weight and bias."""
    rows, columns = node.scalars(_shape(node.argument(1), normalized))
    given = None if weight is None else node.tensor(weight, x.dtype)
    shape = node.symbols.dims(normalized)
    return custom_mojo_ops.layer_norm_gradients(
        node.tensor(grad, x.dtype), x, mean, rstd, given, shape, rows, columns, mask
    )
