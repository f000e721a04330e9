"""Transpositions of small squares in registers."""

from mojo_kernels.abi import Data
from std.sys.info import size_of


@inline(.always)
def tile_edge[dtype: DType]() -> Int:
    """The edge of the square that is transposed in registers: a cache line, but at most 16.

    Parameters:
        dtype: The element type.

    Returns:
        8 or 16.
    """
    return min(16, 64 // size_of[dtype]())


@inline(.always)
def transpose_square[
    dtype: DType, width: Int
](mut rows: Array[SIMD[dtype, width], width]):
    """Transposes a square block in registers by log2(width) perfect shuffles of rows i and i + width / 2.

    Parameters:
        dtype: The element type.
        width: The number of rows and columns, a power of two.

    Args:
        rows: The block.
    """
    comptime half = width // 2
    comptime rounds = 4 if width == 16 else 3 if width == 8 else 2 if (
        width == 4
    ) else 1
    comptime for _ in range(rounds):
        var next = Array[SIMD[dtype, width], width](fill=SIMD[dtype, width](0))
        comptime for i in range(half):
            var both = rows[i].interleave(rows[i + half])
            next[2 * i] = both.slice[width]()
            next[2 * i + 1] = both.slice[width, offset=width]()
        rows = next^


@inline(.always)
def transpose_tile[
    dtype: DType, Load: def[w: Int](Int) -> SIMD[dtype, w]
](output: Data[dtype], output_stride: Int, input_stride: Int, load: Load):
    """Transposes a full tile whose rows are vectors in the input and in the output.

    Parameters:
        dtype: The output's type.
        Load: The type of the closure.

    Args:
        output: The tile's first element.
        output_stride: The distance of the output's rows.
        input_stride: The distance of the input's rows.
        load: Loads neighbours, from an element of the input on, and converts them.
    """
    comptime n = tile_edge[dtype]()
    var rows = Array[SIMD[dtype, n], n](fill=SIMD[dtype, n](0))
    comptime for i in range(n):
        rows[i] = load[n](i * input_stride)
    transpose_square(rows)
    comptime for i in range(n):
        output.unsafe_store(i * output_stride, rows[i])


@inline(.always)
def transpose_band[
    dtype: DType, Load: def[w: Int](Int) -> SIMD[dtype, w]
](
    output: Data[dtype],
    output_stride: Int,
    input_stride: Int,
    rows: Int,
    columns: Int,
    load: Load,
):
    """Transposes a few rows: element (r, c) from `r + c * input_stride` to `r * output_stride + c`.

    Parameters:
        dtype: The output's type.
        Load: The type of the closure.

    Args:
        output: The first element.
        output_stride: The distance of the output's rows.
        input_stride: The distance of the input's columns.
        rows: The number of rows.
        columns: Their length.
        load: Loads neighbours, from an element of the input on, and converts them.
    """
    comptime n = tile_edge[dtype]()
    var column = 0
    while column < columns:
        var width = min(n, columns - column)
        var row = 0
        if width == n:
            while row + n <= rows:

                @inline(.always)
                def load_tile[w: Int](offset: Int) {imm} -> SIMD[dtype, w]:
                    return load[w](column * input_stride + row + offset)

                transpose_tile(
                    output.unsafe_offset(row * output_stride + column),
                    output_stride,
                    input_stride,
                    load_tile,
                )
                row += n
        for c in range(column, column + width):
            for r in range(row, rows):
                output.unsafe_store(
                    r * output_stride + c, load[1](c * input_stride + r)
                )
        column += width
