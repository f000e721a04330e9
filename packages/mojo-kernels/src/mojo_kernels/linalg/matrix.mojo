"""A matrix in a row-major batch, and how batches are run."""

from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.layout import IndexSpace
from std.utils.static_tuple import StaticTuple

comptime WORK = 65536
"""Multiplications that are worth a thread."""


@fieldwise_init
struct Matrix[dtype: DType](TrivialRegisterPassable):
    """A row-major matrix.

    Parameters:
        dtype: The element type.
    """

    var data: Data[Self.dtype]
    """The first element."""
    var columns: Int
    """The number of columns, which is the distance between rows."""

    @inline(.always)
    def __getitem__(self, row: Int, column: Int) -> Scalar[Self.dtype]:
        """An element.

        Args:
            row: From 0.
            column: From 0.

        Returns:
            Its value.
        """
        return self.data.unsafe_load(row * self.columns + column)

    @inline(.always)
    def __setitem__(self, row: Int, column: Int, value: Scalar[Self.dtype]):
        """Writes an element.

        Args:
            row: From 0.
            column: From 0.
            value: What to write.
        """
        self.data.unsafe_store(row * self.columns + column, value)


def each_matrix[
    A: ElementAction
](
    call: KernelCall,
    action: A,
    batch: Int,
    sizes: StaticTuple[Int, A.operands],
    work: Int,
) raises:
    """Applies an action to every matrix of a batch.

    Parameters:
        A: The action's type.

    Args:
        call: The call.
        action: Its operands are tensors whose first dimension is the batch.
        batch: The number of matrices.
        sizes: How many elements each operand has per matrix.
        work: About how many multiplications a matrix costs.
    """
    var space = IndexSpace[A.operands]()
    space.append(batch, sizes)
    each_element(call, action, space, max(1, WORK // max(1, work)))


@fieldwise_init
struct _Copy[dtype: DType](ElementAction):
    """Copies one element; operands: where to, where from."""

    comptime operands = 2
    var copies: Data[Self.dtype]
    var source: Data[Self.dtype]

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 2]):
        self.copies.unsafe_store(
            offsets[0], self.source.unsafe_load(offsets[1])
        )


def copy_matrices[
    dtype: DType
](call: KernelCall, copies: Tensor, source: Tensor) raises:
    """Copies a batch of matrices, for what works in place.

    Parameters:
        dtype: The element type.

    Args:
        call: The call.
        copies: [batch, rows, columns], contiguous.
        source: The same sizes, any strides.
    """
    var space = IndexSpace[2]()
    for d in range(3):
        space.append(
            copies.size(d),
            StaticTuple[Int, 2](copies.stride(d), source.stride(d)),
        )
    each_element(
        call,
        _Copy[dtype](copies.pointer[dtype](), source.pointer[dtype]()),
        space,
    )
