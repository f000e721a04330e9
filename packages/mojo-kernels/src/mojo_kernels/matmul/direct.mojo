"""Matrix products on CPUs without packing: vectors, few rows and tiny matrices."""

from std.sys.info import CompilationTarget
from std.sys.intrinsics import masked_load

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.matmul.matrix import (
    Matrix,
    Update,
    ceil_div,
    first_lanes,
)
from mojo_kernels.matmul.packed import run
from mojo_kernels.matmul.tile import TileFormat

comptime SUMS = 16 if (
    CompilationTarget.has_avx512f() or CompilationTarget.has_neon()
) else 8
"""Vectors of sums that are computed together."""


@inline(.always)
def load_some[
    dtype: DType, accumulate: DType, width: Int, whole: Bool
](source: Data[dtype], count: Int) -> SIMD[accumulate, width]:
    """Loads a vector of which only the first lanes may exist.

    Parameters:
        dtype: The element type.
        accumulate: The type to convert to.
        width: The number of lanes.
        whole: Whether all lanes exist.

    Args:
        source: The first element.
        count: How many exist.

    Returns:
        The elements, then zeros.
    """
    comptime if whole:
        return source.unsafe_load[width=width]().cast[accumulate]()
    else:
        return masked_load[width](
            source, first_lanes[width](count), SIMD[dtype, width](0)
        ).cast[accumulate]()


@inline(.always)
def multiply_add[
    dtype: DType, width: Int
](a: SIMD[dtype, width], b: SIMD[dtype, width], c: SIMD[dtype, width]) -> SIMD[
    dtype, width
]:
    """The product of two vectors added to a third, fused for floating types.

    Parameters:
        dtype: The element type.
        width: The number of lanes.

    Args:
        a: A factor.
        b: A factor.
        c: The summand.

    Returns:
        The sum `a * b + c`.
    """
    comptime if dtype.is_floating_point():
        return a.fma(b, c)
    else:
        return a * b + c


@inline(.always)
def _by_columns[
    dtype: DType, rows: Int, vectors: Int, whole: Bool
](
    k: Int,
    columns: Int,
    a: Matrix[dtype],
    b: Matrix[dtype],
    update: Update[dtype, TileFormat[dtype].ACCUMULATE],
):
    """`rows` x `vectors` vectors of the result from the rows of b, whose columns lie side by side.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime width = TileFormat[dtype].WIDTH
    var sums = Array[SIMD[accumulate, width], rows * vectors](
        fill=SIMD[accumulate, width](0)
    )
    for p in range(k):
        var source = b.at(p, 0)
        comptime for j in range(vectors):
            if whole or j * width < columns:
                var vector = load_some[dtype, accumulate, width, whole](
                    source.unsafe_offset(j * width), columns - j * width
                )
                comptime for i in range(rows):
                    sums[i * vectors + j] = multiply_add(
                        SIMD[accumulate, width](
                            a.at(i, p).unsafe_load().cast[accumulate]()
                        ),
                        vector,
                        sums[i * vectors + j],
                    )
    comptime for i in range(rows):
        comptime for j in range(vectors):
            if whole or j * width < columns:
                update.store_vector(
                    i, j * width, sums[i * vectors + j], columns - j * width
                )


@inline(.always)
def _by_dots[
    dtype: DType, rows: Int, columns: Int
](
    k: Int,
    a: Matrix[dtype],
    b: Matrix[dtype],
    update: Update[dtype, TileFormat[dtype].ACCUMULATE],
):
    """`rows` x `columns` dot products of rows of a and columns of b, both side by side along the depth.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime width = TileFormat[dtype].WIDTH
    var sums = Array[SIMD[accumulate, width], rows * columns](
        fill=SIMD[accumulate, width](0)
    )

    @inline(.always)
    def step[whole: Bool](p: Int) {mut sums, imm}:
        var left = Array[SIMD[accumulate, width], rows](
            fill=SIMD[accumulate, width](0)
        )
        comptime for i in range(rows):
            left[i] = load_some[dtype, accumulate, width, whole](
                a.at(i, p), k - p
            )
        comptime for j in range(columns):
            var right = load_some[dtype, accumulate, width, whole](
                b.at(p, j), k - p
            )
            comptime for i in range(rows):
                sums[i * columns + j] = multiply_add(
                    left[i], right, sums[i * columns + j]
                )

    var p = 0
    while p + width <= k:
        step[True](p)
        p += width
    if p < k:
        step[False](p)
    comptime for i in range(rows):
        comptime for j in range(columns):
            update.store(i, j, sums[i * columns + j].reduce_add())


def multiply_direct[
    dtype: DType
](
    call: KernelCall,
    m: Int,
    n: Int,
    k: Int,
    a: Matrix[dtype],
    b: Matrix[dtype],
    update: Update[dtype, TileFormat[dtype].ACCUMULATE],
    parallel: Bool,
):
    """Computes `update(a @ b)` where b's columns lie side by side, or else its rows and a's columns.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the threads.
        m: Rows of a and of the result; b is read once per four of them.
        n: Columns of b and of the result.
        k: Columns of a and rows of b.
        a: The left operand.
        b: The right operand.
        update: Where the product goes.
        parallel: Whether to use the threads.
    """
    if b.column_stride == 1:
        var first = 0
        comptime for choice in range(3):
            comptime rows = 4 >> choice
            # The fewer rows, the more neighbours of b's rows are read at once.
            comptime vectors = SUMS // rows
            comptime block = vectors * TileFormat[dtype].WIDTH
            while m - first >= rows:

                def columns(task: Int) {imm}:
                    var j = task * block
                    if j + block <= n:
                        _by_columns[dtype, rows, vectors, True](
                            k,
                            block,
                            a.block(first, 0),
                            b.block(0, j),
                            update.block(first, j),
                        )
                    else:
                        _by_columns[dtype, rows, vectors, False](
                            k,
                            n - j,
                            a.block(first, 0),
                            b.block(0, j),
                            update.block(first, j),
                        )

                run(call, parallel, columns, ceil_div(n, block))
                first += rows
    else:
        # Enough columns to a task that its hand-over does not matter.
        var group = max(4, ceil_div(1 << 16, max(m * k, 1)) // 4 * 4)

        def dots(task: Int) {imm}:
            var end = min(n, (task + 1) * group)
            for j in range(task * group, end, 4):
                var i = 0
                while i < m:
                    var rows = 4 if m - i >= 4 else 2 if m - i >= 2 else 1
                    comptime for choice in range(3):
                        comptime size = 4 >> choice
                        if rows == size:
                            if j + 4 <= end:
                                _by_dots[dtype, size, 4](
                                    k,
                                    a.block(i, 0),
                                    b.block(0, j),
                                    update.block(i, j),
                                )
                            else:
                                for column in range(j, end):
                                    _by_dots[dtype, size, 1](
                                        k,
                                        a.block(i, 0),
                                        b.block(0, column),
                                        update.block(i, column),
                                    )
                    i += rows

        run(call, parallel, dots, ceil_div(n, group))
