"""Sequences and matrices that are computed, not filled."""

from __future__ import annotations

import torch

from mojo_runtime.aten.table import NUMERIC
from torch_mojo_eager.ops.registry import launch, number, op

KERNELS = tuple((f"range:{name}[dtype={{0}}]", (NUMERIC,)) for name in ("arange", "linspace"))


def _check_dtype(name: str, out: torch.Tensor) -> None:
    if str(out.dtype).removeprefix("torch.") not in NUMERIC:
        raise NotImplementedError(
            f"{name} is not implemented on mojo for dtype {out.dtype}; create it as int64 and convert it"
        )


@op("aten::linspace.out")
def linspace(start: float, end: float, steps: int, *, out: torch.Tensor) -> torch.Tensor:
    """`steps` numbers from start to end, equally spaced."""
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    if out.numel() != steps:
        out.resize_(steps)
    if out.is_complex():
        linspace(complex(start).real, complex(end).real, steps, out=out.real)
        linspace(complex(start).imag, complex(end).imag, steps, out=out.imag)
        return out
    _check_dtype("linspace", out)
    if not out.is_floating_point():
        start, end = int(start), int(end)  # as on CPUs, before the step is computed
    launch("range:linspace", [out.view(-1)], [*number(start), *number(end)], dtype=out.dtype)
    return out


@op("aten::logspace.out")
def logspace(start: float, end: float, steps: int, base: float = 10.0, *, out: torch.Tensor) -> torch.Tensor:
    """`steps` powers of the base, whose exponents are equally spaced."""
    if out.numel() != steps:
        out.resize_(steps)
    if out.is_floating_point() or out.is_complex():
        compute = torch.promote_types(out.dtype, torch.float32)
        return out.copy_(torch.pow(base, torch.linspace(start, end, steps, dtype=compute, device=out.device)))
    # Ends are cut to integers first, and powers afterwards.
    first, last = int(start), int(end)
    places = torch.arange(steps, dtype=torch.float32, device=out.device)
    exponents = places * ((last - first) / max(1, steps - 1)) + first
    return out.copy_(torch.pow(float(base), exponents))


@op("aten::eye.m_out")
def eye_of_sizes(n: int, m: int, *, out: torch.Tensor) -> torch.Tensor:
    """An n x m matrix of zeros with ones on the diagonal."""
    if n < 0 or m < 0:
        raise RuntimeError(f"n and m must be greater or equal to 0, got {n} and {m}")
    out.resize_(n, m).zero_()
    out.diagonal().fill_(1)
    return out


@op("aten::eye.out")
def eye(n: int, *, out: torch.Tensor) -> torch.Tensor:
    """An n x n matrix of zeros with ones on the diagonal."""
    return eye_of_sizes(n, n, out=out)
