"""Householder reflections: QR factorization and its orthogonal factor."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.element import ElementAction
from mojo_kernels.linalg.matrix import (
    Matrix,
    copy_matrices,
    each_matrix,
)
from mojo_kernels.math import sqrt
from std.utils.static_tuple import StaticTuple


@inline(.always)
def _reflect[
    dtype: DType, //
](
    a: Matrix[dtype],
    v: Matrix[dtype],
    k: Int,
    tau: Scalar[dtype],
    rows: Int,
    first: Int,
    last: Int,
):
    """Applies 1 - tau v v^T, v below row k of column k of `v` with a 1 at row k, to columns of `a`.
    """
    for j in range(first, last):
        var total = a[k, j]
        for i in range(k + 1, rows):
            total += v[i, k] * a[i, j]
        total *= tau
        a[k, j] = a[k, j] - total
        for i in range(k + 1, rows):
            a[i, j] = a[i, j] - total * v[i, k]


@fieldwise_init
struct _Factor[dtype: DType](ElementAction):
    """Factors one matrix in place; operands: matrix, factors of the reflections.
    """

    comptime operands = 2
    var data: Data[Self.dtype]
    var taus: Data[Self.dtype]
    var rows: Int64
    var columns: Int64

    def apply(self, offsets: StaticTuple[Int, 2]):
        var rows = Int(self.rows)
        var columns = Int(self.columns)
        var a = Matrix(self.data.unsafe_offset(offsets[0]), columns)
        var taus = self.taus.unsafe_offset(offsets[1])
        for k in range(min(rows, columns)):
            var below = Scalar[Self.dtype](0)
            for i in range(k + 1, rows):
                below += a[i, k] * a[i, k]
            var head = a[k, k]
            if below == 0:
                taus.unsafe_store(k, 0)
                continue
            var norm = sqrt(head * head + below)
            var beta = norm if head < 0 else -norm
            var tau = (beta - head) / beta
            for i in range(k + 1, rows):
                a[i, k] = a[i, k] / (head - beta)
            _reflect(a, a, k, tau, rows, k + 1, columns)
            a[k, k] = beta
            taus.unsafe_store(k, tau)


def factor[dtype: DType](call: KernelCall) raises:
    """Factors matrices into reflections and an upper triangle, as LAPACK's geqrf.

    Tensors: both [batch, rows, columns], factors of the reflections [batch, min(rows, columns)], contiguous; the matrices,
    of any strides. No scalars.

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
        _Factor[dtype](
            matrices.pointer[dtype](),
            call.tensor(1).pointer[dtype](),
            Int64(rows),
            Int64(columns),
        ),
        matrices.size(0),
        StaticTuple[Int, 2](rows * columns, min(rows, columns)),
        2 * rows * columns * min(rows, columns),
    )


@fieldwise_init
struct _Apply[dtype: DType](ElementAction):
    """Multiplies one matrix by reflections; operands: matrix, reflections, their factors.
    """

    comptime operands = 3
    var data: Data[Self.dtype]
    var reflections: Data[Self.dtype]
    var taus: Data[Self.dtype]
    var rows: Int64
    var columns: Int64
    var stored: Int64
    var count: Int64
    var transposed: Int64

    def apply(self, offsets: StaticTuple[Int, 3]):
        var a = Matrix(self.data.unsafe_offset(offsets[0]), Int(self.columns))
        var v = Matrix(
            self.reflections.unsafe_offset(offsets[1]), Int(self.stored)
        )
        var taus = self.taus.unsafe_offset(offsets[2])
        var count = Int(self.count)
        for step in range(count):
            var k = step if self.transposed != 0 else count - 1 - step
            _reflect(
                a,
                v,
                k,
                taus.unsafe_load(k),
                Int(self.rows),
                0,
                Int(self.columns),
            )


def multiply[dtype: DType](call: KernelCall) raises:
    """Multiplies matrices from the left by the orthogonal matrix that reflections make.

    Tensors: products [batch, rows, columns], contiguous; the matrices, of any strides; reflections below the diagonal of
    [batch, rows, stored], their factors [batch, count], contiguous. Scalars: whether by its transpose.

    Parameters:
        dtype: float32 or float64.

    Args:
        call: The call.
    """
    var matrices = call.tensor(0)
    var reflections = call.tensor(2)
    var count = call.tensor(3).size(1)
    var rows = matrices.size(1)
    var columns = matrices.size(2)
    copy_matrices[dtype](call, matrices, call.tensor(1))
    each_matrix(
        call,
        _Apply[dtype](
            matrices.pointer[dtype](),
            reflections.pointer[dtype](),
            call.tensor(3).pointer[dtype](),
            Int64(rows),
            Int64(columns),
            Int64(reflections.size(2)),
            Int64(count),
            Int64(call.int_scalar(0)),
        ),
        matrices.size(0),
        StaticTuple[Int, 3](rows * columns, rows * reflections.size(2), count),
        2 * rows * columns * count,
    )
