"""Indexing ops whose outputs torch does not allocate."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_mojo_eager.ops.registry import launch, op


def _wrap(dim: int, ndim: int) -> int:
    count = max(ndim, 1)
    if not -count <= dim < count:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})")
    return dim % count


@op("aten::index_select")
def index_select(self: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """Slices at the positions that a vector of int64 or int32 gives."""
    dim = _wrap(dim, self.ndim)
    if index.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("index_select(): Expected dtype int32 or int64 for index")
    shape = list(self.shape)
    if shape:
        shape[dim] = index.numel()
    elif index.numel() != 1:
        raise RuntimeError(f"index_select(): Index to scalar can have only 1 value, got {index.numel()} value(s)")
    result = self.new_empty(shape)
    launch(
        "indexing.gather_scatter:gather",
        [result, self, index],
        [dim],
        dtype=self.dtype,
        index=index.dtype,
        indices="slices",
    )
    return result


@op("aten::embedding_dense_backward")
def embedding_dense_backward(
    grad_output: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> torch.Tensor:
    """The gradient [num_weights, columns] of an embedding table."""
    columns = grad_output.shape[-1]
    result = grad_output.new_empty((num_weights, columns))
    launch(
        "embedding:embedding_backward",
        [result, grad_output.reshape(-1, columns).contiguous(), indices.reshape(-1).contiguous()],
        [padding_idx, scale_grad_by_freq],
        dtype=grad_output.dtype,
        index=indices.dtype,
    )
    return result


Indices = Sequence["torch.Tensor | None"]


def _expand_masks(self: torch.Tensor, indices: Indices) -> list[torch.Tensor | None]:
    """Replaces masks by the positions where they are set, and brings all indices to int64."""
    expanded: list[torch.Tensor | None] = []
    for index in indices:
        if index is None:
            expanded.append(None)
        elif index.dtype in (torch.bool, torch.uint8):
            first = len(expanded)
            for d, size in enumerate(index.shape):
                if first + d >= self.ndim or size != self.shape[first + d]:
                    raise IndexError(
                        f"The shape of the mask {list(index.shape)} at index {d} does not match the shape of the "
                        f"indexed tensor {list(self.shape)} at index {first + d}"
                    )
            expanded.extend(index.to(self.device).nonzero().unbind(1))
        elif index.dtype in (torch.int64, torch.int32):
            expanded.append(index.to(self.device, torch.int64))
        else:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    if len(expanded) > self.ndim:
        raise IndexError(f"too many indices for tensor of dimension {self.ndim} (got {len(expanded)})")
    return expanded


def _index_views(self: torch.Tensor, indices: Indices) -> tuple[torch.Tensor, list[torch.Tensor], list[int], list[int]]:
    """Views of the indexed tensor and of the indices with the sizes of the result, and the kernel's scalars.

    Returns:
        The tensor with stride 0 along the dimensions that the indices span, the indices, the sizes, the scalars.
    """
    expanded = _expand_masks(self, indices)
    indexed = [d for d, index in enumerate(expanded) if index is not None]
    tensors = [index for index in expanded if index is not None]
    try:
        shape = torch.broadcast_shapes(*(index.shape for index in tensors))
    except RuntimeError:
        shapes = ", ".join(str(list(index.shape)) for index in tensors)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None
    # The indices' dimensions replace the indexed ones where those are neighbours, else they come first.
    adjacent = indexed == list(range(indexed[0], indexed[-1] + 1)) if indexed else True
    before = [d for d in range(indexed[0] if adjacent and indexed else 0) if d not in indexed]
    after = [d for d in range(self.ndim) if d not in indexed and d not in before]
    sizes = [self.shape[d] for d in before] + list(shape) + [self.shape[d] for d in after]
    strides = [self.stride(d) for d in before] + [0] * len(shape) + [self.stride(d) for d in after]
    view = self.as_strided(sizes, strides, self.storage_offset())
    views = []
    for index in tensors:
        spread = index.expand(shape)
        steps = [0] * len(before) + list(spread.stride()) + [0] * len(after)
        views.append(spread.as_strided(sizes, steps, spread.storage_offset()))
    scalars = [word for d in indexed for word in (d, self.shape[d], self.stride(d))]
    for d, size in enumerate(self.shape):
        if size == 0 and d in indexed and 0 not in sizes:
            raise IndexError(f"index is out of bounds for dimension {d} with size 0")
    return view, views, sizes, scalars


@op("aten::index.Tensor")
def index(self: torch.Tensor, indices: Indices) -> torch.Tensor:
    """Elements at positions that masks and integer tensors give; None keeps a dimension."""
    view, views, sizes, scalars = _index_views(self, indices)
    result = self.new_empty(sizes)
    if not views:
        return result.copy_(view)
    launch("indexing.advanced:index", [result, view, *views], scalars, op="get", dtype=self.dtype, count=len(views))
    return result


@op("aten::_index_put_impl_")
def index_put_(
    self: torch.Tensor, indices: Indices, values: torch.Tensor, accumulate: bool = False, unsafe: bool = False
) -> torch.Tensor:
    """Writes values, which broadcast, at positions that masks and integer tensors give, or adds them there."""
    if values.dtype != self.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, "
            f"got {self.dtype} for the destination and {values.dtype} for the source."
        )
    given = [index for index in indices if index is not None]
    if len(given) == 1 and given[0].dtype == torch.bool and values.numel() == 1 and not accumulate:
        mask = given[0].reshape(*given[0].shape, *[1] * (self.ndim - given[0].ndim))
        if indices[0] is given[0] and given[0].shape == self.shape[: given[0].ndim]:
            return self.masked_fill_(mask, values.reshape(()))
    view, views, sizes, scalars = _index_views(self, indices)
    try:
        spread = values.to(self.device).expand(sizes)
    except RuntimeError:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
            f"shape {sizes}"
        ) from None
    if not views:
        self.add_(spread) if accumulate else self.copy_(spread)
        return self
    launch(
        "indexing.advanced:index",
        [spread, view, *views],
        scalars,
        op="add" if accumulate else "set",
        dtype=self.dtype,
        count=len(views),
    )
    return self


@op("aten::nonzero")
def nonzero(self: torch.Tensor) -> torch.Tensor:
    """Coordinates [count, dimensions] of the elements that are not zero; the host waits for the count."""
    count = int(torch.count_nonzero(self).item())
    result = torch.empty((count, self.ndim), dtype=torch.int64, device=self.device)
    if count and self.ndim:
        launch("indexing.masks:nonzero", [result, self], dtype=self.dtype)
    return result


@op("aten::masked_select")
def masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The elements where a mask is set, as a vector; the host waits for their number."""
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    tensor, flags = torch.broadcast_tensors(self, mask)
    result = self.new_empty(int(torch.count_nonzero(flags).item()))
    if result.numel():
        launch("indexing.masks:masked_select", [result, flags, tensor], dtype=self.dtype)
    return result


