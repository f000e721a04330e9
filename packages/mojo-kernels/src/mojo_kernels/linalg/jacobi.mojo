"""Jacobi's rotations: eigenvalues of symmetric matrices and singular values."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.element import ElementAction
from mojo_kernels.linalg.matrix import (
    Matrix,
    copy_matrices,
    each_matrix,
)
from mojo_kernels.math import sqrt
from std.utils.static_tuple import StaticTuple

comptime SWEEPS = 60
"""More than any matrix needs: convergence is quadratic."""


@inline(.always)
def _epsilon[dtype: DType]() -> Scalar[dtype]:
    """The rounding unit."""
    return Scalar[dtype](1.1e-16 if dtype == DType.float64 else 5.9e-8)


@inline(.always)
def _rotation[
    dtype: DType, //
](difference: Scalar[dtype], twice_product: Scalar[dtype]) -> Tuple[
    Scalar[dtype], Scalar[dtype]
]:
    """Cosine and sine of the smaller rotation that makes [[p, q], [q, r]] diagonal, from r - p and 2 q.
    """
    var zeta = difference / twice_product
    var sign = Scalar[dtype](1 if zeta >= 0 else -1)
    var tangent = sign / (abs(zeta) + sqrt(1 + zeta * zeta))
    var cosine = 1 / sqrt(1 + tangent * tangent)
    return cosine, cosine * tangent


@fieldwise_init
struct _Eigen[dtype: DType](ElementAction):
    """Diagonalizes one matrix; operands: matrix, vectors, values."""

    comptime operands = 3
    var matrices: Data[Self.dtype]
    var vectors: Data[Self.dtype]
    var values: Data[Self.dtype]
    var size: Int64

    def apply(self, offsets: StaticTuple[Int, 3]):
        var n = Int(self.size)
        var a = Matrix(self.matrices.unsafe_offset(offsets[0]), n)
        # Row i is the i-th eigenvector.
        var v = Matrix(self.vectors.unsafe_offset(offsets[1]), n)
        var values = self.values.unsafe_offset(offsets[2])
        for i in range(n):
            for j in range(n):
                v[i, j] = 1 if i == j else 0
        var total = Scalar[Self.dtype](0)
        for i in range(n):
            for j in range(n):
                total += a[i, j] * a[i, j]
        var limit = sqrt(total) * _epsilon[Self.dtype]() * 0.1
        for _ in range(SWEEPS):
            var rotated = False
            for p in range(n):
                for q in range(p + 1, n):
                    var x = a[p, q]
                    if not (abs(x) > limit):
                        continue
                    rotated = True
                    var c, s = _rotation(a[q, q] - a[p, p], 2 * x)
                    for k in range(n):
                        var left = a[k, p]
                        var right = a[k, q]
                        a[k, p] = c * left - s * right
                        a[k, q] = s * left + c * right
                    for k in range(n):
                        var left = a[p, k]
                        var right = a[q, k]
                        a[p, k] = c * left - s * right
                        a[q, k] = s * left + c * right
                        var first = v[p, k]
                        var second = v[q, k]
                        v[p, k] = c * first - s * second
                        v[q, k] = s * first + c * second
            if not rotated:
                break
        for i in range(n):
            values.unsafe_store(i, a[i, i])


def eigen[dtype: DType](call: KernelCall) raises:
    """Eigenvalues and eigenvectors of symmetric matrices, in no order.

    Tensors: a workspace [batch, size, size]; vectors [batch, size, size], a row each; values [batch, size]; contiguous; the
    matrices [batch, size, size], of any strides. No scalars.

    Parameters:
        dtype: float32 or float64.

    Args:
        call: The call.
    """
    var matrices = call.tensor(0)
    var n = matrices.size(1)
    copy_matrices[dtype](call, matrices, call.tensor(3))
    each_matrix(
        call,
        _Eigen[dtype](
            matrices.pointer[dtype](),
            call.tensor(1).pointer[dtype](),
            call.tensor(2).pointer[dtype](),
            Int64(n),
        ),
        matrices.size(0),
        StaticTuple[Int, 3](n * n, n * n, n),
        40 * n * n * n,
    )


@fieldwise_init
struct _Singular[dtype: DType](ElementAction):
    """Makes the rows of one matrix orthogonal; operands: matrix, rotations."""

    comptime operands = 2
    var matrices: Data[Self.dtype]
    var rotations: Data[Self.dtype]
    var rows: Int64
    var columns: Int64

    def apply(self, offsets: StaticTuple[Int, 2]):
        var rows = Int(self.rows)
        var columns = Int(self.columns)
        var a = Matrix(self.matrices.unsafe_offset(offsets[0]), columns)
        var v = Matrix(self.rotations.unsafe_offset(offsets[1]), rows)
        for i in range(rows):
            for j in range(rows):
                v[i, j] = 1 if i == j else 0
        for _ in range(SWEEPS):
            var rotated = False
            for p in range(rows):
                for q in range(p + 1, rows):
                    var left_norm = Scalar[Self.dtype](0)
                    var right_norm = Scalar[Self.dtype](0)
                    var product = Scalar[Self.dtype](0)
                    for k in range(columns):
                        left_norm += a[p, k] * a[p, k]
                        right_norm += a[q, k] * a[q, k]
                        product += a[p, k] * a[q, k]
                    var limit = (
                        sqrt(left_norm)
                        * sqrt(right_norm)
                        * _epsilon[Self.dtype]()
                    )
                    if not (abs(product) > limit):
                        continue
                    rotated = True
                    var c, s = _rotation(right_norm - left_norm, 2 * product)
                    for k in range(columns):
                        var left = a[p, k]
                        var right = a[q, k]
                        a[p, k] = c * left - s * right
                        a[q, k] = s * left + c * right
                    for k in range(rows):
                        var left = v[p, k]
                        var right = v[q, k]
                        v[p, k] = c * left - s * right
                        v[q, k] = s * left + c * right
            if not rotated:
                break


def singular[dtype: DType](call: KernelCall) raises:
    """Rotates the rows of matrices until they are orthogonal: their norms are the singular values, in no order.

    Tensors: what they become [batch, rows, columns], rows <= columns; the products of the rotations [batch, rows, rows];
    contiguous; the matrices, of any strides. No scalars.

    Parameters:
        dtype: float32 or float64.

    Args:
        call: The call.
    """
    var matrices = call.tensor(0)
    var rows = matrices.size(1)
    var columns = matrices.size(2)
    copy_matrices[dtype](call, matrices, call.tensor(2))
    each_matrix(
        call,
        _Singular[dtype](
            matrices.pointer[dtype](),
            call.tensor(1).pointer[dtype](),
            Int64(rows),
            Int64(columns),
        ),
        matrices.size(0),
        StaticTuple[Int, 2](rows * columns, rows * rows),
        40 * rows * rows * columns,
    )
