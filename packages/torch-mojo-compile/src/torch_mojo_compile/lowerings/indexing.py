"""Indexing with tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.lowerings.table import Node, cast, gather, lowering


@lowering("index_select.default")
def index_select(node: Node, x: TensorValue, dim: int, index: TensorValue) -> TensorValue:
    """Slices at given positions of a dimension."""
    return custom_mojo_ops.gather_slices(x, dim % max(x.rank, 1), index)


_COMBINERS = {
    "sum": "add",
    "add": "add",
    "mean": "add",
    "prod": "multiply",
    "multiply": "multiply",
    "amax": "amax",
    "amin": "amin",
}


def _neutral(node: Node, reduce: str) -> TensorValue:
    """The number that changes nothing when it is combined."""
    dtype = node.result().dtype
    if reduce in ("sum", "mean", "prod"):
        return node.tensor(int(reduce == "prod"))
    if dtype.is_floating_point:
        return node.tensor(math.inf if reduce == "amin" else -math.inf)
    if dtype == torch.bool:
        return node.tensor(reduce == "amin")
    limits = torch.iinfo(dtype)
    return node.tensor(limits.max if reduce == "amin" else limits.min)


@lowering("scatter_reduce.two", "scatter.reduce", "scatter.value_reduce")
def scatter_reduce(
    node: Node,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    source: Any,
    reduce: str,
    include_self: bool = True,
) -> TensorValue:
    """A tensor whose elements at positions of a dimension are combined with those of a source, or with a number."""
    if reduce not in _COMBINERS:
        raise ValueError(f"{node.fx.target}: reduce must be one of {', '.join(_COMBINERS)}, got {reduce!r}")
    dim %= max(x.rank, 1)
    if not isinstance(source, TensorValue):
        source = ops.broadcast_to(node.tensor(source), index.shape)

    def combined(start: TensorValue, addend: TensorValue, op: Any) -> TensorValue:
        return custom_mojo_ops.scatter_elements(start, dim, index, addend, op)

    def at_index(value: TensorValue) -> TensorValue:
        return ops.broadcast_to(value, index.shape)

    start = x if include_self else combined(x, at_index(_neutral(node, reduce)), "set")
    result = combined(start, source, _COMBINERS[reduce])
    if reduce != "mean":
        return result
    counts = combined(ops.broadcast_to(node.tensor(int(include_self)), x.shape), at_index(node.tensor(1)), "add")
    # Where nothing was added the element stays.
    counts = ops.max(counts, node.tensor(1))
    return ops.div(result, counts) if node.dtype.is_float() else ops.floor_div(result, counts)


class _Selection:
    """What a list of index tensors selects of a tensor: torch's advanced indexing as positions in a flat table.

    The indexed dimensions come first, the others after them: the table has a row for each combination of the former.
    """

    def __init__(self, node: Node, x: TensorValue, indices: Sequence[TensorValue | None]) -> None:
        fake = node.argument(0)
        self.node = node
        self.indexed = [d for d, index in enumerate(indices) if index is not None]
        self.kept = [d for d in range(x.rank) if d not in self.indexed]
        tensors = [cast(index, DType.int64) for index in indices if index is not None]
        if any(index is not None and index.dtype == DType.bool for index in indices):
            raise NotImplementedError("indexing with a mask gives a size that depends on data")
        self.sizes = [fake.shape[d] for d in self.indexed]
        self.kept_sizes = [fake.shape[d] for d in self.kept]
        self.table = math.prod(self.sizes)
        self.row = math.prod(self.kept_sizes)
        linear: TensorValue | None = None
        for tensor, size in zip(tensors, self.sizes, strict=True):
            length = node.tensor(size, DType.int64)
            wrapped = ops.where(ops.greater(node.tensor(0, DType.int64), tensor), tensor + length, tensor)
            linear = wrapped if linear is None else linear * length + wrapped
        assert linear is not None
        self.positions = linear
        self.neighbours = self.indexed[-1] - self.indexed[0] + 1 == len(self.indexed)

    def to_rows(self, x: TensorValue) -> TensorValue:
        """A tensor as the table [table, row]."""
        moved = ops.permute(x, [*self.indexed, *self.kept])
        return ops.reshape(moved, [self.node.symbols.dim(self.table), self.node.symbols.dim(self.row)])

    def from_rows(self, rows: TensorValue, shape: Sequence[Dim]) -> TensorValue:
        """The inverse of `to_rows`, for a tensor of a shape."""
        order = [*self.indexed, *self.kept]
        moved = ops.reshape(rows, [shape[d] for d in order])
        return ops.permute(moved, [order.index(d) for d in range(len(order))])

    def place(self) -> int:
        """The dimension of the result where those of the indices begin."""
        return self.indexed[0] if self.neighbours else 0

    def order(self) -> list[int]:
        """The result's dimensions, seen from [dimensions of the indices, kept dimensions]."""
        count, first = self.positions.rank, self.place()
        kept = list(range(count, count + len(self.kept)))
        return [*kept[:first], *range(count), *kept[first:]]


@lowering("index.Tensor", "_unsafe_index.Tensor")
def index(node: Node, x: TensorValue, indices: Sequence[TensorValue | None]) -> TensorValue:
    """Elements at positions that tensors give."""
    chosen = _Selection(node, x, indices)
    rows = gather(chosen.to_rows(x), chosen.positions, axis=0)
    kept = [node.symbols.dim(size) for size in chosen.kept_sizes]
    shaped = ops.reshape(rows, [*chosen.positions.shape, *kept])
    return ops.permute(shaped, chosen.order())


@lowering("index_put.default", "_unsafe_index_put.default")
def index_put(
    node: Node, x: TensorValue, indices: Sequence[TensorValue | None], values: TensorValue, accumulate: bool = False
) -> TensorValue:
    """A tensor with the elements at given positions replaced, or added to."""
    if any(index is not None and index.dtype == DType.bool for index in indices):
        return _put_masked(node, x, indices, values, accumulate)
    chosen = _Selection(node, x, indices)
    order = chosen.order()
    kept = [node.symbols.dim(size) for size in chosen.kept_sizes]
    natural = [*chosen.positions.shape, *kept]
    spread = ops.broadcast_to(node.tensor(values), [natural[d] for d in order])
    moved = ops.permute(spread, [order.index(d) for d in range(len(order))])
    row = node.symbols.dim(chosen.row)
    count = Dim(1)
    for size in chosen.positions.shape:
        count = count * size
    source = ops.reshape(moved, [count, row])
    positions = ops.reshape(chosen.positions, [count])
    table = chosen.to_rows(node.tensor(x))
    result = custom_mojo_ops.scatter_rows(table, positions, source, accumulate=accumulate)
    return chosen.from_rows(result, node.shape)


def _put_masked(node: Node, x: TensorValue, indices: Any, values: TensorValue, accumulate: bool) -> TensorValue:
    """A number where a mask that spans the first dimensions is set."""
    mask = indices[0]
    if mask is None or any(index is not None for index in indices[1:]) or node.argument(2).numel() != 1:
        raise NotImplementedError("index_put with a mask and several values depends on data")
    mask = ops.reshape(mask, [*mask.shape, *[1] * (x.rank - mask.rank)])
    value = ops.reshape(node.tensor(values), [])
    return ops.where(mask, x + value if accumulate else value, x)


@lowering("_assert_async.msg", "_assert_async.default", "_assert_scalar.default")
def assert_async(node: Node, *_: Any) -> None:
    """A check of data, which a graph does not make: kernels check indices themselves."""
