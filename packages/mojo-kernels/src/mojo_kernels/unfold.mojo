"""The gradient of a view of overlapping slices."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.layout import IndexSpace
from mojo_kernels.math import compute_type
from mojo_kernels.pointwise.function import storage_type
from mojo_kernels.reduction.plan import wrap_dimension
from std.utils.static_tuple import StaticTuple


@fieldwise_init
struct _Gather[dtype: DType](ElementAction):
    """Adds up the gradients of the slices that an element is part of; operands: target, gradient, coordinate.
    """

    comptime operands = 3
    comptime storage = storage_type[Self.dtype]()
    var target: Data[storage_type[Self.dtype]()]
    var gradient: Data[storage_type[Self.dtype]()]
    var slice_stride: Int64
    var element_stride: Int64
    var slices: Int64
    var size: Int64
    var step: Int64

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 3]):
        comptime compute = compute_type[storage_type[Self.dtype]()]()
        var position = offsets[2]
        var step = Int(self.step)
        var before = position - Int(self.size) + 1
        var first = (before + step - 1) // step if before > 0 else 0
        var last = min(position // step, Int(self.slices) - 1)
        var sum = Scalar[compute](0)
        for slice in range(first, last + 1):
            var value = self.gradient.unsafe_load(
                offsets[1]
                + slice * Int(self.slice_stride)
                + (position - slice * step) * Int(self.element_stride)
            ).cast[compute]()
            comptime if Self.dtype == DType.bool:
                sum |= value
            else:
                sum += value
        self.target.unsafe_store(
            offsets[0], sum.cast[storage_type[Self.dtype]()]()
        )


def unfold_backward[dtype: DType](call: KernelCall) raises:
    """The gradient of `Tensor.unfold`: each element is the sum of the gradients of its copies.

    Tensors: the input's gradient; the output's gradient, in which the dimension counts slices and a last dimension the
    elements of a slice; any strides. Scalars: the dimension, the size of a slice, the distance of slices.

    Parameters:
        dtype: The element type.

    Args:
        call: The call.

    Raises:
        IndexError: The dimension is out of range.
    """
    comptime storage = storage_type[dtype]()
    var target = call.tensor(0)
    var gradient = call.tensor(1)
    var ndim = Int(target.ndim)
    var dimension = wrap_dimension(call.int_scalar(0), ndim)
    var space = IndexSpace[3]()
    for d in range(ndim):
        var along = d == dimension
        space.append(
            target.size(d),
            StaticTuple[Int, 3](
                target.stride(d),
                0 if along else gradient.stride(d),
                1 if along else 0,
            ),
        )
    var has_dimension = ndim > 0
    each_element(
        call,
        _Gather[dtype](
            target.pointer[storage](),
            gradient.pointer[storage](),
            Int64(gradient.stride(dimension) if has_dimension else 0),
            Int64(gradient.stride(-1)),
            Int64(gradient.size(dimension) if has_dimension else 1),
            Int64(call.int_scalar(1)),
            Int64(call.int_scalar(2)),
        ),
        space,
        16384,
    )
