"""References for ops of which CPU torch is no good one: it is less exact than the kernel, or leaves results open."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import special

from gpu_check.samples import Sample


def _by_scipy(function: Callable[[Any], Any], sample: Sample) -> list[torch.Tensor]:
    """A function of the one tensor, in float64."""
    (x,) = sample.tensors
    return [torch.from_numpy(np.asarray(function(x.double().numpy()))).to(x.dtype)]


def _kth_of_sorted(sample: Sample) -> list[torch.Tensor]:
    """The element that stands at a place of the stably sorted row, and its position."""
    x, k, dim, keepdim = (sample.arguments[name] for name in ("self", "k", "dim", "keepdim"))
    if x.ndim == 0:
        return [x.clone(), torch.zeros_like(x, dtype=torch.int64)]
    found = [result.narrow(dim, k - 1, 1) for result in x.sort(dim=dim, stable=True)]
    return found if keepdim else [result.squeeze(dim) for result in found]


EXACT: dict[str, Callable[[Sample], list[torch.Tensor]]] = {
    # In float64 CPU torch is wrong from the seventh digit on, between 4 and 9 or, of the Airy function, below -2.
    "special_bessel_j0": functools.partial(_by_scipy, special.j0),
    "special_bessel_j1": functools.partial(_by_scipy, special.j1),
    "special_bessel_y0": functools.partial(_by_scipy, special.y0),
    "special_bessel_y1": functools.partial(_by_scipy, special.y1),
    "special_airy_ai": functools.partial(_by_scipy, lambda x: special.airy(x)[0]),
    # Any of equal elements may be CPU torch's; the kernel's is that of a stable sort.
    "kthvalue": _kth_of_sorted,
}
"""By functional overload."""
