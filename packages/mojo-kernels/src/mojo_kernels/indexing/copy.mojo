"""Strided copies between tensors of one dtype, as a step of other kernels."""

from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.layout import Cursor, IndexSpace, parallel_ranges
from mojo_kernels.pointwise.function import storage_type
from std.memory import unsafe_memcpy
from std.sys.info import has_accelerator
from std.utils.static_tuple import StaticTuple

comptime GRAIN = 65536
"""Elements that are worth a thread."""


@fieldwise_init
struct _Copy[dtype: DType](ElementAction):
    """Copies one element; operands: target, source."""

    comptime operands = 2
    var target: Data[storage_type[Self.dtype]()]
    var source: Data[storage_type[Self.dtype]()]

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 2]):
        self.target.unsafe_store(
            offsets[0], self.source.unsafe_load(offsets[1])
        )


def copy_tensor[
    dtype: DType
](call: KernelCall, target: Tensor, source: Tensor) raises:
    """Copies a tensor, unless source and target are the same view.

    Parameters:
        dtype: The element type of both.

    Args:
        call: The call.
        target: Where to.
        source: A tensor of the same sizes.
    """
    var space = IndexSpace[2]()
    var same = Int(target.data) == Int(source.data)
    for d in range(Int(target.ndim)):
        same = same and target.stride(d) == source.stride(d)
        space.append(
            target.size(d),
            StaticTuple[Int, 2](target.stride(d), source.stride(d)),
        )
    if not same:
        copy_space[dtype](
            call,
            space,
            target.pointer[storage_type[dtype]()](),
            source.pointer[storage_type[dtype]()](),
        )


def copy_space[
    dtype: DType
](
    call: KernelCall,
    mut space: IndexSpace[2],
    target: Data[storage_type[dtype]()],
    source: Data[storage_type[dtype]()],
) raises:
    """Copies the elements of an index space.

    Parameters:
        dtype: The element type of both operands.

    Args:
        call: The call.
        space: The elements; operands: target, source. Its dimensions are used up.
        target: Where to.
        source: Where from.
    """
    var action = _Copy[dtype](target, source)
    comptime if not has_accelerator():
        var last = space.ndim - 1
        if (
            last >= 0
            and space.stride(last, 0) == 1
            and space.stride(last, 1) == 1
        ):
            var run = space.pop().size

            def some_elements(start: Int, end: Int) {imm}:
                var row, position = divmod(start, run)
                var cursor = Cursor(space, row)
                var left = end - start
                while left > 0:
                    var count = min(run - position, left)
                    unsafe_memcpy(
                        dest=target.unsafe_offset(cursor.offsets[0] + position),
                        src=source.unsafe_offset(cursor.offsets[1] + position),
                        count=count,
                    )
                    left -= count
                    position = 0
                    cursor.advance(space)

            parallel_ranges(call, space.numel * run, GRAIN, some_elements)
            return
    each_element(call, action, space, GRAIN)
