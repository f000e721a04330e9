"""Indexing ops whose outputs torch does not allocate."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mojo_runtime.aten.table import ALL, MOVED
from torch_mojo_eager.ops.registry import launch, op

_COMBINERS = {"sum": "add", "mean": "add", "prod": "multiply", "amax": "amax", "amin": "amin"}
_SCATTER = "indexing.gather_scatter:scatter[dtype={{0}},index=int64,indices={},op={},source=tensor]"
KERNELS = (
    ("unfold:unfold_backward[dtype={0}]", (ALL,)),
    ("indexing.masks:nonzero[dtype={0}]", (ALL,)),
    ("indexing.masks:masked_select[dtype={0}]", (MOVED,)),
    ("indexing.masks:masked_select[dtype={0},scatters=yes]", (MOVED,)),
    *(
        (_SCATTER.format(indices, action), (ALL,))
        for indices in ("elements", "slices")
        for action in sorted(set(_COMBINERS.values()))
    ),
)


@op("aten::nonzero")
def nonzero(self: torch.Tensor) -> torch.Tensor:
    """Coordinates [count, dimensions] of the elements that are not zero; the host waits for the count."""
    if self.is_complex():
        self = self != 0
    count = int(torch.count_nonzero(self).item())
    # Each coordinate contiguous, as on CPUs: indexing reads them one by one.
    result = torch.empty((self.ndim, count), dtype=torch.int64, device=self.device).t()
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


def _combine(
    out: torch.Tensor,
    start: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    indices: str,
) -> None:
    """Writes a copy of `start` combined with elements or slices of a source; for means their sum."""
    launch(
        "indexing.gather_scatter:scatter",
        [out, start, index, source],
        [dim],
        dtype=out.dtype,
        op=_COMBINERS[reduce],
        index=index.dtype,
        indices=indices,
        source="tensor",
    )


def _divide(out: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Makes means of sums; what nothing was added to stays."""
    return out.div_(counts.clamp_(min=1), rounding_mode=None if out.is_floating_point() else "floor")


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
    if reduce not in _COMBINERS:
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    start = self if include_self else self.scatter(dim, index, _neutral(reduce, self.dtype))
    _combine(out, start, dim, index, src, reduce, "elements")
    if reduce == "mean":
        counts = torch.full_like(self, include_self)
        _divide(out, counts.scatter_add(dim, index, torch.ones_like(src)))
    return out


@op("aten::index_reduce.out")
def index_reduce(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: torch.Tensor,
) -> torch.Tensor:
    """Combines slices at given positions of a dimension with those that are there, or only with one another."""
    if reduce not in _COMBINERS or reduce == "sum":
        raise RuntimeError(f"reduce argument must be either prod, mean, amax or amin, got {reduce}")
    start = self if include_self else self.index_fill(dim, index, _neutral(reduce, self.dtype))
    _combine(out, start, dim, index, source, reduce, "slices")
    if reduce == "mean":
        counts = torch.full_like(self, include_self)
        _divide(out, counts.index_add(dim, index, torch.ones_like(source)))
    return out


@op("aten::put_")
def put_(self: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """Writes elements at positions of the flattened tensor, or adds them there."""
    if index.dtype != torch.int64:
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {index.dtype}")
    if self.dtype != source.dtype:
        raise RuntimeError(
            f"put_(): self and source expected to have the same dtype, but got self.dtype = {self.dtype} and "
            f"source.dtype = {source.dtype}"
        )
    if index.numel() != source.numel():
        raise RuntimeError(
            f"put_(): Expected source and index to have the same number of elements, but got source.numel() = "
            f"{source.numel()}, index.numel() = {index.numel()}"
        )
    if self.numel() == 0 and index.numel():
        raise IndexError("put_(): Tried to put elements into an empty tensor")
    flat = self.reshape(-1)
    flat.index_put_((index.reshape(-1),), source.reshape(-1), accumulate)
    if flat.data_ptr() != self.data_ptr():
        self.copy_(flat.view(self.shape))
    return self


@op("aten::nonzero_static")
def nonzero_static(self: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    """Coordinates [size, dimensions] of the first elements that are not zero; rows beyond them hold a fill value."""
    if size < 0:
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    found = nonzero(self)[:size]
    result = torch.full((size, self.ndim), fill_value, dtype=torch.int64, device=self.device)
    result[: found.shape[0]].copy_(found)
    return result


def _triangle_indices(
    upper: bool,
    row: int,
    col: int,
    offset: int,
    dtype: torch.dtype | None,
    device: torch.device | None,
) -> torch.Tensor:
    if row < 0 or col < 0:
        raise RuntimeError(f"{'row' if row < 0 else 'col'} must be non-negative, got{min(row, col)}")
    ones = torch.ones((row, col), dtype=torch.bool, device=device)
    found = nonzero(ones.triu(offset) if upper else ones.tril(offset))
    return found.t().contiguous().to(dtype or torch.int64)


@op("aten::tril_indices")
def tril_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """Coordinates [2, count] of a matrix's lower triangle, row by row."""
    return _triangle_indices(False, row, col, offset, dtype, device)


@op("aten::triu_indices")
def triu_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """Coordinates [2, count] of a matrix's upper triangle, row by row."""
    return _triangle_indices(True, row, col, offset, dtype, device)


@op("aten::unfold_backward")
def unfold_backward(grad_in: torch.Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int) -> torch.Tensor:
    """Gradient of a view of overlapping slices."""
    if grad_in.is_complex():
        parts = [unfold_backward(part, input_sizes, dim, size, step) for part in (grad_in.real, grad_in.imag)]
        return torch.complex(*parts)
    result = grad_in.new_empty(input_sizes)
    launch("unfold:unfold_backward", [result, grad_in], [dim, size, step], dtype=grad_in.dtype)
    return result


_REDUCTIONS = {"add": "sum", "multiply": "prod"}


def _scatter_combining(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str
) -> torch.Tensor:
    if reduce not in _REDUCTIONS:
        raise RuntimeError("reduce argument must be either add or multiply.")
    return torch.scatter_reduce(self, dim, index, src, _REDUCTIONS[reduce])


@op("aten::scatter.reduce_out")
def scatter_of_tensor(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, reduce: str, out: torch.Tensor
) -> torch.Tensor:
    """Adds or multiplies elements along a dimension."""
    return out.copy_(_scatter_combining(self, dim, index, src, reduce))


@op("aten::scatter.value_reduce_out")
def scatter_of_number(
    self: torch.Tensor, dim: int, index: torch.Tensor, value: float, *, reduce: str, out: torch.Tensor
) -> torch.Tensor:
    """Adds or multiplies a number along a dimension."""
    src = torch.full(index.shape, value, dtype=self.dtype, device=self.device)
    return out.copy_(_scatter_combining(self, dim, index, src, reduce))


@op("aten::narrow_copy.out")
def narrow_copy_out(self: torch.Tensor, dim: int, start: int, length: int, *, out: torch.Tensor) -> torch.Tensor:
    """A copy of a part of a dimension."""
    part = self.narrow(dim, start, length)
    return out.resize_(part.shape).copy_(part)
