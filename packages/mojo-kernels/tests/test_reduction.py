"""Reductions against torch, over ops, dtypes, dimensions and layouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
import torch

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
Reference = Callable[[torch.Tensor, "list[int] | None", bool], "torch.Tensor | tuple[torch.Tensor, ...]"]


@dataclasses.dataclass(frozen=True)
class Case:
    """An op of the kernel: its name, torch's counterpart, the dtypes that are tried and how its scalars look."""

    op: str
    reference: Reference
    dtypes: Sequence[torch.dtype]
    argument: tuple[object, ...] = ()
    out: torch.dtype | None = None
    single: bool = False
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.op


def _all_dims(x: torch.Tensor, dims: list[int] | None) -> list[int]:
    return dims or list(range(x.ndim))


def _prod(x: torch.Tensor, dims: list[int] | None, keepdim: bool) -> torch.Tensor:
    for d in sorted((d % max(x.ndim, 1) for d in _all_dims(x, dims)), reverse=True):
        x = x.prod(d, keepdim=keepdim)
    return x if x.dtype.is_floating_point else x.long()


def _norm(order: float) -> Reference:
    return lambda x, dims, keepdim: torch.linalg.vector_norm(x, order, dims, keepdim)


def _dim_of(dims: list[int] | None) -> int | None:
    return dims[0] if dims else None


def _with_positions(function: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Reference:
    return lambda x, dims, keepdim: tuple(function(x, -1 if dims is None else dims[0], keepdim))


CASES = [
    Case("sum", lambda x, d, k: x.sum(d, k), (*FLOATING, torch.int32, torch.uint8, torch.bool)),
    Case("sum", lambda x, d, k: x.sum(d, k, dtype=torch.float64), (torch.float32, torch.int16), name="sum_to_float64"),
    Case("nansum", lambda x, d, k: x.nansum(d, k), (torch.float32, torch.float16)),
    Case("mean", lambda x, d, k: x.mean(d, k), (torch.float32, torch.bfloat16)),
    Case("prod", _prod, (torch.float32, torch.int64)),
    Case(
        "amax",
        lambda x, d, k: x.amax(_all_dims(x, d), k),
        (torch.float32, torch.float64, torch.float16, torch.int8, torch.bool),
    ),
    Case("amin", lambda x, d, k: x.amin(_all_dims(x, d), k), (torch.float32, torch.bfloat16, torch.uint8)),
    Case("any", lambda x, d, k: torch.any(x, d, k), (torch.float32, torch.int32, torch.bool)),
    Case("all", lambda x, d, k: torch.all(x, d, k), (torch.float16, torch.uint8, torch.bool)),
    Case("count_nonzero", lambda x, d, k: x.ne(0).sum(d, k), (torch.float32, torch.bool, torch.int64)),
    Case("var", lambda x, d, k: x.var(d, keepdim=k), (torch.float32, torch.float64, torch.bfloat16), (None,)),
    Case("std", lambda x, d, k: x.std(d, correction=0, keepdim=k), (torch.float32,), ("zero",)),
    Case("var_mean", lambda x, d, k: torch.var_mean(x, d, keepdim=k), (torch.float32, torch.float16), (None,)),
    *(
        Case("norm", _norm(order), (torch.float32, torch.bfloat16), (order,), name=f"norm_{order}")
        for order in (0.0, 1.0, 2.0, 3.0, 0.5, float("inf"), float("-inf"))
    ),
    Case("argmax", lambda x, d, k: x.argmax(_dim_of(d), k), (torch.float32, torch.bfloat16, torch.int16)),
    Case("argmin", lambda x, d, k: x.argmin(_dim_of(d), k), (torch.float32, torch.int64)),
    Case("max", _with_positions(torch.max), (torch.float32, torch.bfloat16, torch.int32, torch.bool), single=True),
    Case("min", _with_positions(torch.min), (torch.float32, torch.float64), single=True),
    Case(
        "aminmax",
        lambda x, d, k: (x.amin(_all_dims(x, d), k), x.amax(_all_dims(x, d), k)),
        (torch.float32, torch.int8),
    ),
]


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _key(case: Case, dtype: torch.dtype, outputs: Sequence[torch.Tensor]) -> str:
    parameters = [f"dtype={_dtype_name(dtype)}", f"op={case.op}", f"out={_dtype_name(outputs[0].dtype)}"]
    if len(outputs) == 2:
        parameters.append(f"second={_dtype_name(outputs[1].dtype)}")
    if case.single:
        parameters.append("dimensions=one")
    return f"reduction.reduce:reduce[{','.join(parameters)}]"


def _make(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(tuple(shape), generator=generator) > 0.3
    if dtype.is_floating_point:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)
    low = 0 if dtype == torch.uint8 else -9
    return torch.randint(low, 10, tuple(shape), generator=generator).to(dtype)


def _expected(case: Case, x: torch.Tensor, dims: list[int] | None, keepdim: bool) -> tuple[torch.Tensor, ...]:
    """What torch computes in float64, rounded once to the dtype of torch's result."""
    result = case.reference(x, dims, keepdim)
    results = result if isinstance(result, tuple) else (result,)
    if not x.dtype.is_floating_point:
        return results
    exact = case.reference(x.double(), dims, keepdim)
    exacts = exact if isinstance(exact, tuple) else (exact,)
    return tuple(e.to(r.dtype) for e, r in zip(exacts, results, strict=True))


EVERY = [(case, dtype) for case in CASES for dtype in case.dtypes]


@pytest.fixture(scope="module")
def library(kernels):
    return kernels([_key(case, dtype, _expected(case, _make((2, 2), dtype), [0], False)) for case, dtype in EVERY])


def check(library, case: Case, x: torch.Tensor, dims: list[int] | None, keepdim: bool = False) -> None:
    """Compares the kernel's outputs with torch's; the outputs are written through odd strides."""
    expected = _expected(case, x, dims, keepdim)
    outputs = [
        torch.full((*e.shape, 2), 77, dtype=torch.float32).to(e.dtype)[..., 0] if e.ndim else torch.empty_like(e)
        for e in expected
    ]
    number = library.number
    given = library.given
    scalars: list[object] = []
    if case.single:
        scalars.append(-1 if dims is None else dims[0])
    else:
        scalars.append(dims or [])
    for value in case.argument:
        if value == "zero":
            scalars.append(given(number(0)))
        else:
            scalars.append(None if value is None else number(value))
    library(_key(case, x.dtype, expected), [*outputs, x], scalars)
    for output, e in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, e, equal_nan=True)


