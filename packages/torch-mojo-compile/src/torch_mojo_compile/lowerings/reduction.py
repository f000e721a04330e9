"""Reductions and scans that no row of a kernel serves. MAX's own pass over a tensor once for each dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from max.dtype import DType
from max.graph import TensorValue

from mojo_runtime.launch import Number
from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.lowerings.table import Node, lower_row, lowering


def _dims(dim: Any) -> list[int]:
    """The dimensions to reduce over; none of them are all."""
    return [] if dim is None else list(dim) if isinstance(dim, list | tuple) else [dim]


@lowering("sum.default", "mean.default")
def sum_(node: Node, x: TensorValue, *, dtype: Any = None) -> TensorValue:
    """Sum or mean of all elements; the sum of integers is an int64."""
    return custom_mojo_ops.reduce(node.name, x, [], [], out=node.dtype)


@lowering("var.correction", "var_mean.correction", "std.correction", "std_mean.correction")
def var(node: Node, x: TensorValue, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Variance or standard deviation, and the mean."""
    divisor = [0] if correction is None else [1, Number(correction)]
    function = custom_mojo_ops.reduce if isinstance(node.fake, torch.Tensor) else custom_mojo_ops.reduce_to_pair
    return function(node.name, x, _dims(dim), node.shape, divisor)


@lowering("amax.default", "amin.default")
def amax(node: Node, x: TensorValue, dim: Sequence[int] = (), keepdim: bool = False) -> TensorValue:
    """Maximum or minimum over dimensions; NaN wins."""
    return lower_row(node, x, list(dim), keepdim)


@lowering("max.default", "min.default")
def max_(node: Node, x: TensorValue) -> TensorValue:
    """Maximum or minimum of all elements."""
    return custom_mojo_ops.reduce(f"a{node.name}", x, [], [])


@lowering("any.dims", "all.dims")
def any_(node: Node, x: TensorValue, dim: Any = None, keepdim: bool = False) -> TensorValue:
    """Whether any or every element is not zero."""
    return custom_mojo_ops.reduce(node.name, x, _dims(dim), node.shape, out=DType.bool)


@lowering("nansum.default")
def nansum(node: Node, x: TensorValue, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorValue:
    """Sum without NaN."""
    value = node.tensor(x)
    return custom_mojo_ops.reduce("nansum", value, _dims(dim), node.shape)


@lowering("prod.default")
def prod(node: Node, x: TensorValue, *, dtype: Any = None) -> TensorValue:
    """Product of all elements."""
    return custom_mojo_ops.reduce("prod", node.tensor(x), [], [])


@lowering("cummax.default", "cummin.default")
def cummax(node: Node, x: TensorValue, dim: int) -> list[Any]:
    """The maximum or minimum up to each element, and its last position."""
    outputs = [(x.shape, x.dtype), (x.shape, DType.int64)]
    return custom_mojo_ops.kernel("cumulative:extremum", outputs, [x], [dim], dtype=x.dtype, op=node.name)


@lowering("logcumsumexp.default")
def logcumsumexp(node: Node, x: TensorValue, dim: int) -> TensorValue:
    """The logarithm of the sum of exponentials up to each element."""
    parameters: dict[str, Any] = {"dtype": x.dtype, "op": node.name, "out": x.dtype}
    made = custom_mojo_ops.kernel("cumulative:cumulative", [(x.shape, x.dtype)], [x], [dim], **parameters)
    result: TensorValue = made[0]
    return result
