"""Ops in terms of others, for both frontends: methods of tensors only, so that nothing here knows torch itself.

Arguments are checked by the callers; the formulas wait for no data, so that graphs can have them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Tensor: TypeAlias = Any
"""A torch tensor, fake ones among them."""


# ---- order -----------------------------------------------------------------------------------------------------------


def mode(x: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent elements along a dimension, and its last position."""
    if x.ndim == 0:
        return mode(x.reshape(1), 0, False)
    values, indices = x.sort(dim=dim, stable=True)
    places = indices.new_ones(x.shape[dim]).cumsum(0) - 1
    places = places.view(*[-1 if d == dim % x.ndim else 1 for d in range(x.ndim)])
    starts = (values != values.roll(1, dim)) * places
    # The first place at which a run of equals is the longest is the end of that run.
    longest = (places - starts.cummax(dim)[0]).argmax(dim, keepdim=True)
    picked = values.gather(dim, longest), indices.gather(dim, longest)
    return picked if keepdim else (picked[0].squeeze(dim), picked[1].squeeze(dim))


# ---- histograms ------------------------------------------------------------------------------------------------------


def histc(x: Tensor, bins: int, low: Any, high: Any) -> Tensor:
    """How many elements lie in each of `bins` equal parts of a range, whose limits are numbers or 0-dim tensors."""
    flat = x.reshape(-1)
    if not flat.is_floating_point():
        flat = flat.double()  # so that the bins of integers, which CPU torch does not take, are exact
    elif flat.element_size() == 2:
        flat = flat.float()
    inside = (flat >= low) & (flat <= high)
    place = ((flat - low) * bins / (high - low)).clamp(0, bins - 1).nan_to_num(0).long()
    return place.new_zeros(bins).scatter_add(0, place, inside.long()).to(x.dtype)


def histogram(
    points: Tensor,
    edges: Sequence[Tensor],
    weight: Tensor | None,
    density: bool,
    searchsorted: Callable[..., Tensor],
) -> Tensor:
    """Sums of weights of points [count, dimensions] between edges; each dimension's last edge is included."""
    columns = [points[:, d].contiguous() for d in range(len(edges))]
    inside: Tensor = 1
    place: Tensor = 0
    for x, edge in zip(columns, edges, strict=True):
        bins = edge.numel() - 1
        inside = inside * ((x >= edge[0]) & (x <= edge[-1]))
        place = place * bins + (searchsorted(edge, x, right=True) - 1).clamp(0, bins - 1)
    shape = [edge.numel() - 1 for edge in edges]
    terms = inside.to(points.dtype)
    if weight is not None:
        terms = weight.reshape(-1).where(inside.bool(), terms)
    counts = points.new_zeros(math.prod(shape)).scatter_add(0, place, terms).view(shape)
    if density:
        counts = counts / counts.sum()
        for d, edge in enumerate(edges):
            counts = counts / edge.diff().view([-1 if i == d else 1 for i in range(len(edges))])
    return counts


# ---- distances -------------------------------------------------------------------------------------------------------


def _differences(x1: Tensor, x2: Tensor) -> Tensor:
    return x1.unsqueeze(-2) - x2.unsqueeze(-3)


def _norm(differences: Tensor, p: float) -> Tensor:
    if differences.shape[-1] == 0:
        return differences.new_zeros(differences.shape[:-1])
    return differences.norm(p, dim=-1)


def cdist(x1: Tensor, x2: Tensor, p: float) -> Tensor:
    """Distances [..., m, n] between the rows of two matrices."""
    return _norm(_differences(x1, x2), p)


def cdist_gradient(grad: Tensor, x1: Tensor, x2: Tensor, p: float, distances: Tensor) -> Tensor:
    """The gradient of `cdist` by the first matrices."""
    if x1.numel() == 0 or x2.numel() == 0 or grad.numel() == 0:
        return x1.new_zeros(x1.shape)
    return (_norm_slope(_differences(x1, x2), p, distances) * grad.unsqueeze(-1)).sum(-2)


def pdist(x: Tensor, pairs: Tensor, p: float) -> Tensor:
    """Distances between pairs of rows, whose positions are `pairs` [2, number]."""
    return _norm(x.index_select(0, pairs[0]) - x.index_select(0, pairs[1]), p)


def pdist_gradient(grad: Tensor, x: Tensor, pairs: Tensor, p: float, distances: Tensor) -> Tensor:
    """The gradient of `pdist`."""
    differences = x.index_select(0, pairs[0]) - x.index_select(0, pairs[1])
    slope = _norm_slope(differences, p, distances) * grad.unsqueeze(-1)
    return x.new_zeros(x.shape).index_add(0, pairs[0], slope).index_add(0, pairs[1], -slope)


def _norm_slope(difference: Tensor, p: float, distance: Tensor) -> Tensor:
    """The derivative of a norm of differences by each of them; 0 where the distance is 0."""
    length = distance.unsqueeze(-1)
    if p == 0:
        return difference.new_zeros(difference.shape)
    if p == 1:
        return difference.sign()
    if math.isinf(p):
        return difference.sign() * (difference.abs() == length)
    slope = difference.sign() * (difference.abs() / length) ** (p - 1)
    return slope.masked_fill((length == 0) | (difference == 0), 0)


# ---- bags of embeddings ----------------------------------------------------------------------------------------------


def gradients_of_lookups(
    grad: Tensor, bag_of: Tensor, bag_size: Tensor, is_mean: bool, weights: Tensor | None
) -> Tensor:
    """The gradients [lookups, columns] of the rows that sums or means of bags looked up.

    Args:
        grad: Of the bags [bags, columns].
        bag_of: The bag of each lookup.
        bag_size: How many lookups each bag counts.
        is_mean: Whether bags are means.
        weights: Of the lookups.
    """
    if is_mean:
        grad = grad / bag_size.clamp(min=1).unsqueeze(1).to(grad.dtype)
    of_lookups = grad.index_select(0, bag_of)
    return of_lookups if weights is None else of_lookups * weights.reshape(-1, 1)


def gradient_of_maxima(grad: Tensor, maxima: Tensor, rows: int) -> Tensor:
    """The gradient [rows, columns] of a table that bags take maxima of.

    Args:
        grad: Of the bags [bags, columns].
        maxima: The row of each maximum; negative for bags without lookups.
        rows: Of the table.
    """
    # Bags without lookups have one more row, which is cut off.
    places = maxima.long().masked_fill(maxima < 0, rows)
    return grad.new_zeros((rows + 1, grad.shape[1])).scatter_add(0, places, grad)[:rows]
