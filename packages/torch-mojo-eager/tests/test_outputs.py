"""Out forms that are Python ops: empty outputs are resized, others checked, and results written to where they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

M = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
M = M @ M.mT + torch.eye(4)
AT = torch.tensor([[0, 2, 1, 0]])

CASES: dict[str, tuple[int, Callable[..., object]]] = {
    "cholesky": (1, lambda x, at, out: torch.linalg.cholesky(x, out=out[0])),
    "inv": (1, lambda x, at, out: torch.linalg.inv(x, out=out[0])),
    "solve": (1, lambda x, at, out: torch.linalg.solve(x, x, out=out[0])),
    "eigh": (2, lambda x, at, out: torch.linalg.eigh(x, out=out)),
    "cross": (1, lambda x, at, out: torch.linalg.cross(x[:, :3], x[:, 1:], out=out[0])),
    "scatter that adds": (1, lambda x, at, out: torch.scatter(x, 0, at, x, reduce="add", out=out[0])),
    "scatter_reduce": (1, lambda x, at, out: torch.scatter_reduce(x, 0, at, x, "amax", out=out[0])),
    "index_reduce": (1, lambda x, at, out: torch.index_reduce(x, 0, at[0], x, "prod", out=out[0])),
    "mvlgamma": (1, lambda x, at, out: torch.mvlgamma(x.abs() + 5, 2, out=out[0])),
    "narrow_copy": (1, lambda x, at, out: torch.narrow_copy(x, 0, 1, 2, out=out[0])),
}


@pytest.mark.parametrize("name", CASES)
def test_empty_and_strided_outputs(device, name):
    count, call = CASES[name]
    expected = [torch.empty(0) for _ in range(count)]
    call(M, AT, expected)
    empty = [torch.empty(0, device=device) for _ in range(count)]
    strided = [torch.empty(*e.shape, 2, device=device)[..., 0] for e in expected]
    for outputs in (empty, strided):
        call(M.to(device), AT.to(device), outputs)
        for ours, theirs in zip(outputs, expected, strict=True):
            if name == "eigh":
                ours, theirs = ours.abs(), theirs.abs()
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


def test_outputs_of_other_dtypes(device):
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
        torch.linalg.cholesky(M.to(device), out=torch.empty(4, 4, dtype=torch.float64, device=device))
