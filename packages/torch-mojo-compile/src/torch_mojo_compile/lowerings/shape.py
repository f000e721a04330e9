"""Ops that move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from max.dtype import DType
from max.graph import Dim, StaticDim, TensorValue, ops

from torch_mojo_compile import custom_mojo_ops, values
from torch_mojo_compile.lowerings.table import Node, gather, lowering


@lowering(
    "view.default",
    "view_copy.default",
    "reshape.default",
    "_unsafe_view.default",
    "squeeze.dim",
    "squeeze.dims",
    "squeeze.default",
)
def reshape(node: Node, x: TensorValue, *_: Any) -> TensorValue:
    """The same elements with other sizes."""
    return ops.reshape(x, node.shape)


@lowering("permute.default", "permute_copy.default")
def permute(node: Node, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    """Dimensions in another order."""
    return values.permute(x, dims)


@lowering("t.default")
def t(node: Node, x: TensorValue) -> TensorValue:
    """The transposed matrix."""
    return x if x.rank < 2 else values.permute(x, [1, 0])


@lowering("transpose.int")
def transpose(node: Node, x: TensorValue, dim0: int, dim1: int) -> TensorValue:
    """Two dimensions swapped."""
    order = list(range(x.rank))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return values.permute(x, order)


@lowering("unsqueeze.default", "unsqueeze_copy.default")
def unsqueeze(node: Node, x: TensorValue, dim: int) -> TensorValue:
    """A new dimension of size 1."""
    return values.unsqueeze(x, dim)


@lowering(
    "alias.default",
    "alias_copy.default",
    "detach.default",
    "detach_copy.default",
    "lift_fresh_copy.default",
    "lift_fresh.default",
    "clone.default",
    "contiguous.default",
)
def same(node: Node, x: TensorValue, *_: Any, **__: Any) -> TensorValue:
    """The same value; graph values never change, so that a copy needs no memory of its own."""
    return x


@lowering("expand.default", "expand_copy.default")
def expand(node: Node, x: TensorValue, *_: Any, **__: Any) -> TensorValue:
    """Repeats dimensions of size 1."""
    return ops.broadcast_to(x, node.shape)


@lowering("repeat.default")
def repeat(node: Node, x: TensorValue, repeats: Sequence[Any]) -> TensorValue:
    """The tensor several times along its dimensions."""
    rank = len(repeats)
    shape = [Dim(1)] * (rank - x.rank) + list(x.shape)
    spread = [d for size in shape for d in (Dim(1), size)]
    target = [d for count, size in zip(repeats, shape, strict=True) for d in (node.symbols.dim(count), size)]
    return ops.reshape(ops.broadcast_to(ops.reshape(x, spread), target), node.shape)


@lowering("cat.default")
def cat(node: Node, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    """Tensors one after the other along a dimension."""
    rank = node.result().dim()
    # torch lets empty vectors stand among tensors of any rank.
    parts = [node.tensor(x) for x in tensors if x.rank == rank]
    return parts[0] if len(parts) == 1 else ops.concat(parts, dim % rank)


@lowering("stack.default")
def stack(node: Node, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    """Tensors along a new dimension."""
    rank = node.result().dim()
    return ops.concat([ops.unsqueeze(node.tensor(x), dim % rank) for x in tensors], dim % rank)


def _narrow(node: Node, x: TensorValue, dim: int, start: Any, length: Any, step: int = 1) -> TensorValue:
    """Elements start, start + step, ... along a dimension; `start` is not negative and may be symbolic."""
    size = node.symbols.dim(length)
    if step == 1 and isinstance(start, int) and start == 0 and size == x.shape[dim]:
        return x
    index: list[Any] = [slice(None)] * x.rank
    if isinstance(start, int) and isinstance(size, StaticDim) and isinstance(x.shape[dim], StaticDim):
        index[dim] = slice(start, start + (int(size) - 1) * step + 1 if int(size) else start, step)
        return x[tuple(index)]
    first = TensorValue(node.symbols.dim(start)) if not isinstance(start, int) else node.tensor(start, DType.int64)
    first = first.to(x.device)
    last = first + TensorValue(size).to(x.device) * node.tensor(step, DType.int64)
    index[dim] = (slice(first, last, step), size)
    return x[tuple(index)]


@lowering("slice.Tensor", "slice_copy.Tensor")
def slice_(node: Node, x: TensorValue, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> TensorValue:
    """A range of a dimension."""
    dim %= x.rank
    fake = node.argument(0)
    size = fake.shape[dim]
    begin = 0 if start is None else start
    if isinstance(begin, int) and begin < 0:
        begin = size + begin if not isinstance(size, int) else max(0, size + begin)
    if isinstance(begin, int) and isinstance(size, int):
        begin = min(begin, size)
    return _narrow(node, x, dim, begin, node.result().shape[dim], step)


@lowering("select.int", "select_copy.int")
def select(node: Node, x: TensorValue, dim: int, index: Any) -> TensorValue:
    """One position of a dimension."""
    dim %= x.rank
    size = node.argument(0).shape[dim]
    if isinstance(index, int) and index < 0:
        index = size + index
    chosen = _narrow(node, x, dim, index, 1)
    return ops.reshape(chosen, node.shape)


@lowering("split_with_sizes.default", "split_with_sizes_copy.default")
def split_with_sizes(node: Node, x: TensorValue, sizes: Sequence[Any], dim: int = 0) -> list[TensorValue]:
    """Parts of given sizes along a dimension."""
    dim %= x.rank
    parts, start = [], 0
    for size in sizes:
        parts.append(_narrow(node, x, dim, start, size))
        start = start + size
    return parts


@lowering("split.Tensor")
def split(node: Node, x: TensorValue, size: Any, dim: int = 0) -> list[TensorValue]:
    """Parts of one size along a dimension."""
    return split_with_sizes(node, x, [part.shape[dim] for part in node.fake], dim)


@lowering("unbind.int", "unbind_copy.int")
def unbind(node: Node, x: TensorValue, dim: int = 0) -> list[TensorValue]:
    """Every position of a dimension."""
    dim %= x.rank
    shape = node.type_of(0).shape
    return [ops.reshape(_narrow(node, x, dim, i, 1), shape) for i in range(len(node.fake))]


@lowering("flip.default")
def flip(node: Node, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    """Dimensions backwards."""
    for dim in {d % x.rank for d in dims}:
        size = TensorValue(x.shape[dim]).to(x.device)
        one = node.tensor(1, DType.int64)
        positions = size - one - node.positions(x.shape[dim])
        x = gather(x, positions, axis=dim)
    return x


@lowering("diagonal.default", "diagonal_copy.default")
def diagonal(node: Node, x: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorValue:
    """The diagonal of two dimensions, as the last one."""
    dim1, dim2 = dim1 % x.rank, dim2 % x.rank
    kept = [d for d in range(x.rank) if d not in (dim1, dim2)]
    sizes = node.argument(0).shape
    columns = sizes[dim2]
    flat = ops.reshape(values.permute(x, [*kept, dim1, dim2]), [*(x.shape[d] for d in kept), -1])
    first = node.tensor(offset if offset >= 0 else -offset * columns, DType.int64)
    step = node.tensor(columns + 1, DType.int64)
    return gather(flat, first + node.positions(node.shape[-1]) * step, axis=len(kept))


def _memory_positions(node: Node, shape: Sequence[Dim], stride: Sequence[Any], offset: Any) -> TensorValue:
    """Where those of a strided tensor of a shape are among a contiguous tensor's elements."""
    position = node.tensor(offset or 0, DType.int64)
    for d, (length, step) in enumerate(zip(shape, stride, strict=True)):
        line = [Dim(1)] * len(shape)
        line[d] = length
        position = position + ops.reshape(node.positions(length), line) * node.tensor(step, DType.int64)
    return ops.broadcast_to(position, shape) if len(shape) else position


