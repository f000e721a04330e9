"""Histograms: counts of elements between edges, and of integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mojo_runtime.aten import formulas
from torch_mojo_eager.ops.registry import op
from torch_mojo_eager.ops.sorting import searchsorted


def _limits(name: str, x: Tensor, low: float, high: float) -> tuple[float, float]:
    """The range of a histogram; the elements' where both limits are equal, which the host waits for."""
    if low > high:
        raise RuntimeError(f"{name}: max must be larger than min")
    if low == high and x.numel():
        low, high = (float(limit.item()) for limit in torch.aminmax(x))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"{name}: range of [{low}, {high}] is not finite")
    return (low - 1, high + 1) if low == high else (low, high)


@op("aten::histc")
def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of `bins` equal parts of a range."""
    if self.dtype == torch.bool or self.is_complex():
        raise NotImplementedError(f"aten::histc is not implemented on mojo for {self.dtype}; use .float()")
    if bins <= 0:
        raise RuntimeError("histc(): bins must be > 0")
    low, high = _limits("histc", self, float(min), float(max))
    counts: Tensor = formulas.histc(self, bins, low, high)
    return counts


def _histogram(points: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    result: Tensor = formulas.histogram(points, edges, weight, density, searchsorted)
    return result


def _check(name: str, points: Tensor, dimensions: int, weight: Tensor | None) -> None:
    if not points.is_floating_point():
        raise NotImplementedError(f'"{name}" not implemented for {points.dtype}; convert the input to float')
    if points.ndim < 2:
        raise RuntimeError(f"torch.{name}: input tensor should have at least 2 dimensions, but got {points.ndim}")
    if points.shape[-1] != dimensions:
        raise RuntimeError(
            f"torch.{name}: expected {points.shape[-1]} sequences of bin edges for a {points.shape[-1]}-dimensional "
            f"histogram, but got {dimensions}"
        )
    if weight is not None and weight.dtype != points.dtype:
        raise RuntimeError(
            f"torch.{name}: if weight tensor is provided, input tensor and weight tensor should have the same dtype, "
            f"but got input(={points.dtype}), and weight({weight.dtype})"
        )


@op("aten::_histogramdd_bin_edges")
def histogramdd_bin_edges(
    self: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    """Equally spaced edges of each dimension, over a range or the elements'."""
    _check("histogramdd", self, len(bins), weight)
    points = self.reshape(-1, self.shape[-1])
    if range is not None and len(range) != 2 * len(bins):
        raise RuntimeError(
            f"torch.histogramdd: for a {len(bins)}-dimensional histogram, range should have {2 * len(bins)} elements, "
            f"but got {len(range)}"
        )
    edges = []
    for d, count in enumerate(bins):
        if count <= 0:
            raise RuntimeError(f"torch.histogramdd(): bins must be > 0, but got {count} for dimension {d}")
        if range is not None:
            low, high = float(range[2 * d]), float(range[2 * d + 1])
            if low > high:
                raise RuntimeError(f"torch.histogramdd: min should not exceed max, but got min {low} max {high}")
            low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        elif points.numel():
            low, high = (float(limit.item()) for limit in torch.aminmax(points[:, d]))
            low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        else:
            low, high = 0.0, 1.0
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RuntimeError(f"torch.histogramdd: dimension {d}'s range [{low}, {high}] is not finite")
        edges.append(torch.linspace(low, high, count + 1, dtype=self.dtype, device=self.device))
    return edges


@op("aten::_histogramdd_from_bin_tensors")
def histogramdd_from_edges(
    self: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    """A histogram of points over given edges of each dimension."""
    _check("histogramdd", self, len(bins), weight)
    for d, edge in enumerate(bins):
        if edge.ndim != 1:
            raise RuntimeError(
                f"torch.histogramdd: bins tensor should have one dimension, but got {edge.ndim} for dimension {d}"
            )
        if edge.dtype != self.dtype:
            raise RuntimeError(
                f"torch.histogramdd: input tensor and bins tensors should have the same dtype, but got input with "
                f"dtype {self.dtype} and bins for dimension {d} with dtype {edge.dtype}"
            )
    return _histogram(self.reshape(-1, self.shape[-1]), bins, weight, density)


@op("aten::_histogramdd_from_bin_cts")
def histogramdd_from_counts(
    self: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    """A histogram of points over equally spaced edges of each dimension."""
    edges = histogramdd_bin_edges(self, bins, range=range, weight=weight, density=density)
    return _histogram(self.reshape(-1, self.shape[-1]), edges, weight, density)


@op("aten::histogram.bins_tensor")
def histogram_of_edges(
    self: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """Sums of weights of elements between given edges, and the edges."""
    points = self.reshape(-1, 1)
    return histogramdd_from_edges(points, [bins], weight=weight, density=density), bins


@op("aten::histogram.bin_ct")
def histogram_of_count(
    self: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """Sums of weights of elements between equally spaced edges, and the edges."""
    points = self.reshape(-1, 1)
    edges = histogramdd_bin_edges(points, [bins], range=range, weight=weight, density=density)
    return _histogram(points, edges, weight, density), edges[0]


@op("aten::bincount")
def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each integer from 0 occurs, or the sum of its weights; the host waits for the largest."""
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if self.is_floating_point() or self.is_complex() or self.dtype == torch.bool:
        raise NotImplementedError(f'"bincount_cpu" not implemented for {self.dtype}; convert the input to int64')
    if self.ndim == 1 and self.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    if self.ndim != 1:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    smallest, largest = (int(limit.item()) for limit in torch.aminmax(self))
    if smallest < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and (weights.ndim != 1 or weights.numel() != self.numel()):
        raise RuntimeError("weights should be 1-d and have the same length as input")
    if weights is None:
        terms = torch.ones((1,), dtype=torch.int64, device=self.device).expand(self.shape)
    else:
        terms = weights if weights.dtype == torch.float32 else weights.to(torch.float64)
    counts = torch.zeros(max(minlength, largest + 1), dtype=terms.dtype, device=self.device)
    return counts.index_add_(0, self.to(torch.int64), terms)
