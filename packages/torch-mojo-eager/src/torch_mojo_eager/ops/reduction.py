"""Reductions whose outputs torch does not allocate."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mojo_runtime.aten.table import ALL, FLOATING, INTEGRAL
from torch_mojo_eager.ops.registry import launch, number, op

KERNEL = "reduction.reduce:reduce"
KERNELS = (
    ("cumulative:extremum[dtype={0},op=cummax]", (ALL,)),
    ("cumulative:extremum[dtype={0},op=cummin]", (ALL,)),
    ("cumulative:cumulative[dtype={0},op=logcumsumexp,out={0}]", (FLOATING,)),
    *((f"{KERNEL}[dtype={{0}},op={name},out={{0}}]", (FLOATING,)) for name in ("var", "std", "prod", "nansum")),
    *((f"{KERNEL}[dtype={{0}},op={name},out={{0}},second={{0}}]", (FLOATING,)) for name in ("var_mean", "std_mean")),
    *((f"{KERNEL}[dtype={{0}},op={name},out=int64]", ((*INTEGRAL, "bool"),)) for name in ("prod", "nansum")),
    (f"{KERNEL}[dtype={{0}},op=count_nonzero,out=int64]", (ALL,)),
)


def _reduced_shape(x: torch.Tensor, dim: Sequence[int] | None, keepdim: bool) -> list[int]:
    """The sizes that are left; raises IndexError or RuntimeError for a dimension that does not exist or is repeated."""
    reduced: set[int] = set()
    for d in dim or range(x.ndim):
        count = max(x.ndim, 1)
        if not -count <= d < count:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {d})"
            )
        if d % count in reduced:
            raise RuntimeError(f"dim {d % count} appears multiple times in the list of dims")
        reduced.add(d % count)
    if keepdim:
        return [1 if d in reduced else size for d, size in enumerate(x.shape)]
    return [size for d, size in enumerate(x.shape) if d not in reduced]


def _dimension_words(dim: Sequence[int] | None) -> list[int]:
    return [len(dim), *dim] if dim else [0]


def _moments(
    name: str, x: torch.Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool, outputs: int
) -> list[torch.Tensor]:
    if x.is_complex():
        return _complex_moments(name, x, dim, correction, keepdim)
    if not x.is_floating_point():
        raise RuntimeError(f"{name} only support floating point dtypes, but got {x.dtype}")
    shape = _reduced_shape(x, dim, keepdim)
    results = [x.new_empty(shape) for _ in range(outputs)]
    words = [*_dimension_words(dim), *((0,) if correction is None else (1, *number(correction)))]
    second = {"second": x.dtype} if outputs == 2 else {}
    launch(KERNEL, [*results, x], words, dtype=x.dtype, op=name, out=x.dtype, **second)
    return results


def _complex_moments(
    name: str, x: torch.Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool
) -> list[torch.Tensor]:
    """The variance is the sum of those of the parts."""
    moments = [_moments("var_mean", part, dim, correction, keepdim, 2) for part in (x.real, x.imag)]
    variance = moments[0][0] + moments[1][0]
    spread = variance if name.startswith("var") else variance.sqrt()
    return [spread, torch.complex(moments[0][1], moments[1][1])]


@op("aten::var.correction")
def var(
    self: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> torch.Tensor:
    """Variance over dimensions; the sum of squares is divided by the count less `correction` (1)."""
    return _moments("var", self, dim, correction, keepdim, 1)[0]


@op("aten::std.correction")
def std(
    self: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> torch.Tensor:
    """Standard deviation over dimensions."""
    return _moments("std", self, dim, correction, keepdim, 1)[0]


@op("aten::var_mean.correction")
def var_mean(
    self: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Variance and mean over dimensions."""
    variance, mean = _moments("var_mean", self, dim, correction, keepdim, 2)
    return variance, mean


