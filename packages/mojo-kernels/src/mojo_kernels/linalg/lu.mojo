"""LU factorization with partial pivoting."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.element import ElementAction
from mojo_kernels.linalg.matrix import (
    Matrix,
    copy_matrices,
    each_matrix,
)
from std.utils.static_tuple import StaticTuple


@fieldwise_init
struct _Factor[dtype: DType](ElementAction):
    """Factors one matrix in place; operands: matrix, pivots, info."""

    comptime operands = 3
    var data: Data[Self.dtype]
    var pivots: Data[DType.int32]
    var info: Data[DType.int32]
    var rows: Int64
    var columns: Int64
    var pivoting: Int64

    def apply(self, offsets: StaticTuple[Int, 3]):
        var a = Matrix(self.data.unsafe_offset(offsets[0]), Int(self.columns))
        var pivots = self.pivots.unsafe_offset(offsets[1])
        var rows = Int(self.rows)
        var columns = Int(self.columns)
        var singular = 0
        for k in range(min(rows, columns)):
            var best = k
            if self.pivoting != 0:
                for i in range(k + 1, rows):
                    if abs(a[i, k]) > abs(a[best, k]):
                        best = i
            pivots.unsafe_store(k, Int32(best + 1))
            if best != k:
                for j in range(columns):
                    var held = a[k, j]
                    a[k, j] = a[best, j]
                    a[best, j] = held
            if a[k, k] == 0:
                if singular == 0:
                    singular = k + 1
                continue
            for i in range(k + 1, rows):
                var factor = a[i, k] / a[k, k]
                a[i, k] = factor
                if factor != 0:
                    for j in range(k + 1, columns):
                        a[i, j] = a[i, j] - factor * a[k, j]
        self.info.unsafe_store(offsets[2], Int32(singular))


def factor[dtype: DType](call: KernelCall) raises:
    """Factors matrices into a unit lower and an upper triangle.

    Tensors: both triangles [batch, rows, columns], pivots [batch, min(rows, columns)] (int32, rows counted from 1), info
    [batch] (int32: the first zero on the diagonal, counted from 1, or 0), all contiguous; the matrices, of any strides.
    Scalars: whether rows are exchanged.

    Parameters:
        dtype: float32 or float64.

    Args:
        call: The call.
    """
    var matrices = call.tensor(0)
    var rows = matrices.size(1)
    var columns = matrices.size(2)
    copy_matrices[dtype](call, matrices, call.tensor(3))
    each_matrix(
        call,
        _Factor[dtype](
            matrices.pointer[dtype](),
            call.tensor(1).pointer[DType.int32](),
            call.tensor(2).pointer[DType.int32](),
            Int64(rows),
            Int64(columns),
            Int64(call.int_scalar(0)),
        ),
        matrices.size(0),
        StaticTuple[Int, 3](rows * columns, min(rows, columns), 1),
        rows * columns * min(rows, columns),
    )


@fieldwise_init
struct _Permute(ElementAction):
    """Turns one matrix's exchanges into a permutation; operands: permutation, pivots.
    """

    comptime operands = 2
    var permutation: Data[DType.int64]
    var pivots: Data[DType.int32]
    var rows: Int64
    var count: Int64

    def apply(self, offsets: StaticTuple[Int, 2]):
        var order = self.permutation.unsafe_offset(offsets[0])
        var pivots = self.pivots.unsafe_offset(offsets[1])
        for i in range(Int(self.rows)):
            order.unsafe_store(i, Int64(i))
        for k in range(Int(self.count)):
            var other = Int(pivots.unsafe_load(k)) - 1
            var held = order.unsafe_load(k)
            order.unsafe_store(k, order.unsafe_load(other))
            order.unsafe_store(other, held)


def permutation(call: KernelCall) raises:
    """The permutations that sequences of row exchanges make.

    Tensors: permutations [batch, rows] (int64: the row that comes to each place), pivots [batch, count] (int32), contiguous.
    No scalars.

    Args:
        call: The call.
    """
    var output = call.tensor(0)
    var pivots = call.tensor(1)
    each_matrix(
        call,
        _Permute(
            output.pointer[DType.int64](),
            pivots.pointer[DType.int32](),
            Int64(output.size(1)),
            Int64(pivots.size(1)),
        ),
        output.size(0),
        StaticTuple[Int, 2](output.size(1), pivots.size(1)),
        output.size(1),
    )
