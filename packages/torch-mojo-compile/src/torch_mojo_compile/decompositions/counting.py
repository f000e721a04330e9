"""Histograms and order statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mojo_runtime.aten import formulas
from torch_mojo_compile.decompositions.registry import decomposition


def _range(x: Tensor, low: float, high: float, margin: float) -> tuple[Tensor, Tensor]:
    """The limits of a range, as they are or those of the elements; one without an extent is one to either side."""
    first, last = x.new_full((), low), x.new_full((), high)
    if low == high and x.numel():
        first, last = x.amin(), x.amax()
    equal = first == last
    return torch.where(equal, first - margin, first), torch.where(equal, last + margin, last)


@decomposition("histc.default")
def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of `bins` equal parts of a range; without one, of that of the elements."""
    low, high = _range(x if x.is_floating_point() else x.double(), min, max, 1)
    counts: Tensor = formulas.histc(x, bins, low, high)
    return counts


def _edges(x: Tensor, bins: int, low: float | None, high: float | None) -> Tensor:
    """Equally spaced edges, as `linspace` counts them: from the nearer end."""
    if low is None or high is None:
        first, last = _range(x, 0, 0 if x.numel() else 1, 0.5)
    else:
        first, last = _range(x[:0], low, high, 0.5)
    step = (last - first) / bins
    places = torch.arange(bins + 1, dtype=x.dtype, device=x.device)
    return torch.where(places < (bins + 1) // 2, first + step * places, last - step * (bins - places))


@decomposition("_histogramdd_bin_edges.default")
def histogramdd_bin_edges(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    """Equally spaced edges of each dimension, over a range or the elements'."""
    points = x.reshape(-1, x.shape[-1])
    limits = [(None, None)] * len(bins) if range is None else list(zip(range[::2], range[1::2], strict=True))
    return [_edges(points[:, d], count, *limits[d]) for d, count in enumerate(bins)]


@decomposition("_histogramdd_from_bin_tensors.default")
def histogramdd_from_edges(
    x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    """A histogram of points over given edges of each dimension."""
    points = x.reshape(-1, x.shape[-1])
    counts: Tensor = formulas.histogram(points, bins, weight, density, torch.searchsorted)
    return counts


@decomposition("_histogramdd_from_bin_cts.default")
def histogramdd_from_counts(x: Tensor, bins: Sequence[int], **options: Any) -> Tensor:
    """A histogram of points over equally spaced edges of each dimension."""
    edges = histogramdd_bin_edges(x, bins, **options)
    options.pop("range", None)
    return histogramdd_from_edges(x, edges, **options)


@decomposition("histogram.bins_tensor")
def histogram_of_edges(x: Tensor, bins: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Sums of weights of elements between given edges, and the edges."""
    return histogramdd_from_edges(x.reshape(-1, 1), [bins], **options), bins.clone()


@decomposition("histogram.bin_ct")
def histogram_of_count(x: Tensor, bins: int = 100, **options: Any) -> tuple[Tensor, Tensor]:
    """Sums of weights of elements between equally spaced edges, and the edges."""
    points = x.reshape(-1, 1)
    (edges,) = histogramdd_bin_edges(points, [bins], **options)
    options.pop("range", None)
    return histogramdd_from_edges(points, [edges], **options), edges


def _of_all(x: Tensor, along: Any) -> Tensor:
    if x.numel() == 0:
        return x.new_full((), float("nan") if x.is_floating_point() else torch.iinfo(x.dtype).min)
    result: Tensor = along(x.reshape(-1), 0)[0]
    return result


@decomposition("median.default")
def median(x: Tensor) -> Tensor:
    """The lower median of all elements; NaN wins."""
    return _of_all(x, torch.median)


@decomposition("nanmedian.default")
def nanmedian(x: Tensor) -> Tensor:
    """The lower median of all elements that are not NaN."""
    return _of_all(x, torch.nanmedian)


@decomposition("mode.default")
def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent elements along a dimension, and its last position."""
    return formulas.mode(x, dim, keepdim)
