"""Selecting, replacing and locating elements by a mask."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.compaction import Compaction, compact
from mojo_kernels.layout import (
    MAX_GPU_DIMENSIONS,
    IndexSpace,
    OffsetCalculator,
)
from mojo_kernels.pointwise.function import storage_type
from std.utils.static_tuple import StaticTuple


@fieldwise_init
struct _Elements[operands: Int](TrivialRegisterPassable):
    """Offsets of elements by their logical position."""

    var calculator: OffsetCalculator[Self.operands, DType.uint64]
    var contiguous: Int32

    @inline(.always)
    def offsets(self, index: Int) -> StaticTuple[Int, Self.operands]:
        """The offset in each operand."""
        if self.contiguous != 0:
            return StaticTuple[Int, Self.operands](fill=index)
        return self.calculator.offsets(UInt64(index))


def _elements[
    operands: Int
](call: KernelCall, first: Int) raises -> _Elements[operands]:
    """The elements of tensors of the same sizes that stand side by side in a call.
    """
    var space = IndexSpace[operands]()
    for d in range(Int(call.tensor(first).ndim)):
        var strides = StaticTuple[Int, operands]()
        comptime for k in range(operands):
            strides[k] = call.tensor(first + k).stride(d)
        space.append(call.tensor(first).size(d), strides)
    if space.ndim > MAX_GPU_DIMENSIONS:
        raise Error(
            "NotImplementedError: masks of more than ",
            MAX_GPU_DIMENSIONS,
            " dimensions that do not merge; call contiguous() first",
        )
    var contiguous = space.ndim <= 1
    comptime for k in range(operands):
        contiguous = contiguous and (space.ndim == 0 or space.stride(0, k) == 1)
    return _Elements[operands](
        OffsetCalculator[operands, DType.uint64](space), Int32(contiguous)
    )


@fieldwise_init
struct _Select[dtype: DType, scatters: Bool](Compaction):
    """Moves the elements where the mask is set to consecutive places, or back.
    """

    var packed: Data[storage_type[Self.dtype]()]
    var packed_stride: Int64
    var mask: Data[DType.uint8]
    var tensor: Data[storage_type[Self.dtype]()]
    var elements: _Elements[2]

    @inline(.always)
    def is_set(self, index: Int) -> Bool:
        return self.mask.unsafe_load(self.elements.offsets(index)[0]) != 0

    @inline(.always)
    def emit(self, index: Int, rank: Int):
        var place = self.tensor.unsafe_offset(self.elements.offsets(index)[1])
        var packed = self.packed.unsafe_offset(rank * Int(self.packed_stride))
        comptime if Self.scatters:
            place.unsafe_store(0, packed.unsafe_load(0))
        else:
            packed.unsafe_store(0, place.unsafe_load(0))


def masked_select[
    dtype: DType, scatters: StaticString = "no"
](call: KernelCall) raises:
    """Packs the elements where a mask is set into a vector, in logical order; or unpacks a vector into those elements.

    Tensors: the vector, as long as the mask has set elements or, unpacked, longer; the mask (bool) and the tensor, of the
    same sizes.

    Parameters:
        dtype: The element type.
        scatters: "yes" to unpack.

    Args:
        call: The call.

    Raises:
        NotImplementedError: Mask and tensor have more than 8 dimensions that do not merge.
    """
    comptime storage = storage_type[dtype]()
    var packed = call.tensor(0)
    compact(
        call,
        _Select[dtype, scatters == "yes"](
            packed.pointer[storage](),
            Int64(packed.stride(0)),
            call.tensor(1).pointer[DType.uint8](),
            call.tensor(2).pointer[storage](),
            _elements[2](call, 1),
        ),
        Int(call.tensor(1).numel),
    )


@fieldwise_init
struct _Nonzero[dtype: DType](Compaction):
    """Writes the coordinates of the elements that are not zero."""

    var output: Data[DType.int64]
    var output_strides: StaticTuple[Int64, 2]
    var input: Data[storage_type[Self.dtype]()]
    var elements: _Elements[1]
    var ndim: Int64
    var sizes: StaticTuple[Int64, MAX_GPU_DIMENSIONS]

    @inline(.always)
    def is_set(self, index: Int) -> Bool:
        return not (
            self.input.unsafe_load(self.elements.offsets(index)[0]) == 0
        )

    @inline(.always)
    def emit(self, index: Int, rank: Int):
        var rest = index
        var row = rank * Int(self.output_strides[0])
        for d in range(Int(self.ndim) - 1, -1, -1):
            var quotient, coordinate = divmod(rest, Int(self.sizes[d]))
            rest = quotient
            self.output.unsafe_store(
                row + d * Int(self.output_strides[1]), Int64(coordinate)
            )


def nonzero[dtype: DType](call: KernelCall) raises:
    """The coordinates of the elements that are not zero, in logical order.

    Tensors: output int64 [count, dimensions], the input.

    Parameters:
        dtype: The input's element type.

    Args:
        call: The call.

    Raises:
        NotImplementedError: The input has more than 8 dimensions.
    """
    var output = call.tensor(0)
    var input = call.tensor(1)
    if Int(input.ndim) > MAX_GPU_DIMENSIONS:
        raise Error(
            "NotImplementedError: nonzero of more than ",
            MAX_GPU_DIMENSIONS,
            " dimensions; flatten some of them",
        )
    var sizes = StaticTuple[Int64, MAX_GPU_DIMENSIONS](fill=1)
    for d in range(Int(input.ndim)):
        sizes[d] = Int64(input.size(d))
    compact(
        call,
        _Nonzero[dtype](
            output.pointer[DType.int64](),
            StaticTuple[Int64, 2](
                Int64(output.stride(0)), Int64(output.stride(1))
            ),
            input.pointer[storage_type[dtype]()](),
            _elements[1](call, 1),
            Int64(Int(input.ndim)),
            sizes,
        ),
        Int(input.numel),
    )
