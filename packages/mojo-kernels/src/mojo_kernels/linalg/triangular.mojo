"""Triangular systems and the Cholesky factorization."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.element import ElementAction
from mojo_kernels.linalg.matrix import (
    Matrix,
    copy_matrices,
    each_matrix,
)
from mojo_kernels.math import sqrt
from std.utils.static_tuple import StaticTuple


@fieldwise_init
struct _Solve[dtype: DType](ElementAction):
    """Solves one system in place; operands: right-hand sides, triangle."""

    comptime operands = 2
    var solutions: Data[Self.dtype]
    var triangles: Data[Self.dtype]
    var size: Int64
    var columns: Int64
    var upper: Int64
    var unit: Int64

    def apply(self, offsets: StaticTuple[Int, 2]):
        var n = Int(self.size)
        var columns = Int(self.columns)
        var x = Matrix(self.solutions.unsafe_offset(offsets[0]), columns)
        var a = Matrix(self.triangles.unsafe_offset(offsets[1]), n)
        for step in range(n):
            var i = n - 1 - step if self.upper != 0 else step
            var first = i + 1 if self.upper != 0 else 0
            var last = n if self.upper != 0 else i
            for k in range(first, last):
                var factor = a[i, k]
                if factor != 0:
                    for j in range(columns):
                        x[i, j] = x[i, j] - factor * x[k, j]
            if self.unit == 0:
                var pivot = a[i, i]
                for j in range(columns):
                    x[i, j] = x[i, j] / pivot


def solve[dtype: DType](call: KernelCall) raises:
    """Solves triangular systems.

    Tensors: solutions [batch, size, columns], contiguous; right-hand sides, of any strides; triangles [batch, size, size],
    contiguous. Scalars: whether the triangle is the upper one; whether its diagonal is taken for 1.

    Parameters:
        dtype: float32 or float64.

    Args:
        call: The call.
    """
    var solutions = call.tensor(0)
    var n = solutions.size(1)
    var columns = solutions.size(2)
    copy_matrices[dtype](call, solutions, call.tensor(1))
    each_matrix(
        call,
        _Solve[dtype](
            solutions.pointer[dtype](),
            call.tensor(2).pointer[dtype](),
            Int64(n),
            Int64(columns),
            Int64(call.int_scalar(0)),
            Int64(call.int_scalar(1)),
        ),
        solutions.size(0),
        StaticTuple[Int, 2](n * columns, n * n),
        n * n * columns,
    )


@fieldwise_init
struct _Cholesky[dtype: DType](ElementAction):
    """Factors one matrix in place; operands: matrix, info."""

    comptime operands = 2
    var data: Data[Self.dtype]
    var info: Data[DType.int32]
    var size: Int64

    def apply(self, offsets: StaticTuple[Int, 2]):
        var n = Int(self.size)
        var a = Matrix(self.data.unsafe_offset(offsets[0]), n)
        for i in range(n):
            for j in range(i + 1):
                var total = a[i, j]
                for k in range(j):
                    total -= a[i, k] * a[j, k]
                if i != j:
                    a[i, j] = total / a[j, j]
                    continue
                if not (total > 0):
                    self.info.unsafe_store(offsets[1], Int32(i + 1))
                    return
                a[i, i] = sqrt(total)
            for j in range(i + 1, n):
                a[i, j] = 0
        self.info.unsafe_store(offsets[1], 0)


def cholesky[dtype: DType](call: KernelCall) raises:
    """Factors positive definite matrices into L L^T; only the lower triangle is read.

    Tensors: L [batch, size, size]; info [batch] (int32: the order of the leading minor that is not positive, or 0);
    contiguous; the matrices, of any strides. No scalars.

    Parameters:
        dtype: float32 or float64.

    Args:
        call: The call.
    """
    var matrices = call.tensor(0)
    var n = matrices.size(1)
    copy_matrices[dtype](call, matrices, call.tensor(2))
    each_matrix(
        call,
        _Cholesky[dtype](
            matrices.pointer[dtype](),
            call.tensor(1).pointer[DType.int32](),
            Int64(n),
        ),
        matrices.size(0),
        StaticTuple[Int, 2](n * n, 1),
        n * n * n // 3,
    )