def ids(value: object) -> str:
    return _dtype_name(value) if isinstance(value, torch.dtype) else str(value)


@pytest.mark.parametrize(("case", "dtype"), EVERY, ids=ids)
def test_dimensions_and_layouts(library, case: Case, dtype: torch.dtype) -> None:
    """Every regime: rows, columns, both, everything; contiguous, permuted, sliced, expanded."""
    base = _make((5, 37, 3, 70), dtype)
    views = {
        "contiguous": base,
        "permuted": base.permute(3, 0, 2, 1),
        "sliced": base[:, ::2, 1:, 3:67],
        "strided": base[..., ::3],
        "expanded": base[:, :1, :, :9].expand(-1, 4, -1, -1),
        "wide": _make((3, 1100), dtype, 1),
        "tall": _make((1100, 3), dtype, 2),
        "tall_columns": _make((700, 33), dtype, 3),
    }
    one = case.op in ("argmax", "argmin") or case.single
    for view in views.values():
        if case.op == "prod" and dtype != torch.int64:
            view = view[..., :7]
        every: list[list[int] | None] = [[d] for d in range(view.ndim)]
        if not case.single:
            every.append(None)
        if not one:
            every += [[0, view.ndim - 1], [-1, -2]] + ([[1, 2], [0, 2]] if view.ndim == 4 else [])
        for dims in every:
            if not (case.op == "prod" and view.numel() > 60 and dims is None):
                check(library, case, view, dims)
    check(library, case, base, [1], keepdim=True)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize(("case", "dtype"), EVERY, ids=ids)
