"""Lower and upper triangles of matrices."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.layout import IndexSpace, parallel_ranges
from mojo_kernels.pointwise.function import storage_type
from std.memory import unsafe_memcpy, unsafe_memset
from std.sys.info import has_accelerator
from std.utils.static_tuple import StaticTuple

comptime GRAIN = 65536
"""Elements that are worth a thread."""


@fieldwise_init
struct _Triangle[upper: Bool, dtype: DType](ElementAction):
    """Copies or clears one element; operands: output, input, and the row less the column.
    """

    comptime operands = 3
    var output: Data[storage_type[Self.dtype]()]
    var input: Data[storage_type[Self.dtype]()]
    var diagonal: Int64

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 3]):
        var keeps: Bool
        comptime if Self.upper:
            keeps = -offsets[2] >= Int(self.diagonal)
        else:
            keeps = -offsets[2] <= Int(self.diagonal)
        var value = Scalar[storage_type[Self.dtype]()](0)
        if keeps:
            value = self.input.unsafe_load(offsets[1])
        self.output.unsafe_store(offsets[0], value)


def triangle[op: StaticString, dtype: DType](call: KernelCall) raises:
    """Keeps a triangle of matrices and sets the rest to zero.

    Tensors: output and input [..., rows, columns], of any strides. Scalars: the diagonal, counted upwards, that bounds what
    is kept.

    Parameters:
        op: "tril" or "triu".
        dtype: The element type.

    Args:
        call: The call.
    """
    comptime storage = storage_type[dtype]()
    comptime upper = op == "triu"
    var output = call.tensor(0)
    var input = call.tensor(1)
    var ndim = Int(output.ndim)
    var diagonal = call.int_scalar(0)
    var space = IndexSpace[3]()
    for d in range(ndim):
        var distance = 1 if d == ndim - 2 else -1 if d == ndim - 1 else 0
        space.append(
            output.size(d),
            StaticTuple[Int, 3](output.stride(d), input.stride(d), distance),
        )
    comptime if not has_accelerator():
        if (
            output.stride(-1) == 1
            and input.stride(-1) == 1
            and output.size(-1) > 1
        ):
            var columns = space.pop().size
            var to = output.pointer[storage]()
            var source = input.pointer[storage]()

            def some_rows(start: Int, end: Int) {imm}:
                for row in range(start, end):
                    var offsets = space.offsets(row)
                    # Columns from `bound` on lie right of the diagonal that bounds what is kept.
                    var bound = offsets[2] + diagonal + (0 if upper else 1)
                    bound = max(0, min(bound, columns))
                    var left = to.unsafe_offset(offsets[0])
                    var right = left.unsafe_offset(bound)
                    comptime if upper:
                        unsafe_memset(left, 0, bound)
                        unsafe_memcpy(
                            dest=right,
                            src=source.unsafe_offset(offsets[1] + bound),
                            count=columns - bound,
                        )
                    else:
                        unsafe_memcpy(
                            dest=left,
                            src=source.unsafe_offset(offsets[1]),
                            count=bound,
                        )
                        unsafe_memset(right, 0, columns - bound)

            parallel_ranges(call, space.numel, GRAIN // columns, some_rows)
            return
    each_element(
        call,
        _Triangle[upper, dtype](
            output.pointer[storage](),
            input.pointer[storage](),
            Int64(diagonal),
        ),
        space,
    )
