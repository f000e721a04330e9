"""What a reduction iterates over: the kept and the reduced dimensions, sorted and merged once per call."""

from mojo_kernels.abi import KernelCall, Tensor
from mojo_kernels.layout import MAX_DIMENSIONS, IndexSpace
from std.collections import Array
from std.utils.static_tuple import StaticTuple

comptime INPUT = 0
"""The operand number of the input."""
comptime OUTPUT = 1
"""The operand number of the first output, in the kept space."""
comptime SECOND = 2
"""The operand number of the second output, in the kept space."""


struct ReductionPlan:
    """The iteration space of a reduction with one or two outputs."""

    var kept: IndexSpace[3]
    """One element per output, slower dimensions of the input first; operands: the input and two outputs."""
    var reduced: IndexSpace[1]
    """The elements behind an output."""

    def __init__(
        out self,
        input: Tensor,
        output: Tensor,
        second: Tensor,
        dimensions: UInt64,
        ordered: Bool,
    ) raises:
        """Classifies the dimensions of a reduction.

        Args:
            input: What is reduced.
            output: The result, with or without the reduced dimensions (size 1).
            second: The second result, of the same sizes, or the first again.
            dimensions: Bit d is set where dimension d is reduced.
            ordered: Whether reduced elements must be counted in the input's logical order.

        Raises:
            RuntimeError: The output's number of dimensions does not fit.
        """
        self.kept = IndexSpace[3]()
        self.reduced = IndexSpace[1]()
        var ndim = Int(input.ndim)
        var output_dimension = Array[Int, MAX_DIMENSIONS](uninitialized=True)
        var position = 0
        for d in range(ndim):
            output_dimension.unsafe_get(d) = position
            if output.ndim == input.ndim or not _is_reduced(dimensions, d):
                position += 1
        if position != Int(output.ndim):
            raise Error(
                "a reduction to ",
                position,
                " dimensions got an output with ",
                Int(output.ndim),
            )
        var order = Array[Int, MAX_DIMENSIONS](uninitialized=True)
        for d in range(ndim):
            var i = d
            while i > 0 and input.stride(
                order.unsafe_get(i - 1)
            ) < input.stride(d):
                order.unsafe_get(i) = order.unsafe_get(i - 1)
                i -= 1
            order.unsafe_get(i) = d
        for i in range(ndim):
            var d = order.unsafe_get(i)
            if not _is_reduced(dimensions, d):
                var target = output_dimension.unsafe_get(d)
                self.kept.append(
                    input.size(d),
                    StaticTuple[Int, 3](
                        input.stride(d),
                        output.stride(target),
                        second.stride(target),
                    ),
                )
            elif not ordered:
                self.reduced.append(
                    input.size(d), StaticTuple[Int, 1](input.stride(d))
                )
        if ordered:
            for d in range(ndim):
                if _is_reduced(dimensions, d):
                    self.reduced.append(
                        input.size(d), StaticTuple[Int, 1](input.stride(d))
                    )


@inline(.always)
def _is_reduced(dimensions: UInt64, dimension: Int) -> Bool:
    """Whether a dimension's bit is set."""
    return (dimensions >> UInt64(dimension)) & 1 != 0


def reduced_dimensions(
    call: KernelCall, position: Int, ndim: Int
) raises -> UInt64:
    """Reads a list of dimensions: a length and the dimensions, an empty or missing list meaning all.

    Args:
        call: The call whose scalars hold the list.
        position: Where the list's length stands.
        ndim: The input's number of dimensions.

    Returns:
        A word with bit d set where dimension d is reduced.

    Raises:
        IndexError: A dimension is out of range.
    """
    var count = 0
    if position < Int(call.n_scalars):
        count = call.int_scalar(position)
    if count == 0:
        return ~UInt64(0)
    var dimensions = UInt64(0)
    for i in range(count):
        dimensions |= UInt64(1) << UInt64(
            wrap_dimension(call.int_scalar(position + 1 + i), ndim)
        )
    return dimensions


def wrap_dimension(dimension: Int, ndim: Int) raises -> Int:
    """The number of a dimension counted from the front.

    Args:
        dimension: A dimension; negative counts from the end.
        ndim: The tensor's number of dimensions; 0 counts as 1.

    Returns:
        The dimension from 0.

    Raises:
        IndexError: It is out of range.
    """
    var count = max(ndim, 1)
    if dimension < -count or dimension >= count:
        raise Error(
            "IndexError: Dimension out of range (expected to be in range of [",
            -count,
            ", ",
            count - 1,
            "], but got ",
            dimension,
            ")",
        )
    return dimension + count if dimension < 0 else dimension
