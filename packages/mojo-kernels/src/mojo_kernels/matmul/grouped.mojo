"""Products of groups of rows or columns with a matrix each, as mixtures of experts have them."""

from std.sys.info import has_accelerator

from mojo_kernels.abi import KernelCall, Tensor
from mojo_kernels.matmul.matrix import Matrix, Update
from mojo_kernels.matmul.multiply import multiply
from mojo_kernels.matmul.tile import TileFormat


@inline(.always)
def _slice[
    dtype: DType
](tensor: Tensor, group: Int, row: Int, column: Int) -> Matrix[dtype]:
    """A group's matrix of a batch, or the part of a single matrix from a row and a column on.
    """
    if tensor.ndim == 3:
        return Matrix[dtype](
            tensor.pointer[dtype]().unsafe_offset(group * tensor.stride(0)),
            tensor.stride(1),
            tensor.stride(2),
        )
    return Matrix[dtype](
        tensor.pointer[dtype](), tensor.stride(0), tensor.stride(1)
    ).block(row, column)


def grouped_mm[dtype: DType](call: KernelCall) raises:
    """Multiplies groups: of a's rows where only a is a matrix, of b's columns where only b is, else of what both are summed over.

    Tensors: out [m, n], for two matrices [groups, m, n]; a [(groups,) m, k]; b [(groups,) k, n]; any strides; offsets
    [groups], int32 and contiguous: where each group ends. What lies behind the last group is 0. No scalars.

    Parameters:
        dtype: The element type of all but the offsets.

    Args:
        call: The call.

    Raises:
        IndexError: The offsets descend, or one is out of range.
        NotImplementedError: The offsets are in a GPU's memory.
    """
    comptime if has_accelerator():
        raise Error(
            "NotImplementedError: grouped_mm has no kernel for GPUs; multiply"
            " the groups one by one"
        )
    else:
        comptime accumulate = TileFormat[dtype].ACCUMULATE
        var out = call.tensor(0)
        var a = call.tensor(1)
        var b = call.tensor(2)
        var groups = call.tensor(3).size(0)
        var ends = call.tensor(3).pointer[DType.int32]()
        var of_rows = a.ndim == 2 and b.ndim == 3
        var of_columns = a.ndim == 3 and b.ndim == 2
        var length = b.size(1) if of_columns else a.size(
            0
        ) if of_rows else a.size(1)
        var start = 0
        # One more for what is behind the last group: its products are sums of nothing.
        for group in range(groups + Int(of_rows or of_columns)):
            var rest = group == groups
            var end = length if rest else Int(ends.unsafe_load(group))
            if end < start or end > length:
                raise Error(
                    "IndexError: grouped_mm: offset ",
                    end,
                    " is not between ",
                    start,
                    " and ",
                    length,
                )
            var size = end - start
            var matrix = 0 if rest else group
            var row = start if of_rows else 0
            var column = start if of_columns else 0
            var summed = 0 if of_rows or of_columns else start
            var target = _slice[dtype](out, group, row, column)
            multiply[dtype](
                call,
                size if of_rows else a.size(-2),
                size if of_columns else b.size(-1),
                0 if rest else a.size(-1) if of_rows or of_columns else size,
                _slice[dtype](a, matrix, row, summed),
                _slice[dtype](b, matrix, summed, column),
                Update[dtype, accumulate](target, 1, 0, target, False, 0),
            )
            start = end
