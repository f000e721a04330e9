"""Complex64: what runs through the real parts, and where the parts meet infinity and NaN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Move = Callable[[torch.Tensor], torch.Tensor]

Z = torch.randn(5, 7, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
V = torch.randn(7, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
AT = torch.tensor([0, 3, 3])
SPECIAL = torch.tensor([1 + 1j, complex("nan"), complex(1, float("inf")), complex("inf"), complex(0, float("nan"))])
ZEROS = torch.zeros(7, dtype=torch.complex64)
EXPONENTS = torch.tensor([1j, 2 + 1j, -1, -1 + 1j, -1j, 0.5j, 2])

CASES: dict[str, Callable[[Move], torch.Tensor | tuple[torch.Tensor, ...]]] = {
    "matrix times vector": lambda on: on(Z) @ on(V),
    "addmv": lambda on: torch.addmv(on(V)[:5], on(Z), on(V), beta=2j, alpha=0.5),
    "linear": lambda on: torch.nn.functional.linear(on(V), on(Z), on(V)[:5]),
    "matrix_exp": lambda on: torch.linalg.matrix_exp(on(Z)[:, :5]),
    "var": lambda on: on(Z).var(1),
    "var_mean": lambda on: torch.var_mean(on(Z), 0, correction=0, keepdim=True),
    "std_mean": lambda on: torch.std_mean(on(Z)),
    "logsumexp": lambda on: on(Z).logsumexp(0),
    "sum into another size": lambda on: torch.sum(on(Z), 1, out=on(torch.empty(0, dtype=torch.complex64))),
    "index_put that adds": lambda on: on(Z).index_put((on(AT),), on(V), accumulate=True),
    "index_fill": lambda on: on(Z).index_fill(0, on(AT), 1 + 2j),
    "scatter of a number": lambda on: on(V).scatter(0, on(AT), 1 + 2j),
    "nonzero": lambda on: on(Z * (Z.real > 0)).nonzero(),
    "count_nonzero": lambda on: on(Z * (Z.real > 0)).count_nonzero(0),
    "reflection": lambda on: torch.nn.functional.pad(on(Z), (2, 3), mode="reflect"),
    "linspace": lambda on: torch.linspace(1j, 3, 5, dtype=torch.complex64, device=on(Z).device),
    "isnan": lambda on: on(SPECIAL).isnan(),
    "isinf": lambda on: on(SPECIAL).isinf(),
    "isclose": lambda on: torch.isclose(on(Z), on(Z) * (1 + 1e-7)),
    "powers of zero": lambda on: on(ZEROS) ** on(EXPONENTS),
}


@pytest.mark.parametrize("case", CASES)
def test_complex(device, case):
    expected, result = CASES[case](lambda x: x), CASES[case](lambda x: x.to(device))
    pairs = zip(result, expected, strict=True) if isinstance(expected, tuple) else [(result, expected)]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)


def test_draws(device):
    torch.manual_seed(0)
    normal = torch.randn(20000, dtype=torch.complex64, device=device).cpu()
    uniform = torch.rand(20000, dtype=torch.complex64, device=device).cpu()
    for part in (normal.real, normal.imag):
        assert abs(part.mean()) < 0.02
        assert abs(part.var() - 0.5) < 0.02
    for part in (uniform.real, uniform.imag):
        assert 0 <= part.min() < 0.01
        assert 0.99 < part.max() < 1


def test_zeros_without_memory(device):
    zeros = torch._efficientzerotensor((2, 3), device=device)
    assert zeros._is_zerotensor()
    torch.testing.assert_close((zeros + 1).cpu(), torch.ones(2, 3))
    x = torch.randn(3, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(x.sgn().sum(), x)
    torch.testing.assert_close(grad.cpu(), torch.zeros(3))
