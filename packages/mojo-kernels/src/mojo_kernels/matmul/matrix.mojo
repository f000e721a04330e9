"""Strided matrices and what a product does with its result."""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import is_gpu
from std.sys.intrinsics import masked_load, masked_store

from mojo_kernels.math import narrow
from mojo_kernels.abi import Data


@inline(.always)
def ceil_div(a: Int, b: Int) -> Int:
    """The quotient rounded up.

    Args:
        a: The dividend, not negative.
        b: The divisor, positive.

    Returns:
        The smallest integer that is not below a / b.
    """
    return (a + b - 1) // b


@inline(.always)
def first_lanes[width: Int](count: Int) -> SIMD[DType.bool, width]:
    """The mask of a vector's first lanes.

    Parameters:
        width: The number of lanes.

    Args:
        count: How many are set; may be larger than the width.

    Returns:
        The mask.
    """
    var lanes = SIMD[DType.int32, width](0)
    comptime for i in range(width):
        lanes[i] = Int32(i)
    return lanes.lt(SIMD[DType.int32, width](Int32(min(count, width))))


def accumulator[dtype: DType]() -> DType:
    """The type that products of a dtype are summed in.

    Parameters:
        dtype: The element type of the operands.

    Returns:
        The type: float32 for half types, int32 for narrower integers (truncated at the
        end, which is exact modulo the width), else `dtype` itself.
    """
    comptime if dtype == DType.float16 or dtype == DType.bfloat16:
        return DType.float32
    elif dtype == DType.int8 or dtype == DType.uint8 or dtype == DType.int16:
        return DType.int32
    else:
        return dtype


@fieldwise_init
struct Matrix[dtype: DType](TrivialRegisterPassable):
    """A matrix in memory with any strides.

    Parameters:
        dtype: The element type.
    """

    var data: Data[Self.dtype]
    """The element at row 0, column 0."""
    var row_stride: Int
    """Elements from one row to the next."""
    var column_stride: Int
    """Elements from one column to the next."""

    @inline(.always)
    def at(self, i: Int, j: Int) -> Data[Self.dtype]:
        """The address of an element.

        Args:
            i: The row.
            j: The column.

        Returns:
            Where it lies.
        """
        return self.data.unsafe_offset(
            i * self.row_stride + j * self.column_stride
        )

    @inline(.always)
    def block(self, i: Int, j: Int) -> Self:
        """The matrix that starts at an element.

        Args:
            i: The first row.
            j: The first column.

        Returns:
            A view with the same strides.
        """
        return Self(self.at(i, j), self.row_stride, self.column_stride)

    @inline(.always)
    def transposed(self) -> Self:
        """The transposed matrix.

        Returns:
            A view with rows and columns swapped.
        """
        return Self(self.data, self.column_stride, self.row_stride)


