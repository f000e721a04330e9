"""Normalization by our kernels: the reductions that these ops decompose into cost MAX seconds each.

Batch norm with given statistics is elementwise and left to MAX, which fuses it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from max.graph import TensorValue, ops

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.custom_mojo_ops import statistics_dtype
from torch_mojo_compile.lowerings.table import Node, cast, lowering


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


def _parameters(x: TensorValue, *given: TensorValue | None) -> list[TensorValue | None]:
    """Weights and running statistics in one dtype: theirs where it is one, else that of statistics."""
    dtypes = {tensor.dtype for tensor in given if tensor is not None}
    dtype = dtypes.pop() if len(dtypes) == 1 else statistics_dtype(x)
    return [None if tensor is None else cast(tensor, dtype) for tensor in given]


@lowering("_native_batch_norm_legit_functional.default")
def batch_norm(
    node: Node,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue | None,
    running_var: TensorValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[TensorValue | None]:
    """Batch norm with the statistics that it used and the new running ones."""
    if not training:
        raise NotImplementedError("batch norm with given statistics is _native_batch_norm_legit_no_training")
    weight, bias, running_mean, running_var = _parameters(x, weight, bias, running_mean, running_var)
    return custom_mojo_ops.batch_norm(x, weight, bias, running_mean, running_var, momentum, eps)


@lowering("_native_batch_norm_legit.no_stats")
def batch_norm_without_running_statistics(
    node: Node,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[TensorValue | None]:
    """Batch norm, of instances too, that keeps no running statistics."""
    weight, bias = _parameters(x, weight, bias)
    return custom_mojo_ops.batch_norm(x, weight, bias, None, None, momentum, eps)[:3]


@lowering("native_batch_norm_backward.default")
def batch_norm_backward(
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    weight: TensorValue | None,
    running_mean: TensorValue | None,
    running_var: TensorValue | None,
    save_mean: TensorValue | None,
    save_rstd: TensorValue | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> list[TensorValue | None]:
    """The gradients of batch norm's input, weight and bias."""
    if training:
        running_mean = running_var = None
        save_mean, save_rstd = (None if t is None else cast(t, statistics_dtype(x)) for t in (save_mean, save_rstd))
    else:
        save_mean = save_rstd = None
    weight, running_mean, running_var = _parameters(x, weight, running_mean, running_var)
    statistics = (save_mean, save_rstd, running_mean, running_var)
    return custom_mojo_ops.batch_norm_gradients(cast(grad, x.dtype), x, statistics, weight, training, eps, mask)


def _with_batch(node: Node, x: TensorValue, batch: Any, channels: Any, positions: Any) -> TensorValue:
    """The tensor as [batch, channels, positions]; composites of torch pass other shapes of as many elements."""
    return ops.reshape(x, node.symbols.dims([batch, channels, positions]))


@lowering("native_group_norm.default")
def group_norm(
    node: Node,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    batch: Any,
    channels: Any,
    positions: Any,
    groups: int,
    eps: float,
) -> list[TensorValue]:
    """Group norm with its mean and reciprocal deviation."""
    weight, bias = _parameters(x, weight, bias)
    dense = _with_batch(node, x, batch, channels, positions)
    result, mean, rstd = custom_mojo_ops.group_norm(dense, weight, bias, groups, eps)
    return [ops.reshape(result, x.shape), mean, rstd]


@lowering("native_group_norm_backward.default")
def group_norm_backward(
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    batch: Any,
    channels: Any,
    positions: Any,
    groups: int,
    mask: Sequence[bool],
) -> list[TensorValue | None]:
    """The gradients of group norm's input, weight and bias."""
    dense_grad, dense = (_with_batch(node, t, batch, channels, positions) for t in (cast(grad, x.dtype), x))
    statistics = (cast(mean, statistics_dtype(x)), cast(rstd, statistics_dtype(x)))
    (weight,) = _parameters(x, weight)
    results = custom_mojo_ops.group_norm_gradients(dense_grad, dense, statistics, weight, groups, mask)
    return [None if results[0] is None else ops.reshape(results[0], x.shape), *results[1:]]
