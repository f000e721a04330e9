"""When two results agree: OpInfo's tolerances, and for rounding the exact result as judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.utils._pytree import tree_leaves

# The tests of torch that compare an op's results with a reference.
_TESTS = ("test_compare_cpu", "test_out", "test_python_ref", "test_numpy_ref", "test_reference_numerics_normal")


# How far rounded operands may move a result, as a part of the largest one.
_LARGEST_ROUNDING = 1e-4


class Difference(AssertionError):
    """Results that disagree."""


def tolerances(entry: Any, dtype: torch.dtype) -> tuple[float, float]:
    """Returns (rtol, atol): torch's defaults for the dtype, or what the entry asks of torch's tests if that is more."""
    rtol, atol = torch.testing._comparison.default_tolerances(dtype)
    for info in entry.decorators:
        if getattr(info, "test_name", None) not in _TESTS or info.device_type not in (None, "cpu"):
            continue
        for decorator in info.decorators:
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                wanted = decorator.d[dtype]
                rtol, atol = max(rtol, wanted.rtol), max(atol, wanted.atol)
    return rtol, atol


def _magnitude(tensor: torch.Tensor) -> float:
    finite = tensor[torch.isfinite(tensor)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _as_near(
    ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, near: torch.Tensor, rtol: float, atol: float
) -> bool:
    """Whether our result is as near to the exact one as CPU torch's own, up to a factor for other orders of sums.

    CPU torch's may be near by chance, where results depend on operands so strongly that rounding those moves `near`
    further away. A jump, as floor's, is no rounding: what `near` may explain is bounded.
    """
    if exact.shape != ours.shape or near.shape != ours.shape:
        return False
    # Where only one is finite, ours must be the exact result, rounded: CPU torch may have overflowed on the way.
    apart = torch.isfinite(ours) != torch.isfinite(theirs)
    rounded = exact[apart].to(ours.dtype)
    if not torch.allclose(ours[apart], rounded, rtol=max(rtol, torch.finfo(ours.dtype).eps), atol=atol):
        return False
    keep = torch.isfinite(theirs) & torch.isfinite(ours) & torch.isfinite(exact)
    exact, near = exact[keep], near[keep]
    mistakes = (ours[keep].to(exact.dtype) - exact).abs()
    rounding = min(_magnitude(near - exact), _LARGEST_ROUNDING * _magnitude(exact))
    unavoidable = max(_magnitude(theirs[keep].to(exact.dtype) - exact), rounding)
    allowed = 4 * unavoidable + rtol * _magnitude(exact) + atol
    return bool((mistakes <= allowed).all())


def compare(
    ours: Any, theirs: Any, entry: Any, exact: Callable[[], tuple[Any, Any]] | None = None, slack: float = 1.0
) -> None:
    """Compares results, which may be tensors, numbers or structures of them.

    Args:
        ours: Of the device.
        theirs: Of CPU torch.
        entry: The database's entry, for its tolerances.
        exact: Computes the results in float64 on the CPU, for the operands and for some as near to them as rounding
            is; it decides where rounding may explain a difference.
        slack: A factor for the tolerances.

    Raises:
        Difference: They disagree in structure, shape, dtype or values, or a result is not on the device.
    """
    left, right = tree_leaves(ours), tree_leaves(theirs)
    if len(left) != len(right):
        raise Difference(f"{len(left)} results where CPU torch has {len(right)}")
    references: list[list[Any]] | None = None
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if not isinstance(b, torch.Tensor):
            if isinstance(b, float) and isinstance(a, float):
                torch.testing.assert_close(a, b, equal_nan=True)
            elif a != b and not (isinstance(b, torch.device | str)):
                raise Difference(f"{a!r} where CPU torch has {b!r}")
            continue
        if not isinstance(a, torch.Tensor):
            raise Difference(f"{type(a).__name__} where CPU torch has a tensor")
        if a.dtype != b.dtype or a.shape != b.shape:
            raise Difference(f"{a.dtype} {tuple(a.shape)} where CPU torch has {b.dtype} {tuple(b.shape)}")
        rtol, atol = tolerances(entry, b.dtype) if b.is_floating_point() or b.is_complex() else (0.0, 0.0)
        rtol, atol = rtol * slack, atol * slack
        host, expected = a.detach().cpu().resolve_conj().resolve_neg(), b.detach().resolve_conj().resolve_neg()
        try:
            torch.testing.assert_close(host, expected, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            if exact is not None and (b.is_floating_point() or b.is_complex()):
                references = references or [tree_leaves(result) for result in exact()]
                found = [leaves[i].detach() for leaves in references if len(leaves) == len(right)]
                if len(found) == 2 and _as_near(host, expected, found[0], found[1], rtol, atol):
                    continue
            text = " ".join(str(error).split())
            raise Difference(f"result {i} {b.dtype} {tuple(b.shape)}: {text}") from None


def same_distribution(ours: list[torch.Tensor], theirs: list[torch.Tensor], together: int = 1) -> None:
    """Compares two sets of draws by the Kolmogorov-Smirnov statistic.

    Args:
        ours: Of the device.
        theirs: Of CPU torch.
        together: How many elements share a draw.

    Raises:
        Difference: The chance that both come from one distribution is below about 1e-6.
    """
    a = torch.cat([x.detach().cpu().flatten() for x in ours]).to(torch.float64).sort().values
    b = torch.cat([x.detach().flatten() for x in theirs]).to(torch.float64).sort().values
    if not a.numel() or not b.numel():
        return
    points = torch.cat([a, b])
    distance = (
        (torch.searchsorted(a, points, right=True) / a.numel() - torch.searchsorted(b, points, right=True) / b.numel())
        .abs()
        .max()
    )
    limit = 2.7 * (together * (a.numel() + b.numel()) / (a.numel() * b.numel())) ** 0.5
    if float(distance) > limit:
        raise Difference(f"distributions differ by {float(distance):.3f}, at most {limit:.3f} can be chance")
