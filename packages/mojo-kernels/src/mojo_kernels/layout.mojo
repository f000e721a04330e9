"""The one place that knows how operands lie in memory: coalescing, walking, splitting, offsets on GPUs.

An `IndexSpace` is the sizes that several operands share and the strides of each. Kernels build one by appending the
dimensions that they walk, outermost first; a reduction or a softmax leaves out the dimension that it handles itself.
"""

from mojo_kernels.abi import KernelCall, Tensor
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.collections import Array
from std.utils.static_tuple import StaticTuple

comptime MAX_DIMENSIONS = 64
"""How many dimensions a tensor can have, as in torch."""
comptime MAX_GPU_DIMENSIONS = 8
"""How many dimensions, after coalescing, a GPU kernel decomposes an index into; outer ones are the host's."""


@inline(.always)
def ceil_div(a: Int, b: Int) -> Int:
    """Division that rounds up.

    Args:
        a: A count, not negative.
        b: A positive size.

    Returns:
        How many pieces of size `b` cover `a`.
    """
    return (a + b - 1) // b


@fieldwise_init
struct Dimension[operands: Int](TrivialRegisterPassable):
    """A size with the stride of each operand along it.

    Parameters:
        operands: The number of operands.
    """

    var size: Int
    """The number of elements along the dimension."""
    var strides: StaticTuple[Int, Self.operands]
    """The distance in elements between neighbours, per operand."""


struct IndexSpace[operands: Int]:
    """Sizes that several operands share, and their strides; the last dimension is the fastest.

    Parameters:
        operands: The number of operands.
    """

    var ndim: Int
    """The number of dimensions after coalescing."""
    var numel: Int
    """The product of the sizes; 1 without dimensions."""
    var sizes: Array[Int, MAX_DIMENSIONS]
    """`ndim` sizes; none is 1."""
    var strides: Array[Int, MAX_DIMENSIONS * Self.operands]
    """Strides in elements; operand `k` of dimension `d` at `d * operands + k`."""

    def __init__(out self):
        """An index space without dimensions: one element."""
        self.ndim = 0
        self.numel = 1
        self.sizes = Array[Int, MAX_DIMENSIONS](uninitialized=True)
        self.strides = Array[Int, MAX_DIMENSIONS * Self.operands](
            uninitialized=True
        )

    def __init__(out self, call: KernelCall):
        """The index space of a pointwise call, whose tensors all have the same sizes.

        Args:
            call: Its first `operands` tensors are the operands.
        """
        self = Self()
        for d in range(Int(call.tensor(0).ndim)):
            var strides = StaticTuple[Int, Self.operands]()
            comptime for k in range(Self.operands):
                strides[k] = call.tensor(k).stride(d)
            self.append(call.tensor(0).size(d), strides)

    @inline(.always)
    def stride(self, dimension: Int, operand: Int) -> Int:
        """A stride of an operand.

        Args:
            dimension: From 0 to `ndim - 1`.
            operand: From 0 to `operands - 1`.

        Returns:
            The distance in elements between neighbours along the dimension.
        """
        return self.strides.unsafe_get(dimension * Self.operands + operand)

    def append(mut self, size: Int, strides: StaticTuple[Int, Self.operands]):
        """Adds a dimension faster than all before, merged with the last one where every operand allows it.

        Args:
            size: The number of elements along it; a dimension of size 1 leaves no trace.
            strides: The stride of each operand.
        """
        if size == 1:
            return
        self.numel *= size
        var last = self.ndim - 1
        if last >= 0:
            var mergeable = True
            comptime for k in range(Self.operands):
                mergeable = mergeable and (
                    self.stride(last, k) == size * strides[k]
                )
            if mergeable:
                self.sizes.unsafe_get(last) *= size
                comptime for k in range(Self.operands):
                    self.strides.unsafe_get(last * Self.operands + k) = strides[
                        k
                    ]
                return
        self.sizes.unsafe_get(self.ndim) = size
        comptime for k in range(Self.operands):
            self.strides.unsafe_get(self.ndim * Self.operands + k) = strides[k]
        self.ndim += 1

    def pop(mut self) -> Dimension[Self.operands]:
        """Takes the fastest dimension out, so that the rest counts rows.

        Returns:
            The dimension; size 1 and strides 0 where there is none.
        """
        var strides = StaticTuple[Int, Self.operands](fill=0)
        if self.ndim == 0:
            return Dimension(1, strides)
        self.ndim -= 1
        comptime for k in range(Self.operands):
            strides[k] = self.stride(self.ndim, k)
        var size = self.sizes.unsafe_get(self.ndim)
        self.numel = 1
        for d in range(self.ndim):
            self.numel *= self.sizes.unsafe_get(d)
        return Dimension(size, strides)

    def offsets(self, index: Int) -> StaticTuple[Int, Self.operands]:
        """Where an element lies; for many consecutive ones, walk with a `Cursor`.

        Args:
            index: The row-major index, from 0 to `numel - 1`.

        Returns:
            The offset in elements, per operand.
        """
        var result = StaticTuple[Int, Self.operands](fill=0)
        var rest = index
        for d in range(self.ndim - 1, -1, -1):
            var quotient, coordinate = divmod(rest, self.sizes.unsafe_get(d))
            rest = quotient
            comptime for k in range(Self.operands):
                result[k] += coordinate * self.stride(d, k)
        return result

    def extent(self, operand: Int) -> Int:
        """How far an operand reaches.

        Args:
            operand: From 0 to `operands - 1`.

        Returns:
            The offset of its last element plus 1, in elements.
        """
        var result = 1
        for d in range(self.ndim):
            result += (self.sizes.unsafe_get(d) - 1) * self.stride(d, operand)
        return result

    def fits_32_bits(self) -> Bool:
        """Whether indices and offsets of every operand are below 2^31.

        Returns:
            True if a GPU kernel can count in 32 bits.
        """
        comptime limit = 1 << 31
        var fits = self.numel < limit
        comptime for k in range(Self.operands):
            fits = fits and self.extent(k) <= limit
        return fits


