"""Rows that lie along the output's memory and across an input's."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.reduction.rows import Rows
from mojo_kernels.transposition import transpose_band
from std.sys.info import size_of
from std.utils.static_tuple import StaticTuple


def each_transposed_row[
    operands: Int,
    //,
    source: DType,
    target: DType,
    Convert: def[w: Int](SIMD[source, w]) -> SIMD[target, w],
    Body: def(StaticTuple[Int, operands]) -> None,
](
    mut rows: Rows[operands],
    call: KernelCall,
    grain: Int,
    input: Data[source],
    output: Data[target],
    convert: Convert,
    body: Body,
) -> Bool:
    """Where vectors of operand 0, the output, lie along rows and those of operand 1, an input, across: moves some rows of
    the input to where the output's are, and handles them there.

    Parameters:
        operands: The number of tensors.
        source: The input's type.
        target: The output's type.
        Convert: The type of the first closure.
        Body: The type of the second closure, which must not raise.

    Args:
        rows: The rows; taken apart where they lie like that.
        call: Its thread pool is used.
        grain: The number of elements that is worth a thread.
        input: Operand 1.
        output: Operand 0.
        convert: Converts elements that are moved.
        body: Receives where a row starts, per tensor, when it has been moved.

    Returns:
        Whether the operands lie like that; if not, nothing was done.
    """
    var last = rows.space.ndim - 1
    if (
        last < 0
        or rows.strides[0] != 1
        or rows.strides[1] == 1
        or rows.space.stride(last, 1) != 1
    ):
        return False
    comptime for k in range(2, operands):
        if rows.strides[k] != 1:
            return False
    var columns = rows.space.pop()
    # As many rows as share the input's cache lines.
    comptime band = max(64 // size_of[source](), 1)
    var bands = ceil_div(columns.size, band)
    var n = rows.length

    def some_bands(start: Int, end: Int) {imm}:
        for unit in range(start, end):
            var outer, position = divmod(unit, bands)
            var offsets = rows.space.offsets(outer)
            var first = position * band
            comptime for k in range(operands):
                offsets[k] += first * columns.strides[k]
            var count = min(band, columns.size - first)
            var from_ = input.unsafe_offset(offsets[1])

            @inline(.always)
            def load[w: Int](offset: Int) {imm} -> SIMD[target, w]:
                return convert[w](from_.unsafe_load[width=w](offset))

            transpose_band(
                output.unsafe_offset(offsets[0]),
                columns.strides[0],
                rows.strides[1],
                count,
                n,
                load,
            )
            for _ in range(count):
                body(offsets)
                comptime for k in range(operands):
                    offsets[k] += columns.strides[k]

    parallel_ranges(
        call,
        rows.space.numel * bands,
        ceil_div(grain, band * max(n, 1)),
        some_bands,
    )
    return True
