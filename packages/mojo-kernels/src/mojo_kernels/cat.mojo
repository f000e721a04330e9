"""Concatenation along a dimension."""

from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.copy import convert
from mojo_kernels.indexing.copy import copy_space
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.layout import IndexSpace
from mojo_kernels.pointwise.function import (
    from_storage,
    storage_type,
    to_storage,
)
from mojo_kernels.reduction.plan import wrap_dimension
from std.sys.info import is_apple_gpu
from std.utils.static_tuple import StaticTuple

comptime CODES = StaticTuple[Int32, 10](0, 1, 2, 3, 4, 5, 6, 7, 11, 15)
"""The ABI's codes of the types that may be mixed."""


@inline(.always)
def _type_of_code[i: Int]() -> DType:
    """The type behind `CODES[i]`."""
    comptime if i == 0:
        return DType.uint8
    elif i == 1:
        return DType.int8
    elif i == 2:
        return DType.int16
    elif i == 3:
        return DType.int32
    elif i == 4:
        return DType.int64
    elif i == 5:
        return DType.float16
    elif i == 6:
        return DType.float32
    elif i == 7:
        return DType.float64
    elif i == 8:
        return DType.bool
    else:
        return DType.bfloat16


@fieldwise_init
struct _Convert[source: DType, dtype: DType](ElementAction):
    """Converts one element; operands: target, source."""

    comptime operands = 2
    var target: Data[storage_type[Self.dtype]()]
    var input: Data[storage_type[Self.source]()]

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 2]):
        # Apple's GPUs have no float64, so no tensor of it gets here.
        comptime if not (is_apple_gpu() and Self.source == DType.float64):
            var value = from_storage[Self.source](
                self.input.unsafe_load(offsets[1])
            )
            self.target.unsafe_store(
                offsets[0], to_storage(convert[Self.dtype](value))
            )


def cat[dtype: DType](call: KernelCall) raises:
    """Concatenates tensors.

    Tensors: output, then the inputs, of any strides and dtypes, which are converted; inputs of sizes [0] are left out.
    Scalars: the dimension.

    Parameters:
        dtype: The output's element type.

    Args:
        call: The call.

    Raises:
        IndexError: The dimension is out of range.
        NotImplementedError: An input is complex or of an unsigned type wider than 8 bits, and the output is not.
    """
    comptime storage = storage_type[dtype]()
    var output = call.tensor(0)
    var ndim = Int(output.ndim)
    var dimension = wrap_dimension(call.int_scalar(0), ndim)
    var target = output.pointer[storage]()
    for i in range(1, Int(call.n_tensors)):
        var input = call.tensor(i)
        if Int(input.ndim) != ndim:
            continue
        var space = IndexSpace[2]()
        for d in range(ndim):
            space.append(
                input.size(d),
                StaticTuple[Int, 2](output.stride(d), input.stride(d)),
            )
        if input.dtype == output.dtype:
            copy_space[dtype](call, space, target, input.pointer[storage]())
        else:
            _copy_converted[dtype](call, space, target, input)
        target = target.unsafe_offset(
            input.size(dimension) * output.stride(dimension)
        )


def _copy_converted[
    dtype: DType
](
    call: KernelCall,
    mut space: IndexSpace[2],
    target: Data[storage_type[dtype]()],
    input: Tensor,
) raises:
    """Copies a tensor of another dtype."""
    comptime for i in range(10):
        comptime source = _type_of_code[i]()
        if input.dtype == CODES[i]:
            each_element(
                call,
                _Convert[source, dtype](
                    target, input.pointer[storage_type[source]()]()
                ),
                space,
            )
            return
    raise Error(
        "NotImplementedError: cat of dtype code ",
        Int(input.dtype),
        " into ",
        dtype,
        "; convert the tensors first",
    )