struct Cursor[operands: Int]:
    """A position in an index space that moves on without dividing.

    Parameters:
        operands: The number of operands.
    """

    var coordinates: Array[Int, MAX_DIMENSIONS]
    """The coordinate along each dimension."""
    var offsets: StaticTuple[Int, Self.operands]
    """Where the element lies, per operand, in elements."""

    def __init__(out self, space: IndexSpace[Self.operands], index: Int):
        """Starts at an element.

        Args:
            space: The index space.
            index: The row-major index of the element.
        """
        self.coordinates = Array[Int, MAX_DIMENSIONS](uninitialized=True)
        self.offsets = space.offsets(index)
        var rest = index
        for d in range(space.ndim - 1, -1, -1):
            var quotient, coordinate = divmod(rest, space.sizes.unsafe_get(d))
            rest = quotient
            self.coordinates.unsafe_get(d) = coordinate

    @inline(.always)
    def advance(mut self, space: IndexSpace[Self.operands]):
        """Moves to the next element; from the last one back to the first.

        Args:
            space: The index space that the cursor was made for.
        """
        for d in range(space.ndim - 1, -1, -1):
            comptime for k in range(Self.operands):
                self.offsets[k] += space.stride(d, k)
            self.coordinates.unsafe_get(d) += 1
            if self.coordinates.unsafe_get(d) < space.sizes.unsafe_get(d):
                return
            self.coordinates.unsafe_get(d) = 0
            comptime for k in range(Self.operands):
                self.offsets[k] -= space.sizes.unsafe_get(d) * space.stride(
                    d, k
                )


