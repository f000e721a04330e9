"""The kernels of factorizations, as `custom_mojo_ops` has the others; matrices are batches of float32 or float64."""

from __future__ import annotations

from typing import Any

import torch
from max.dtype import DType
from max.graph import StaticDim, TensorValue

from torch_mojo_compile.custom_mojo_ops import Operand, Shape, int64_like, kernel, only


def _int32(value: Any) -> Any:
    return DType.int32 if isinstance(value, TensorValue) else torch.int32


def _smaller(x: Any) -> Any:
    rows, columns = x.shape[1], x.shape[2]
    if isinstance(x, TensorValue) and not (isinstance(rows, StaticDim) and isinstance(columns, StaticDim)):
        raise NotImplementedError("a factorization of matrices whose sizes are not known when they are compiled")
    return min(int(rows), int(columns))


def lu_factor(x: Operand, pivot: bool) -> tuple[Operand, Operand, Operand]:
    """LU factorization.

    Args:
        x: [batch, rows, columns], float32 or float64, like all matrices here.
        pivot: Whether rows are exchanged.

    Returns:
        Both triangles; rows that were exchanged, counted from 1, int32; where the diagonal has its first zero, or 0.
    """
    outputs = [(x.shape, x.dtype), ([x.shape[0], _smaller(x)], _int32(x)), ([x.shape[0]], _int32(x))]
    made = kernel("linalg.lu:factor", outputs, [x], [pivot], dtype=x.dtype)
    return made[0], made[1], made[2]


def lu_permutation(pivots: Operand, rows: Any) -> Operand:
    """The row that comes to each place [batch, rows] by exchanges [batch, count], int32, of `lu_factor`."""
    outputs = [([pivots.shape[0], rows], int64_like(pivots))]
    return only(pivots, kernel("linalg.lu:permutation", outputs, [pivots], contiguous=True))


def solve_triangle(right: Operand, triangle: Operand, upper: bool, unit: bool) -> Operand:
    """Solves triangle @ X = right.

    Args:
        right: [batch, size, columns]
        triangle: [batch, size, size]
        upper: Which triangle is read.
        unit: Whether its diagonal is taken for 1.
    """
    inputs, scalars = [right, triangle], [upper, unit]
    made = kernel(
        "linalg.triangular:solve", [(right.shape, right.dtype)], inputs, scalars, contiguous=True, dtype=right.dtype
    )
    return only(right, made)


def cholesky(x: Operand) -> tuple[Operand, Operand]:
    """L of L @ L.T = x [batch, size, size], of which the lower triangle is read, and info, 0 where there is one."""
    outputs = [(x.shape, x.dtype), ([x.shape[0]], _int32(x))]
    made = kernel("linalg.triangular:cholesky", outputs, [x], dtype=x.dtype)
    return made[0], made[1]


def qr_factor(x: Operand) -> tuple[Operand, Operand]:
    """QR of [batch, rows, columns] as LAPACK's geqrf: R above reflections, and their factors [batch, smaller size]."""
    outputs = [(x.shape, x.dtype), ([x.shape[0], _smaller(x)], x.dtype)]
    made = kernel("linalg.qr:factor", outputs, [x], dtype=x.dtype)
    return made[0], made[1]


def qr_multiply(x: Operand, reflections: Operand, factors: Operand, transposed: bool) -> Operand:
    """Multiplies [batch, rows, columns] from the left by the orthogonal matrix of `qr_factor`, or its transpose."""
    inputs = [x, reflections, factors]
    made = kernel("linalg.qr:multiply", [(x.shape, x.dtype)], inputs, [transposed], contiguous=True, dtype=x.dtype)
    return only(x, made)


def symmetric_eigen(x: Operand) -> tuple[Operand, Operand]:
    """Eigenvectors, a row each, and eigenvalues of symmetric [batch, size, size], in no order."""
    outputs = [(x.shape, x.dtype), (x.shape, x.dtype), (x.shape[:2], x.dtype)]
    made = kernel("linalg.jacobi:eigen", outputs, [x], dtype=x.dtype)
    return made[1], made[2]


def singular_rows(x: Operand) -> tuple[Operand, Operand]:
    """Rows that [batch, rows, columns], rows <= columns, is rotated to until they are orthogonal, and the rotations.

    The rows' norms are the singular values, in no order.
    """
    outputs = [(x.shape, x.dtype), ([x.shape[0], x.shape[1], x.shape[1]], x.dtype)]
    made = kernel("linalg.jacobi:singular", outputs, [x], dtype=x.dtype)
    return made[0], made[1]


def check_info(info: Operand, shape: Shape, dtype: Any) -> Operand:
    """Raises where `info`, int32, of a factorization is not 0.

    Args:
        info: Any sizes.
        shape: Of the result, which has no elements; that somebody returns it keeps the check in a graph.
        dtype: Of the result.
    """
    return only(info, kernel("linalg.info:check", [(shape, dtype)], [info], contiguous=True))


__all__ = [
    "check_info",
    "cholesky",
    "lu_factor",
    "lu_permutation",
    "qr_factor",
    "qr_multiply",
    "singular_rows",
    "solve_triangle",
    "symmetric_eigen",
]
