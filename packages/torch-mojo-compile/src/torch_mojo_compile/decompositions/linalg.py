"""Factorizations and systems of equations, over the kernels of mojo-kernels' linalg, for float32 and float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from torch_mojo_compile import kernel_ops
from torch_mojo_compile.decompositions.registry import decomposition

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _real(*names: str) -> Callable[[_Function], _Function]:
    """A decomposition of matrices of float32 or float64, for calls that do not ask for an error where there is none."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def chosen(*args: Any, **named: Any) -> Any:
            real = all(a.dtype in (torch.float32, torch.float64, torch.int32) for a in args if isinstance(a, Tensor))
            return function(*args, **named) if real and not named.pop("check_errors", False) else NotImplemented

        return decomposition(*names)(chosen)  # type: ignore[return-value]

    return decorate


def _batch(x: Tensor) -> Tensor:
    """A tensor as [batch, rows, columns]."""
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _identity(rows: int, columns: int, like: Tensor) -> Tensor:
    return torch.eye(rows, columns, dtype=like.dtype, device=like.device)


# ---- LU --------------------------------------------------------------------------------------------------------------


@_real("linalg_lu_factor_ex.default")
def lu_factor(A: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """LU factorization with partial pivoting."""
    lu, pivots, info = kernel_ops.lu_factor(_batch(A), pivot)
    return lu.view(A.shape), pivots.view(*A.shape[:-2], min(A.shape[-2:])), info.view(A.shape[:-2])


def _order(pivots: Tensor, rows: int) -> Tensor:
    """The row that comes to each place, [..., rows]."""
    flat = pivots.reshape(math.prod(pivots.shape[:-1]), pivots.shape[-1])
    order: Tensor = kernel_ops.lu_permutation(flat, rows)
    return order.view(*pivots.shape[:-1], rows)


@_real("lu_unpack.default")
def lu_unpack(
    LU: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The permutation and the two triangles of a factorization."""
    rows, columns = LU.shape[-2:]
    count = min(rows, columns)
    permutation, lower, upper = (LU.new_empty(0) for _ in range(3))
    if unpack_data:
        lower = LU[..., :count].tril(-1) + _identity(rows, count, LU)
        upper = LU[..., :count, :].triu()
    if unpack_pivots:
        numbers = torch.arange(rows, device=LU.device)
        permutation = (_order(pivots, rows)[..., None, :] == numbers[:, None]).to(LU.dtype)
    return permutation, lower, upper


@_real("linalg_lu.default")
def lu(A: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """LU factorization as permutation and triangles."""
    factors, pivots, _ = lu_factor(A, pivot=pivot)
    return lu_unpack(factors, pivots, True, pivot)


def _triangular(matrix: Tensor, right: Tensor, upper: bool, unit: bool = False) -> Tensor:
    """Solves matrix @ X = right, batches broadcast."""
    shape = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    right, matrix = right.expand(*shape, *right.shape[-2:]), matrix.expand(*shape, *matrix.shape[-2:])
    solution: Tensor = kernel_ops.solve_triangle(_batch(right), _batch(matrix), upper, unit)
    return solution.view(right.shape)


def _lu_solve(LU: Tensor, pivots: Tensor, right: Tensor, transposed: bool = False) -> Tensor:
    """Solves A X = B or A^T X = B with the factorization of A."""
    n = LU.shape[-1]
    shape = torch.broadcast_shapes(LU.shape[:-2], right.shape[:-2])
    order = _order(pivots, n).expand(*shape, n)
    right = right.expand(*shape, *right.shape[-2:])
    if transposed:
        solution = _triangular(LU.mT, _triangular(LU.mT, right, upper=False), upper=True, unit=True)
        return torch.take_along_dim(solution, order.argsort(-1)[..., None], -2)
    permuted = torch.take_along_dim(right, order[..., None], -2)
    return _triangular(LU, _triangular(LU, permuted, upper=False, unit=True), upper=True)


@_real("linalg_lu_solve.default")
def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """Solves equations with a factorization: A X = B, or X A = B."""
    return _lu_solve(LU, pivots, B, adjoint) if left else _lu_solve(LU, pivots, B.mT, not adjoint).mT


@_real("_linalg_solve_ex.default")
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solves A X = B, or X A = B."""
    factors, pivots, info = lu_factor(A)
    # B is a vector, or a batch of vectors where its sizes are those of A without the last.
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    solution = lu_solve(factors, pivots, B[..., None] if vector else B, left=left)
    return solution[..., 0] if vector else solution, factors, pivots, info


@_real("linalg_inv_ex.default")
def inverse(A: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse matrices."""
    factors, pivots, info = lu_factor(A)
    return _lu_solve(factors, pivots, _identity(A.shape[-1], A.shape[-1], A)), info


def _factors_for_determinant(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """LU, pivots and the permutation's sign; torch's backward formulas expect A transposed where it is contiguous."""
    factors, pivots, _ = lu_factor(A.mT if A.is_contiguous() else A)
    places = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return factors, pivots, 1 - 2 * ((pivots != places).sum(-1) % 2).to(A.dtype)


@_real("_linalg_det.default")
def determinant(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Determinants."""
    factors, pivots, sign = _factors_for_determinant(A)
    return factors.diagonal(dim1=-2, dim2=-1).prod(-1) * sign, factors, pivots


@_real("_linalg_slogdet.default")
def slogdet(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Signs and logarithms of determinants."""
    factors, pivots, sign = _factors_for_determinant(A)
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    return diagonal.sign().prod(-1) * sign, diagonal.abs().log().sum(-1), factors, pivots


# ---- triangles and Cholesky ------------------------------------------------------------------------------------------


@_real("linalg_solve_triangular.default")
def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Solves A X = B, or X A = B, where A is a triangle."""
    if left:
        return _triangular(A, B, upper, unitriangular)
    return _triangular(A.mT, B.mT, not upper, unitriangular).mT


@_real("triangular_solve.default")
def triangular_solve(
    B: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    """Solves A X = B where A is a triangle."""
    solution = _triangular(A.mT if transpose else A, B, upper != transpose, unitriangular)
    return solution, A.expand(*solution.shape[:-2], *A.shape[-2:]).clone()


@_real("linalg_cholesky_ex.default")
def cholesky(A: Tensor, *, upper: bool = False) -> tuple[Tensor, Tensor]:
    """Cholesky factors."""
    factors, info = kernel_ops.cholesky(_batch(A.mT if upper else A))
    lower = factors.view(A.shape)
    return lower.mT if upper else lower, info.view(A.shape[:-2])


@_real("_cholesky_solve_helper.default", "cholesky_solve.default")
def cholesky_solve(B: Tensor, A: Tensor, upper: bool = False) -> Tensor:
    """Solves equations with a Cholesky factor."""
    lower = A.mT if upper else A
    return _triangular(lower.mT, _triangular(lower, B, upper=False), upper=True)


@_real("cholesky_inverse.default")
def cholesky_inverse(A: Tensor, upper: bool = False) -> Tensor:
    """The inverse of a matrix with a given Cholesky factor."""
    return cholesky_solve(_identity(A.shape[-1], A.shape[-1], A).expand(A.shape), A, upper)


# ---- QR --------------------------------------------------------------------------------------------------------------


@_real("geqrf.default")
def geqrf(A: Tensor) -> tuple[Tensor, Tensor]:
    """QR factorization as reflections."""
    stored, factors = kernel_ops.qr_factor(_batch(A))
    return stored.view(A.shape), factors.view(*A.shape[:-2], min(A.shape[-2:]))


def _times_reflections(x: Tensor, stored: Tensor, factors: Tensor, transposed: bool = False) -> Tensor:
    """Multiplies from the left by the orthogonal matrix of reflections."""
    flat = factors.reshape(math.prod(factors.shape[:-1]), factors.shape[-1])
    product: Tensor = kernel_ops.qr_multiply(_batch(x), _batch(stored), flat, transposed)
    return product.view(x.shape)


@_real("linalg_householder_product.default")
def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of a product of reflections."""
    return _times_reflections(_identity(A.shape[-2], A.shape[-1], A).expand(A.shape), A, tau)


@_real("ormqr.default")
def ormqr(A: Tensor, tau: Tensor, x: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """Product of a matrix and an orthogonal one that is given as reflections."""
    if left:
        return _times_reflections(x, A, tau, transpose)
    return _times_reflections(x.mT, A, tau, not transpose).mT


@_real("linalg_qr.default")
def qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """QR factorization."""
    rows, columns = A.shape[-2:]
    height = rows if mode == "complete" else min(rows, columns)
    stored, factors = geqrf(A)
    upper = stored[..., :height, :].triu()
    if mode == "r":
        return A.new_empty(0), upper
    identity = _identity(rows, height, A).expand(*A.shape[:-2], rows, height)
    return _times_reflections(identity, stored, factors), upper


# ---- eigenvalues and singular values ---------------------------------------------------------------------------------


@_real("_linalg_eigh.default")
def eigh(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors of symmetric matrices of which one triangle is read."""
    lower = A if UPLO.upper() == "L" else A.mT
    vectors, values = kernel_ops.symmetric_eigen(_batch(lower.tril() + lower.tril(-1).mT))
    values, order = values.sort(-1)
    ordered = torch.take_along_dim(vectors, order[..., None], 1).mT
    return values.view(A.shape[:-1]), ordered.reshape(A.shape) if compute_v else A.new_empty(0)


def _complete(columns: Tensor, size: int) -> Tensor:
    """Orthonormal columns [batch, rows, k] and as many more as make `size`; columns of zeros are replaced."""
    batch, rows, given = columns.shape
    padded = torch.cat([columns, columns.new_zeros(batch, rows, size - given)], -1) if size > given else columns
    # Of an orthonormal set, QR changes signs only; beyond it, its factor goes on with an orthonormal basis.
    stored, factors = geqrf(padded)
    basis = _times_reflections(_identity(rows, size, columns).expand(batch, rows, size), stored, factors)
    return torch.where(padded.square().sum(1, keepdim=True) > 0.25, padded, basis)


@_real("_linalg_svd.default")
def svd(
    A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values, descending, and singular vectors."""
    rows, columns = A.shape[-2:]
    wide = rows <= columns
    batch = _batch(A if wide else A.mT)
    small, large = batch.shape[1:]
    rotated, rotations = kernel_ops.singular_rows(batch)
    values, order = torch.linalg.vector_norm(rotated, dim=-1).sort(-1, descending=True)
    found = values.view(*A.shape[:-2], small)
    if not compute_uv:
        return A.new_empty(0), found, A.new_empty(0)
    left = torch.take_along_dim(rotations, order[..., None], 1).mT  # [batch, small, small]
    ordered = torch.take_along_dim(rotated, order[..., None], 1)
    tiny = values[..., :1] * (large * torch.finfo(A.dtype).eps)
    right = torch.where((values > tiny)[..., None], ordered / values[..., None], 0).mT  # [batch, large, small]
    right = _complete(right, large if full_matrices else small)
    first, second = ((m.view(*A.shape[:-2], *m.shape[1:])) for m in ((left, right) if wide else (right, left)))
    return first, found, second.mT


@_real("linalg_pinv.atol_rtol_tensor")
def pinv(A: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    """Pseudoinverses: singular values up to a limit count as 0."""
    if rtol is None:
        default = torch.finfo(A.dtype).eps * max(A.shape[-2:])
        rtol = A.new_full((), default) if atol is None else torch.where(atol > 0, 0, A.new_full((), default))
    if hermitian:
        values, left = eigh(A)
        right = left
    else:
        left, values, transposed = svd(A)
        right = transposed.mT
    sizes = values.abs()
    limit = rtol[..., None] * sizes.amax(-1, keepdim=True)
    limit = limit if atol is None else torch.maximum(atol[..., None], limit)
    inverses = torch.where(sizes > limit, 1 / values, 0)
    return (right * inverses[..., None, :]) @ left.mT