@inline(.always)
def parallel_ranges[
    Body: def(Int, Int) -> None
](call: KernelCall, count: Int, grain: Int, body: Body, *, alignment: Int = 1):
    """Splits [0, count) over the threads and runs `body(start, end)` on each part.

    Parameters:
        Body: The type of the closure, which must not raise.

    Args:
        call: Its thread pool is used.
        count: The number of items; nothing runs where it is 0.
        grain: The least number of items that is worth a thread.
        body: What to run on the items from `start` to `end - 1`.
        alignment: Every start is a multiple of it.
    """
    if count <= 0:
        return
    var parts = min(Int(call.threads), count // max(grain, 1))
    if parts <= 1:
        body(0, count)
        return
    var size = ceil_div(ceil_div(count, parts), alignment) * alignment

    def part(i: Int) {imm}:
        var start = i * size
        if start < count:
            body(start, min(count, start + size))

    call.parallel(part, parts)


@fieldwise_init
struct Divisor[index: DType](TrivialRegisterPassable):
    """Division by a number that a GPU kernel is given, without a divide instruction in 32 bits.

    The method of Granlund and Montgomery, "Division by invariant integers using multiplication" (1994), for
    dividends below 2^31.

    Parameters:
        index: `DType.uint32` or `DType.uint64`.
    """

    var divisor: Scalar[Self.index]
    """The number to divide by."""
    var magic: Scalar[Self.index]
    """`floor(2^32 (2^shift - divisor) / divisor) + 1`; unused in 64 bits."""
    var shift: Scalar[Self.index]
    """`ceil(log2(divisor))`; unused in 64 bits."""

    def __init__(out self, divisor: Int):
        """Prepares a division.

        Args:
            divisor: From 1; below 2^31 for 32 bits.
        """
        var shift = 0
        while (1 << shift) < divisor:
            shift += 1
        self.divisor = Scalar[Self.index](divisor)
        self.shift = Scalar[Self.index](shift)
        comptime if Self.index == DType.uint32:
            self.magic = Scalar[Self.index](
                (1 << 32) * ((1 << shift) - divisor) // divisor + 1
            )
        else:
            self.magic = 0

    @inline(.always)
    def divide(self, dividend: Scalar[Self.index]) -> Scalar[Self.index]:
        """The quotient, rounded down.

        Args:
            dividend: Below 2^31 for 32 bits.

        Returns:
            `dividend // divisor`.
        """
        comptime if Self.index == DType.uint32:
            var high = (
                (
                    dividend.cast[DType.uint64]()
                    * self.magic.cast[DType.uint64]()
                )
                >> 32
            ).cast[Self.index]()
            return (high + dividend) >> self.shift
        else:
            return dividend // self.divisor


struct OffsetCalculator[operands: Int, index: DType](
    DevicePassable, TrivialRegisterPassable
):
    """An index space as an argument of a GPU kernel: from a row-major index to each operand's offset.

    Parameters:
        operands: The number of operands.
        index: `DType.uint32` where `IndexSpace.fits_32_bits()`, else `DType.uint64`.
    """

    comptime device_type: AnyType = Self
    """The type on the device."""

    var ndim: Int32
    """At most `MAX_GPU_DIMENSIONS`."""
    var sizes: StaticTuple[Divisor[Self.index], MAX_GPU_DIMENSIONS]
    """Sizes from the fastest dimension to the slowest."""
    var strides: StaticTuple[
        Scalar[Self.index], MAX_GPU_DIMENSIONS * Self.operands
    ]
    """Strides in elements; operand `k` of the `d`-th fastest dimension at `d * operands + k`."""

    def __init__(out self, space: IndexSpace[Self.operands]):
        """Takes the fastest dimensions of an index space.

        Args:
            space: Outer dimensions beyond `MAX_GPU_DIMENSIONS` are left out: `outer_space` counts them.
        """
        self.ndim = Int32(min(space.ndim, MAX_GPU_DIMENSIONS))
        self.sizes = StaticTuple[Divisor[Self.index], MAX_GPU_DIMENSIONS](
            fill=Divisor[Self.index](1)
        )
        self.strides = StaticTuple[
            Scalar[Self.index], MAX_GPU_DIMENSIONS * Self.operands
        ](fill=0)
        for i in range(Int(self.ndim)):
            var d = space.ndim - 1 - i
            self.sizes[i] = Divisor[Self.index](space.sizes.unsafe_get(d))
            comptime for k in range(Self.operands):
                self.strides[i * Self.operands + k] = Scalar[Self.index](
                    space.stride(d, k)
                )

    @staticmethod
    def get_type_name() -> String:
        """The name in messages of the device context.

        Returns:
            The name.
        """
        return "OffsetCalculator"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def offsets(self, i: Scalar[Self.index]) -> StaticTuple[Int, Self.operands]:
        """Where an element lies.

        Args:
            i: The row-major index.

        Returns:
            The offset in elements, per operand.
        """
        var result = StaticTuple[Scalar[Self.index], Self.operands](fill=0)
        var rest = i
        # Unrolled, with fixed positions: an index that varies would move the tuples to local memory.
        comptime for d in range(MAX_GPU_DIMENSIONS):
            if d < Int(self.ndim):
                var quotient = self.sizes[d].divide(rest)
                var coordinate = rest - quotient * self.sizes[d].divisor
                rest = quotient
                comptime for k in range(Self.operands):
                    result[k] += (
                        coordinate * self.strides[d * Self.operands + k]
                    )
        var offsets = StaticTuple[Int, Self.operands]()
        comptime for k in range(Self.operands):
            offsets[k] = Int(result[k])
        return offsets


def outer_space[
    operands: Int
](mut space: IndexSpace[operands]) -> IndexSpace[operands]:
    """Takes the dimensions that an `OffsetCalculator` has no place for out of an index space.

    Parameters:
        operands: The number of operands.

    Args:
        space: Keeps its `MAX_GPU_DIMENSIONS` fastest dimensions.

    Returns:
        The slower ones, for a loop of launches; normally none, with one element.
    """
    var outer = IndexSpace[operands]()
    var extra = space.ndim - MAX_GPU_DIMENSIONS
    if extra <= 0:
        return outer^
    var inner = IndexSpace[operands]()
    for d in range(space.ndim):
        var strides = StaticTuple[Int, operands]()
        comptime for k in range(operands):
            strides[k] = space.stride(d, k)
        if d < extra:
            outer.append(space.sizes.unsafe_get(d), strides)
        else:
            inner.append(space.sizes.unsafe_get(d), strides)
    space = inner^
    return outer^