@fieldwise_init
struct Update[dtype: DType, accumulate: DType](TrivialRegisterPassable):
    """Where a product goes: `out = alpha * product + beta * addend`.

    Parameters:
        dtype: The element type of `out` and `addend`.
        accumulate: The type of the product's sums, alpha and beta.
    """

    var out: Matrix[Self.dtype]
    """The result."""
    var alpha: Scalar[Self.accumulate]
    """The factor of the product."""
    var beta: Scalar[Self.accumulate]
    """The factor of the addend."""
    var addend: Matrix[Self.dtype]
    """A matrix that is added, stride 0 where broadcast; may be `out` itself."""
    var has_addend: Bool
    """False: there is none, whatever beta says (NaN times 0 is not added)."""
    var constant: Scalar[Self.accumulate]
    """What is added to every element on GPUs, where an addend in host memory cannot be read; 0 on CPUs."""

    @inline(.always)
    def block(self, i: Int, j: Int) -> Self:
        """The update of the part of the result that starts at an element.

        Args:
            i: The first row.
            j: The first column.

        Returns:
            The same update on views.
        """
        return Self(
            self.out.block(i, j),
            self.alpha,
            self.beta,
            self.addend.block(i, j),
            self.has_addend,
            self.constant,
        )

    @inline(.always)
    def transposed(self) -> Self:
        """The update of the transposed result.

        Returns:
            The same update on transposed views.
        """
        return Self(
            self.out.transposed(),
            self.alpha,
            self.beta,
            self.addend.transposed(),
            self.has_addend,
            self.constant,
        )

    @inline(.always)
    def store(self, i: Int, j: Int, sum: Scalar[Self.accumulate]):
        """Writes one element.

        Args:
            i: The row.
            j: The column.
            sum: The product's element.
        """
        var value = sum * self.alpha
        if self.has_addend:
            value += (
                self.beta
                * self.addend.at(i, j).unsafe_load().cast[Self.accumulate]()
            )
        comptime if is_gpu():
            value += self.constant
        self.out.at(i, j).unsafe_store(narrow[Self.dtype](value))

    @inline(.always)
    def store_vector[
        width: Int
    ](self, i: Int, j: Int, sums: SIMD[Self.accumulate, width], count: Int):
        """Writes neighbours of one row.

        Parameters:
            width: The number of lanes.

        Args:
            i: The row.
            j: The first column.
            sums: The product's elements.
            count: How many of the lanes exist.
        """
        var whole = count >= width
        var step = self.addend.column_stride if self.has_addend else 0
        if self.out.column_stride != 1 or (step != 0 and step != 1):
            for lane in range(min(width, count)):
                self.store(i, j + lane, sums[lane])
            return
        var value = sums * self.alpha
        var mask = first_lanes[width](count)
        if self.has_addend:
            var source = self.addend.at(i, j)
            var addend = SIMD[Self.dtype, width](0)
            if step == 0:
                addend = SIMD[Self.dtype, width](source.unsafe_load())
            elif whole:
                addend = source.unsafe_load[width=width]()
            else:
                addend = masked_load[width](source, mask, addend)
            value += self.beta * addend.cast[Self.accumulate]()
        var target = self.out.at(i, j)
        if whole:
            target.unsafe_store[width=width](narrow[Self.dtype](value))
        else:
            masked_store(narrow[Self.dtype](value), target, mask)


@fieldwise_init
struct Batch[dtype: DType, accumulate: DType](
    DevicePassable, TrivialRegisterPassable
):
    """Products of matrices that lie at regular distances.

    Parameters:
        dtype: The element type.
        accumulate: The type of the sums.
    """

    comptime device_type: AnyType = Self
    """Kernels receive the struct as it is."""

    var count: Int
    """The number of products."""
    var m: Int
    """Rows of a and of the result."""
    var n: Int
    """Columns of b and of the result."""
    var k: Int
    """Columns of a and rows of b."""
    var a: Matrix[Self.dtype]
    """The first left operand."""
    var b: Matrix[Self.dtype]
    """The first right operand."""
    var update: Update[Self.dtype, Self.accumulate]
    """Where the first product goes."""
    var a_step: Int
    """Elements between left operands."""
    var b_step: Int
    """Elements between right operands."""
    var out_step: Int
    """Elements between results."""
    var addend_step: Int
    """Elements between addends."""

    @staticmethod
    def get_type_name() -> String:
        """The name in messages.

        Returns:
            The struct's name.
        """
        return "Batch"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def product(self, index: Int) -> Self:
        """One of the products, as a batch whose first it is.

        Args:
            index: Which, from 0.

        Returns:
            The same batch with the operands moved.
        """
        var moved = self
        moved.a.data = self.a.data.unsafe_offset(index * self.a_step)
        moved.b.data = self.b.data.unsafe_offset(index * self.b_step)
        moved.update.out.data = self.update.out.data.unsafe_offset(
            index * self.out_step
        )
        moved.update.addend.data = self.update.addend.data.unsafe_offset(
            index * self.addend_step
        )
        return moved

    @inline(.always)
    def store(self, i: Int, j: Int, sum: Scalar[Self.accumulate]):
        """Writes one element of the first result if it exists.

        Args:
            i: The row.
            j: The column.
            sum: The product's element.
        """
        if i < self.m and j < self.n:
            self.update.store(i, j, sum)
