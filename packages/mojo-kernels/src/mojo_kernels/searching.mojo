"""Where elements would be inserted into sorted sequences."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.layout import IndexSpace
from mojo_kernels.pointwise.function import storage_type
from std.utils.static_tuple import StaticTuple


@fieldwise_init
struct _Search[dtype: DType, out: DType](ElementAction):
    """Bisects for one element; operands: output, element, its sequence, the sequence's order.
    """

    comptime operands = 4
    comptime storage = storage_type[Self.dtype]()

    var output: Data[Self.out]
    var elements: Data[Self.storage]
    var sequence: Data[Self.storage]
    var order: Data[DType.int64]
    var length: Int64
    var stride: Int64
    var order_stride: Int64
    var right: Int32
    var has_order: Int32

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 4]):
        var element = self.elements.unsafe_load(offsets[1])
        var start = 0
        var end = Int(self.length)
        while start < end:
            var middle = start + (end - start) // 2
            var place = middle
            if self.has_order != 0:
                place = Int(
                    self.order.unsafe_load(
                        offsets[3] + middle * Int(self.order_stride)
                    )
                )
            var value = self.sequence.unsafe_load(
                offsets[2] + place * Int(self.stride)
            )
            # Negated, so that NaN among the elements is the largest.
            var is_before = not Bool(value > element) if self.right != 0 else (
                not Bool(value >= element)
            )
            if is_before:
                start = middle + 1
            else:
                end = middle
        self.output.unsafe_store(offsets[0], Scalar[Self.out](start))


def searchsorted[dtype: DType, out: DType](call: KernelCall) raises:
    """Positions at which elements keep a sequence sorted.

    Tensors: output, elements, of the same sizes; sequences sorted along their last dimension, one for all or one for each row
    of elements; an order (int64) of each sequence's elements, optional. Any strides. Scalars: whether an element goes behind
    those that equal it.

    Parameters:
        dtype: The type of elements and sequences.
        out: The output's type, int64 or int32.

    Args:
        call: The call.
    """
    comptime storage = storage_type[dtype]()
    var elements = call.tensor(1)
    var sequence = call.tensor(2)
    var order = call.tensor(3)
    var has_order = not order.is_absent()
    var ndim = Int(elements.ndim)
    var per_row = sequence.ndim > 1
    var space = IndexSpace[4]()
    for d in range(ndim):
        var along = d == ndim - 1 or not per_row
        space.append(
            elements.size(d),
            StaticTuple[Int, 4](
                call.tensor(0).stride(d),
                elements.stride(d),
                0 if along else sequence.stride(d),
                0 if along or not has_order else order.stride(d),
            ),
        )
    each_element(
        call,
        _Search[dtype, out](
            call.tensor(0).pointer[out](),
            elements.pointer[storage](),
            sequence.pointer[storage](),
            order.pointer[DType.int64](),
            Int64(sequence.size(-1)),
            Int64(sequence.stride(-1)),
            Int64(order.stride(-1) if has_order else 0),
            Int32(call.int_scalar(0)),
            Int32(has_order),
        ),
        space,
        2048,
    )