@op("aten::std_mean.correction")
def std_mean(
    self: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard deviation and mean over dimensions."""
    deviation, mean = _moments("std_mean", self, dim, correction, keepdim, 2)
    return deviation, mean


def _extremum(name: str, x: torch.Tensor) -> torch.Tensor:
    if x.numel() == 0:
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
            "Specify the reduction dim with the 'dim' argument."
        )
    result = x.new_empty(())
    launch(KERNEL, [result, x], [], dtype=x.dtype, op=f"a{name}", out=x.dtype)
    return result


@op("aten::max")
def max_of_all(self: torch.Tensor) -> torch.Tensor:
    """Maximum of all elements."""
    return _extremum("max", self)


@op("aten::min")
def min_of_all(self: torch.Tensor) -> torch.Tensor:
    """Minimum of all elements."""
    return _extremum("min", self)


def _sum_dtype(x: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype or (x.dtype if x.is_floating_point() else torch.int64)


@op("aten::prod")
def prod(self: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Product of all elements."""
    result = self.new_empty((), dtype=_sum_dtype(self, dtype))
    launch(KERNEL, [result, self], [], dtype=self.dtype, op="prod", out=result.dtype)
    return result


@op("aten::nansum")
def nansum(
    self: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Sum over dimensions that counts NaN as zero."""
    result = self.new_empty(_reduced_shape(self, dim, keepdim), dtype=_sum_dtype(self, dtype))
    launch(KERNEL, [result, self], _dimension_words(dim), dtype=self.dtype, op="nansum", out=result.dtype)
    return result


@op("aten::count_nonzero.dim_IntList")
def count_nonzero(self: torch.Tensor, dim: Sequence[int]) -> torch.Tensor:
    """How many elements over dimensions are not zero."""
    if self.is_complex():
        self = self != 0
    result = self.new_empty(_reduced_shape(self, dim, False), dtype=torch.int64)
    launch(KERNEL, [result, self], _dimension_words(dim), dtype=self.dtype, op="count_nonzero", out=torch.int64)
    return result


def _scan_extremum(name: str, x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
    launch("cumulative:extremum", [values, indices, x], [dim], dtype=x.dtype, op=name)


@op("aten::_cummax_helper")
def cummax(self: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
    """The maximum up to each element and its last position."""
    _scan_extremum("cummax", self, values, indices, dim)


@op("aten::_cummin_helper")
def cummin(self: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
    """The minimum up to each element and its last position."""
    _scan_extremum("cummin", self, values, indices, dim)


@op("aten::_logcumsumexp")
def logcumsumexp(self: torch.Tensor, dim: int) -> torch.Tensor:
    """The logarithm of the sum of exponentials up to each element."""
    result = torch.empty_like(self, memory_format=torch.contiguous_format)
    launch("cumulative:cumulative", [result, self], [dim], dtype=self.dtype, op="logcumsumexp", out=self.dtype)
    return result


@op("aten::equal")
def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same sizes and elements; the host waits."""
    if self.dtype != other.dtype:
        raise RuntimeError(f"Expected all tensors to have the same dtype, but got {self.dtype} and {other.dtype}")
    return self.shape == other.shape and bool((self == other).all())


@op("aten::renorm.out")
def renorm(self: torch.Tensor, p: float, dim: int, maxnorm: float, *, out: torch.Tensor) -> torch.Tensor:
    """Scales the slices along a dimension whose norm is larger down to it."""
    others = [d for d in range(self.ndim) if d != dim % self.ndim]
    dtype = torch.float32 if self.dtype in (torch.bfloat16, torch.float16) else self.dtype
    norms = torch.linalg.vector_norm(self, p, others, True, dtype=dtype)
    factors = torch.where(norms > maxnorm, maxnorm / (norms + 1e-7), 1.0).to(self.dtype)
    return torch.mul(self, factors, out=out)


@op("aten::trace")
def trace(self: torch.Tensor) -> torch.Tensor:
    """Sum of the diagonal of a matrix."""
    if self.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {self.ndim}")
    return self.diagonal().sum()
