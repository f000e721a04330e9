"""What follows from sorting: order statistics, distinct elements, search."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mojo_runtime.aten import formulas
from mojo_runtime.aten.table import ALL, NUMERIC
from torch_mojo_eager.ops.registry import launch, op

KERNELS = (
    ("searching:searchsorted[dtype={0},out={1}]", (NUMERIC, ("int64", "int32"))),
    ("distinct:distinct[dtype={0}]", (ALL,)),
)


def _wrap(name: str, x: Tensor, dim: int) -> int:
    """The dimension from 0, which must have elements."""
    count = max(x.ndim, 1)
    if not -count <= dim < count:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})")
    if x.ndim and x.shape[dim] == 0:
        raise IndexError(f"{name}(): Expected reduction dim {dim % count} to have non-zero size.")
    return dim % count


def _median_of_all(x: Tensor, along: Callable[[Tensor, int], tuple[Tensor, Tensor]]) -> Tensor:
    if x.numel() == 0:
        return x.new_full((), float("nan") if x.is_floating_point() else torch.iinfo(x.dtype).min)
    return along(x.reshape(-1), 0)[0]


@op("aten::median")
def median(self: Tensor) -> Tensor:
    """The lower median of all elements; NaN wins."""
    return _median_of_all(self, torch.median)


@op("aten::nanmedian")
def nanmedian(self: Tensor) -> Tensor:
    """The lower median of all elements that are not NaN."""
    return _median_of_all(self, torch.nanmedian)


@op("aten::mode")
def mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent elements along a dimension, and its last position."""
    return formulas.mode(self, _wrap("mode", self, dim), keepdim)


@op("aten::mode.values")
def mode_out(
    self: Tensor, dim: int = -1, keepdim: bool = False, *, values: Tensor, indices: Tensor
) -> tuple[Tensor, Tensor]:
    """The same into given tensors; torch's own kernel asks for its devices by name."""
    results = mode(self, dim, keepdim)
    for out, result in zip((values, indices), results, strict=True):
        out.resize_(result.shape).copy_(result)
    return values, indices


# ---- distinct elements ---------------------------------------------------------------------------------------------