@op("aten::masked_scatter_")
def masked_scatter_(self: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Writes consecutive elements of a source where a mask is set."""
    if source.dtype != self.dtype:
        raise RuntimeError("masked_scatter: expected self and source to have same dtypes")
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_scatter_ only supports boolean masks")
    flags = mask.expand(self.shape)
    if source.numel() < self.numel() and source.numel() < int(torch.count_nonzero(flags).item()):
        raise RuntimeError("masked_scatter: expected the source to have at least as many elements as the mask has ones")
    if self.numel():
        launch("indexing.masks:masked_select", [source.reshape(-1), flags, self], dtype=self.dtype, scatters="yes")
    return self


@op("aten::take")
def take(self: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Elements at positions of the flattened tensor."""
    return self.reshape(-1)[index]


@op("aten::index_fill_.int_Tensor")
def index_fill_(self: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Writes the value of a 0-dim tensor at given positions of a dimension."""
    if value.ndim != 0:
        raise RuntimeError(f"index_fill_ only supports a 0-dimensional value tensor, but got {value.ndim} dimension(s)")
    return self.index_fill_(dim, index, value.item())


@op("aten::flip")
def flip(self: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Reverses dimensions."""
    flipped = [_wrap(d, self.ndim) for d in dims]
    if len(set(flipped)) != len(flipped):
        raise RuntimeError(f"dim {flipped[-1]} appears multiple times in the list of dims")
    result = self.clone()
    for d in flipped if self.ndim else []:
        positions = torch.arange(self.shape[d] - 1, -1, -1, device=self.device)
        result = result.index_select(d, positions)
    return result


@op("aten::roll")
def roll(self: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """Rotates dimensions, or the flattened tensor."""
    if not dims and len(shifts) == 1:
        return self.reshape(-1).roll(shifts[0], 0).reshape(self.shape)
    if len(shifts) != len(dims):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    result = self.clone()
    for shift, dim in zip(shifts, dims, strict=True):
        size = self.shape[_wrap(dim, self.ndim)]
        if size and shift % size:
            start = size - shift % size
            result = torch.cat([result.narrow(dim, start, size - start), result.narrow(dim, 0, start)], dim)
    return result


def _neutral(reduce: str, dtype: torch.dtype) -> int | float | bool:
    """The value that changes nothing when it is combined."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    largest = reduce == "amin"
    if dtype.is_floating_point:
        return float("inf") if largest else float("-inf")
    if dtype == torch.bool:
        return largest
    limits = torch.iinfo(dtype)
    return limits.max if largest else limits.min


@op("aten::scatter_reduce.two_out")
def scatter_reduce(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: torch.Tensor,
) -> torch.Tensor:
    """Combines elements along a dimension with those that are there, or only with one another."""
    kernels = {"sum": "add", "mean": "add", "prod": "multiply", "amax": "amax", "amin": "amin"}
    if reduce not in kernels:
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    start = self if include_self else self.scatter(dim, index, _neutral(reduce, self.dtype))
    launch(
        "indexing.gather_scatter:scatter",
        [out, start, index, src],
        [dim],
        dtype=self.dtype,
        op=kernels[reduce],
        index=index.dtype,
        indices="elements",
        source="tensor",
    )
    if reduce == "mean":
        counts = torch.ones_like(self) if include_self else torch.zeros_like(self)
        counts = counts.scatter_add(dim, index, torch.ones_like(src)).clamp_(min=1)
        out.div_(counts, rounding_mode=None if self.is_floating_point() else "floor")
    return out