@lowering("as_strided.default", "as_strided_copy.default")
def as_strided(
    node: Node, x: TensorValue, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> TensorValue:
    """Elements at equal steps in the memory of a contiguous tensor."""
    _check_contiguous(node)
    positions = _memory_positions(node, node.shape, stride, storage_offset)
    return gather(ops.reshape(x, [-1]), positions, axis=0)


@lowering("as_strided_scatter.default", "prims.as_strided_scatter.default")
def as_strided_scatter(
    node: Node,
    x: TensorValue,
    source: TensorValue,
    size: Sequence[Any],
    stride: Sequence[Any],
    storage_offset: Any = None,
) -> TensorValue:
    """A contiguous tensor with the elements at equal steps in its memory replaced."""
    _check_contiguous(node)
    return _scatter(node, x, source, _memory_positions(node, node.symbols.dims(size), stride, storage_offset))


def _check_contiguous(node: Node) -> None:
    if not node.argument(0).is_contiguous():
        raise NotImplementedError(f"{node.fx.target} of a tensor that is not contiguous")


def _scatter(node: Node, x: TensorValue, source: TensorValue, positions: TensorValue) -> TensorValue:
    """A tensor with the elements at positions among all of its own replaced."""
    table = ops.reshape(node.tensor(x), [-1, 1])
    places, rows = ops.reshape(positions, [-1]), ops.reshape(node.tensor(source), [-1, 1])
    return ops.reshape(custom_mojo_ops.scatter_rows(table, places, rows), node.shape)


@lowering("diagonal_scatter.default")
def diagonal_scatter(
    node: Node, x: TensorValue, source: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorValue:
    """A tensor with a diagonal replaced."""
    stride = list(node.argument(0).contiguous().stride())
    rows, columns = stride[dim1], stride[dim2]
    kept = [stride[d] for d in range(x.rank) if d not in (dim1 % x.rank, dim2 % x.rank)]
    begin = offset * columns if offset >= 0 else -offset * rows
    shape = node.symbols.dims(node.argument(1).shape)
    return _scatter(node, x, source, _memory_positions(node, shape, [*kept, rows + columns], begin))


@lowering("copy.default")
def copy(node: Node, x: TensorValue, source: TensorValue, *_: Any) -> TensorValue:
    """A tensor's values in another one's sizes and dtype."""
    return ops.broadcast_to(node.tensor(source), node.shape)


@lowering("roll.default")
def roll(node: Node, x: TensorValue, shifts: Sequence[int], dims: Sequence[int] = ()) -> TensorValue:
    """Elements moved around a dimension."""
    shape = list(x.shape)
    if not dims:
        x, dims = ops.reshape(x, [-1]), [0]
    for shift, dim in zip(shifts, dims, strict=True):
        axis = dim % x.rank
        size = TensorValue(x.shape[axis]).to(x.device)
        moved = node.positions(x.shape[axis]) - node.tensor(shift, DType.int64)
        x = gather(x, ops.mod(ops.mod(moved, size) + size, size), axis=axis)
    return ops.reshape(x, shape)


@lowering("slice_scatter.default")
def slice_scatter(
    node: Node, x: TensorValue, source: TensorValue, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> TensorValue:
    """A tensor with a range of a dimension replaced."""
    dim %= x.rank
    size = node.result().shape[dim]
    length = node.argument(1).shape[dim]
    begin = 0 if start is None else start
    if isinstance(begin, int) and begin < 0:
        begin = size + begin
    if step == 1:
        parts = [node.tensor(source)]
        if not (isinstance(begin, int) and begin == 0):
            parts.insert(0, _narrow(node, node.tensor(x), dim, 0, begin))
        rest = size - begin - length
        if not (isinstance(rest, int) and rest == 0):
            parts.append(_narrow(node, node.tensor(x), dim, begin + length, rest))
        return parts[0] if len(parts) == 1 else ops.concat(parts, dim)
    positions = node.positions(node.symbols.dim(length)) * node.tensor(step, DType.int64)
    positions = positions + node.tensor(begin, DType.int64)
    shape = [Dim(1)] * x.rank
    shape[dim] = node.symbols.dim(length)
    index = ops.broadcast_to(ops.reshape(positions, shape), source.shape)
    return ops.scatter(node.tensor(x), node.tensor(source), index, axis=dim)


@lowering("select_scatter.default")
def select_scatter(node: Node, x: TensorValue, source: TensorValue, dim: int, index: Any) -> TensorValue:
    """A tensor with one position of a dimension replaced."""
    dim %= x.rank
    size = node.result().shape[dim]
    if isinstance(index, int) and index < 0:
        index = size + index
    parts = [ops.unsqueeze(node.tensor(source), dim)]
    if not (isinstance(index, int) and index == 0):
        parts.insert(0, _narrow(node, node.tensor(x), dim, 0, index))
    rest = size - index - 1
    if not (isinstance(rest, int) and rest == 0):
        parts.append(_narrow(node, node.tensor(x), dim, index + 1, rest))
    return parts[0] if len(parts) == 1 else ops.concat(parts, dim)