def _runs(
    changes: Tensor, order: Tensor | None, return_inverse: bool, return_counts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What runs of equal elements say.

    Args:
        changes: For each element whether it starts a run.
        order: Where the elements came from; None: from where they are.
        return_inverse: Whether the number of each element's run is asked for.
        return_counts: Whether the runs' lengths are asked for.

    Returns:
        The first element of each run, the inverse and the counts, empty where they are not asked for.
    """
    starts = changes.nonzero().squeeze(1)
    empty = starts.new_empty(0)
    inverse, counts = empty, empty
    if return_inverse:
        numbers = changes.cumsum(0) - 1
        inverse = numbers if order is None else torch.empty_like(numbers).scatter_(0, order, numbers)
    if return_counts:
        counts = torch.cat((starts[1:], starts.new_full((1,), changes.numel()))) - starts if starts.numel() else empty
    return starts, inverse, counts


def _changes(rows: Tensor) -> Tensor:
    """For each row whether it differs from the one before; the first does."""
    result = torch.ones(rows.shape[0], dtype=torch.bool, device=rows.device)
    if rows.shape[0] > 1:
        differs = rows[1:] != rows[:-1]
        result[1:].copy_(differs if rows.ndim == 1 else differs.flatten(1).any(1))
    return result


def _distinct(
    values: Tensor, order: Tensor | None, return_inverse: bool, return_counts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The first of each run of equal elements of a vector, and what `_runs` says; the host waits for their number."""
    values = values.contiguous()
    places = torch.int64
    found = torch.empty_like(values)
    counts = torch.empty_like(values, dtype=places) if return_counts else None
    inverse = torch.empty_like(values, dtype=places) if return_inverse else None
    number = values.new_empty(1, dtype=places)
    if values.numel() == 0:
        number.zero_()
    launch("distinct:distinct", [found, counts, inverse, number, values, order], dtype=values.dtype)
    size = int(number.item())
    empty = values.new_empty(0, dtype=places)
    return (
        found.narrow(0, 0, size).clone(),
        empty if inverse is None else inverse,
        empty if counts is None else counts.narrow(0, 0, size).clone(),
    )


@op("aten::_unique2")
def unique(
    self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct elements, sorted; the place of each element among them; how often each occurs."""
    values, order = torch.sort(self.reshape(-1), stable=True)
    found, inverse, counts = _distinct(values, order, return_inverse, return_counts)
    return found, inverse.view(self.shape) if return_inverse else inverse, counts


@op("aten::_unique")
def unique_without_counts(self: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    """The distinct elements, sorted, and the place of each element among them."""
    values, inverse, _ = unique(self, sorted, return_inverse, False)
    return values, inverse


def _check_unique_dim(name: str, self: Tensor, dim: int) -> int:
    count = max(self.ndim, 1)
    if not -count <= dim < count:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})")
    if self.ndim and self.shape[dim] != 0 and self.numel() == 0:
        raise RuntimeError(
            f"{name}: there are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
        )
    return dim % count


@op("aten::unique_dim_consecutive")
def unique_dim_consecutive(
    self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The slices along a dimension that differ from the one before; their numbers, their repetitions."""
    dim = _check_unique_dim("unique_consecutive", self, dim)
    starts, inverse, counts = _runs(_changes(self.movedim(dim, 0)), None, return_inverse, return_counts)
    return self.index_select(dim, starts), inverse, counts


@op("aten::unique_consecutive")
def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The elements or slices that differ from the one before; their numbers, their repetitions."""
    if dim is not None and self.ndim:
        return unique_dim_consecutive(self, dim, return_inverse, return_counts)
    found, inverse, counts = _distinct(self.reshape(-1), None, return_inverse, return_counts)
    return found, inverse.view(self.shape) if return_inverse else inverse, counts


@op("aten::unique_dim")
def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct slices along a dimension in lexicographic order; the place of each; how often each occurs."""
    dim = _check_unique_dim("unique_dim", self, dim)
    slices = self.movedim(dim, 0) if self.ndim else self.reshape(1)
    rows = slices.reshape(slices.shape[0], -1) if slices.numel() else slices.new_empty((slices.shape[0], 0))
    order = torch.arange(rows.shape[0], device=self.device)
    for column in reversed(range(rows.shape[1])):
        order = order[torch.sort(rows[:, column][order], stable=True).indices]
    starts, inverse, counts = _runs(_changes(rows[order]), order, return_inverse, return_counts)
    return (self.index_select(dim, order[starts]) if self.ndim else self.clone()), inverse, counts


# ---- search --------------------------------------------------------------------------------------------------------


def _check_search(sequence: Tensor, elements: Tensor, side: str | None, right: bool, sorter: Tensor | None) -> bool:
    """Raises what torch raises; returns whether elements go behind their equals."""
    if side not in (None, "left", "right"):
        raise RuntimeError(f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise RuntimeError(
            "torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True"
        )
    if sequence.ndim == 0 and elements.ndim == 0:
        raise RuntimeError(
            "torch.searchsorted(): input value can be a scalar only when boundaries tensor dimension is 1, but we got "
            "boundaries tensor dim(0)"
        )
    if sequence.ndim == 0:
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should have positive dimension, but got 0 dimension"
        )
    if elements.ndim == 0 and sequence.ndim != 1:
        raise RuntimeError(
            "torch.searchsorted(): input value can be a scalar only when boundaries tensor dimension is 1, but we got "
            f"boundaries tensor dim({sequence.ndim}) and input value's dim(0) numel(1)"
        )
    if sequence.ndim != 1 and sequence.shape[:-1] != elements.shape[:-1]:
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries "
            f"tensor and input value tensor must match, but we got boundaries tensor {list(sequence.shape)} and input "
            f"value tensor {list(elements.shape)}"
        )
    if sequence.dtype != elements.dtype:
        raise RuntimeError(
            "torch.searchsorted(): boundary tensor and input value tensor should have same dtype, but got boundary "
            f"tensor dtype {sequence.dtype} and input value tensor dtype {elements.dtype}"
        )
    if sorter is not None:
        if sorter.shape != sequence.shape:
            raise RuntimeError(
                "torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor "
                f"{list(sequence.shape)}and got sorter tensor {list(sorter.shape)}"
            )
        if sorter.dtype != torch.int64:
            raise RuntimeError(
                f"torch.searchsorted(): sorter must be a tensor of long dtype but got dtype {sorter.dtype}"
            )
        if sorter.numel() and not bool(((sorter >= 0) & (sorter < sequence.shape[-1])).all()):
            raise RuntimeError("torch.searchsorted(): sorter index out of range")
    return right or side == "right"


@op("aten::searchsorted.Tensor")
def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where elements would be inserted into sorted sequences."""
    right = _check_search(sorted_sequence, self, side, right, sorter)
    result = torch.empty(self.shape, dtype=torch.int32 if out_int32 else torch.int64, device=self.device)
    if result.numel():
        launch(
            "searching:searchsorted",
            [result, self, sorted_sequence, sorter],
            [right],
            dtype=self.dtype,
            out=result.dtype,
        )
    return result


@op("aten::searchsorted.Tensor_out")
def searchsorted_out(
    sorted_sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
    out: Tensor,
) -> Tensor:
    """Where elements would be inserted into sorted sequences, into a given tensor."""
    expected = torch.int32 if out_int32 else torch.int64
    if out.dtype != expected:
        raise RuntimeError(
            "torch.searchsorted(): output tensor's dtype is wrong, it can only be Int(int32) or Long(int64) depending "
            f"on whether out_int32 flag is True, but we got output tensor's dtype {out.dtype}"
        )
    result = searchsorted(sorted_sequence, self, out_int32=out_int32, right=right, side=side, sorter=sorter)
    return out.resize_(result.shape).copy_(result)


@op("aten::searchsorted.Scalar")
def searchsorted_scalar(
    sorted_sequence: Tensor,
    self: float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where a number would be inserted into a sorted sequence."""
    element = torch.full((), self, dtype=sorted_sequence.dtype, device=sorted_sequence.device)
    return searchsorted(sorted_sequence, element, out_int32=out_int32, right=right, side=side, sorter=sorter)


@op("aten::bucketize.Tensor")
def bucketize(self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The number of the bucket between sorted boundaries that each element lies in."""
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


@op("aten::bucketize.Tensor_out")
def bucketize_out(
    self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False, out: Tensor
) -> Tensor:
    """The number of the bucket between sorted boundaries that each element lies in, into a given tensor."""
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return searchsorted_out(boundaries, self, out_int32=out_int32, right=right, out=out)


@op("aten::bucketize.Scalar")
def bucketize_scalar(self: float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The number of the bucket between sorted boundaries that a number lies in."""
    return bucketize(
        torch.full((), self, dtype=boundaries.dtype, device=boundaries.device),
        boundaries,
        out_int32=out_int32,
        right=right,
    )


@op("aten::isin.Tensor_Tensor_out")
def isin(
    elements: Tensor, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False, out: Tensor
) -> Tensor:
    """Whether each element is among some others."""
    if elements.numel() == 0:
        return out
    dtype = torch.promote_types(elements.dtype, test_elements.dtype)
    if dtype == torch.bool:
        dtype = torch.uint8
    tested = torch.sort(test_elements.reshape(-1).to(dtype)).values
    found = torch.zeros_like(out)
    if tested.numel():
        wanted = elements.to(dtype)
        place = searchsorted(tested, wanted).clamp_(max=tested.numel() - 1)
        found = tested.take(place) == wanted
    return out.copy_(found.logical_not_() if invert else found)


@op("aten::isin.Tensor_Scalar_out")
def isin_scalar(
    elements: Tensor, test_element: float, *, assume_unique: bool = False, invert: bool = False, out: Tensor
) -> Tensor:
    """Whether each element is a number."""
    return torch.ne(elements, test_element, out=out) if invert else torch.eq(elements, test_element, out=out)


@op("aten::isin.Scalar_Tensor_out")
def isin_of_scalar(
    element: float, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False, out: Tensor
) -> Tensor:
    """Whether a number is among some elements."""
    found = (test_elements == element).any()
    return out.copy_(found.logical_not_() if invert else found)


@op("aten::repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """The position of each element as often as the element says; the host waits for the total unless it is given."""
    if repeats.ndim != 1:
        raise RuntimeError(f"repeat_interleave only accept 1D vector as repeat, got {repeats.ndim} dimensions")
    if repeats.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    if bool((repeats < 0).any()):
        raise RuntimeError("repeats can not be negative")
    ends = repeats.cumsum(0)
    size = int(ends[-1].item())
    if output_size is not None and output_size != size:
        raise RuntimeError(f"allocated size does not match required size: {output_size} and {size}")
    places = torch.arange(size, device=repeats.device)
    return searchsorted(ends, places, right=True).to(repeats.dtype)