def test_one_element(library, case: Case, dtype: torch.dtype) -> None:
    """0-dim tensors, and dimensions of size 1."""
    check(library, case, _make((), dtype), None)
    check(library, case, _make((4, 1, 3), dtype), [1])


@pytest.mark.parametrize(("case", "dtype"), [(c, d) for c, d in EVERY if d.is_floating_point], ids=ids)
def test_nan(library, case: Case, dtype: torch.dtype) -> None:
    """NaN wins in extrema and is skipped by nansum; the first of several NaN gives the position."""
    for columns in (3, 40, 300):
        x = _make((6, columns), dtype)
        x[1, columns // 2] = float("nan")
        x[1, columns // 2 + 1] = float("nan")
        x[4] = float("nan")
        x[3] = float("-inf") if case.op in ("max", "argmax", "amax") else float("inf")
        check(library, case, x, [1])
        check(library, case, x, [0])


@pytest.mark.parametrize("case", [c for c in CASES if c.op in ("argmax", "argmin", "max", "min")], ids=str)
def test_first_of_equals(library, case: Case) -> None:
    """Among equal extrema the first in logical order is reported, whatever the memory's order."""
    for dtype in case.dtypes:
        x = _make((40, 500), dtype) // 4 if dtype != torch.bool else _make((40, 500), dtype)
        for view in (x, x.t(), x[:, ::7]):
            check(library, case, view, [0])
            check(library, case, view, [1])
            if not case.single:
                check(library, case, view, None)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.op in ("sum", "mean", "any", "all", "count_nonzero", "var")], ids=str
)
def test_empty(library, case: Case) -> None:
    """Nothing to reduce gives the op's neutral value; nothing to keep gives nothing."""
    for dtype in case.dtypes:
        check(library, case, _make((0, 3), dtype), [0])
        check(library, case, _make((4, 0), dtype), None)
        check(library, case, _make((4, 0), dtype), [0])


def test_parallel(library) -> None:
    """Sizes above the threshold for threads: many outputs, few outputs of much, and one."""
    cases = {case.op: case for case in CASES if torch.float32 in case.dtypes}
    for op in ("sum", "var", "argmax", "amax"):
        for shape, dims in (((600, 300), [1]), ((600, 300), [0]), ((200000, 3), [0]), ((3, 100003), [1])):
            check(library, cases[op], _make(shape, torch.float32), dims)
        check(library, cases[op], _make((333, 777), torch.float32), None)


def test_accuracy(library) -> None:
    """A long float32 sum stays within a few units in the last place: adding one by one would lose 1 %."""
    x = torch.full((4_000_000,), 0.1)
    out = torch.empty(())
    library("reduction.reduce:reduce[dtype=float32,op=sum,out=float32]", [out, x], [[]])
    torch.testing.assert_close(out.double(), x.double().sum(), rtol=1e-6, atol=0)
    out = torch.empty(2)
    library("reduction.reduce:reduce[dtype=float32,op=sum,out=float32]", [out, x.view(-1, 2)], [[0]])
    torch.testing.assert_close(out.double(), x.view(-1, 2).double().sum(0), rtol=1e-6, atol=0)


def test_variance_of_large_mean(library) -> None:
    """A mean far above the deviation does not cancel."""
    case = next(case for case in CASES if case.op == "var")
    x = _make((7, 3001), torch.float32) + 3000
    for dims, view in ([1], x), ([0], x.t().contiguous()):
        out = torch.empty(7)
        library(_key(case, torch.float32, [out]), [out, view], [dims, None])
        torch.testing.assert_close(out, x.double().var(1).float(), rtol=1e-4, atol=0)


def test_dimension_out_of_range(library) -> None:
    with pytest.raises(IndexError, match=r"Dimension out of range \(expected to be in range of \[-2, 1\], but got 2\)"):
        library("reduction.reduce:reduce[dtype=float32,op=sum,out=float32]", [torch.empty(2), torch.empty(2, 3)], [[2]])
