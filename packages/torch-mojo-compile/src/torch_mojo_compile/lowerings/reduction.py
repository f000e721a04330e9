"""Reductions that MAX fuses with what they reduce; the rest (norms, products, any) are kernels' rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.lowerings.table import Node, cast, lower_row, lowering


def _axes(rank: int, dim: Any) -> list[int]:
    if dim is None or dim == []:
        return list(range(rank))
    return sorted(d % max(rank, 1) for d in (dim if isinstance(dim, list | tuple) else [dim]))


def _reduce(node: Node, function: Callable[..., TensorValue], x: TensorValue, dim: Any, index: int = 0) -> TensorValue:
    """Reduces axis by axis; half types accumulate in float32."""
    if x.rank == 0:
        return x
    wide = cast(x, DType.float32) if x.dtype.is_float() and x.dtype.size_in_bytes < 4 else x
    for axis in _axes(x.rank, dim):
        wide = function(wide, axis=axis)
    return ops.reshape(cast(wide, x.dtype), node.type_of(index).shape)


@lowering("sum.dim_IntList", "sum.default")
def sum_(node: Node, x: TensorValue, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorValue:
    """Sum; integers add up in int64."""
    return _reduce(node, ops.sum, node.tensor(x), dim)


@lowering("mean.dim", "mean.default")
def mean(node: Node, x: TensorValue, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorValue:
    """Mean."""
    return _reduce(node, ops.mean, node.tensor(x), dim)


@lowering("var.correction", "var_mean.correction")
def var(node: Node, x: TensorValue, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Variance, and the mean."""
    wide = cast(x, DType.float32) if x.dtype.size_in_bytes < 4 else x
    axes = _axes(x.rank, dim)
    center = wide
    for axis in axes:
        center = ops.mean(center, axis=axis)
    total = (wide - center) * (wide - center)
    for axis in axes:
        total = ops.sum(total, axis=axis)
    sizes = node.argument(0).shape
    count: Any = 1
    for axis in axes:
        count = count * sizes[axis]
    freedom = node.tensor(count, wide.dtype) - node.tensor(1 if correction is None else correction, wide.dtype)
    zero = ops.constant(0, wide.dtype, wide.device)
    variance = ops.div(total, ops.max(freedom, zero))
    shaped = [ops.reshape(cast(v, x.dtype), node.type_of(0).shape) for v in (variance, center)]
    return shaped if isinstance(node.fake, tuple | list) else shaped[0]


@lowering("amax.default", "amin.default")
def amax(node: Node, x: TensorValue, dim: Sequence[int] = (), keepdim: bool = False) -> TensorValue:
    """Maximum or minimum over dimensions; NaN wins."""
    return lower_row(node, x, list(dim), keepdim)


@lowering("max.default", "min.default")
def max_(node: Node, x: TensorValue) -> TensorValue:
    """Maximum or minimum of all elements."""
    name = node.name
    return custom_mojo_ops.reduce(f"a{name}", x, range(x.rank), [])


@lowering("any.dims", "all.dims", "any.default", "all.default")
def any_(node: Node, x: TensorValue, dim: Any = None, keepdim: bool = False) -> TensorValue:
    """Whether any or every element is not zero."""
    is_any = node.name == "any"
    truth = cast(cast(x, DType.bool), DType.int32)
    function = ops.max if is_any else ops.min
    for axis in _axes(x.rank, dim) if x.rank else []:
        truth = function(truth, axis=axis)
    return ops.reshape(cast(truth, DType.bool), node.shape)


@lowering("nansum.default")
def nansum(node: Node, x: TensorValue, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorValue:
    """Sum without NaN."""
    value = node.tensor(x)
    present = ops.where(ops.is_nan(value), node.tensor(0), value) if value.dtype.is_float() else value
    return _reduce(node, ops.sum, present, dim)


@lowering("prod.default")
def prod(node: Node, x: TensorValue, *, dtype: Any = None) -> TensorValue:
    """Product of all elements."""
    return custom_mojo_ops.product(ops.reshape(node.tensor(x), [-1]), 0, [])
