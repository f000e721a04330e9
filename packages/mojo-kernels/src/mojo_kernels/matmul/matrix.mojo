"""Strided matrices and what a product does with its result."""

from mojo_kernels.abi import Data


def accumulator[dtype: DType]() -> DType:
    """The type that products of a dtype are summed in.

    Parameters:
        dtype: The element type of the operands.

    Returns:
        float32 for half types, int32 for narrower integers (truncated at the
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
        self.out.at(i, j).unsafe_store(value.cast[Self.dtype]())

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
        if count < width or self.out.column_stride != 1:
            for lane in range(min(width, count)):
                self.store(i, j + lane, sums[lane])
            return
        var value = sums * self.alpha
        if self.has_addend:
            var source = self.addend.at(i, j)
            if self.addend.column_stride == 1:
                value += (
                    self.beta
                    * source.unsafe_load[width=width]().cast[Self.accumulate]()
                )
            elif self.addend.column_stride == 0:
                value += (
                    self.beta * source.unsafe_load().cast[Self.accumulate]()
                )
            else:
                for lane in range(width):
                    value[lane] += (
                        self.beta
                        * source.unsafe_load(
                            lane * self.addend.column_stride
                        ).cast[Self.accumulate]()
                    )
        self.out.at(i, j).unsafe_store[width=width](value.cast[Self.dtype]())
